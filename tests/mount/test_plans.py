"""Epoch plans over real mounts: what is fetched, when, and what readers still ask for."""

import os
import random
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.daemon.mount_registry import find_note
from penstock.errors import PlanError
from penstock.integrations.plans import mount_of, open_plan
from penstock.warm import residency
from tests.support.kernelcaches import drop_pages
from tests.support.kills import processes_of
from tests.support.mounts import Mount, Mounter, both_modes, is_settled, needs_passthrough, plan_of
from tests.support.page_counts import assert_kept, locked_pages
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_raw, write_tree
from tests.support.waiting import wait_until

FILES = {f"n{i % 7}/{i:03}.jpg": random.Random(i).randbytes(20_000 + 500 * i) for i in range(120)}
NAMES = list(FILES)
BYTES = sum(map(len, FILES.values()))


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, FILES)
    return empty_bucket


@pytest.fixture
def mount_set(s3: S3, bucket: ObjectPath, shared: Mounter) -> Mounter:
    """Mounts the bucket, with options."""
    return lambda *options: shared(bucket.source, "--endpoint", s3.endpoint, *options)


@pytest.fixture
def mount(mount_set: Mounter) -> Mount:
    return mount_set("--mode", "pagecache")


@pytest.fixture
def own(s3: S3, bucket: ObjectPath, mounter: Mounter) -> Mount:
    """A mount that the test may end."""
    return mounter(bucket.source, "--endpoint", s3.endpoint, "--mode", "pagecache")


def paths_of(mount: Mount) -> list[str]:
    return [str(mount.path / name) for name in NAMES]


def at_hand(mount: Mount, number: int = 0) -> int:
    """The files of a plan that are there, whoever brought them.

    On a mount that tests share, a file that was open while the test before ended keeps its pages.
    """
    plan = mount.stats()["plans"][number]
    return sum(plan.get(how, 0) for how in ("fetched", "joined", "cached", "resident"))


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(len(NAMES)), len(NAMES))


@pytest.mark.counts_pages
def test_a_planned_epoch_is_one_get_for_each_file_and_no_read(mount: Mount) -> None:
    start = mount.stats()
    order = shuffled(0)

    def read_in_order() -> None:
        for position, index in enumerate(order, 1):
            plan.reached(position)
            assert read_raw(mount.path / NAMES[index]) == FILES[NAMES[index]]

    with open_plan(paths_of(mount), label="job") as plan:
        plan.extend(order)
        wait_until(lambda: is_settled(mount), "all is there")
        assert_kept(map(Path, paths_of(mount)))
        with locked_pages(map(Path, paths_of(mount))):
            assert mount.messages_while(read_in_order) == {}
    stats = mount.stats()
    for name in ("pushed_bytes", "store_bytes"):
        assert stats[name] - start[name] == BYTES
    assert mount.gets() == len(NAMES)


def test_a_reader_that_comes_too_early_joins_the_fetch(mount_set: Mounter) -> None:
    mount = mount_set("--mode", "pagecache", "--no-cache")
    order = shuffled(2)
    with open_plan(paths_of(mount)) as plan:
        plan.extend(order)
        for position, index in enumerate(order, 1):
            plan.reached(position)
            assert read_raw(mount.path / NAMES[index]) == FILES[NAMES[index]]
        wait_until(lambda: is_settled(mount), "settled")
    assert mount.gets() == len(NAMES)


def test_the_next_epoch_is_prefetched_before_this_one_ends(mount: Mount) -> None:
    half = len(NAMES) // 2
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(half))
        plan.extend(range(half, len(NAMES)))  # the next epoch: other files
        wait_until(lambda: at_hand(mount) == len(NAMES), lambda: plan_of(mount))
        assert plan_of(mount)["handed_out"] == 0


def test_files_in_the_page_cache_are_not_fetched_again(mount_set: Mounter) -> None:
    mount = mount_set("--mode", "pagecache", "--no-cache")
    with open_plan(paths_of(mount)) as plan:
        plan.extend(shuffled(3))
        wait_until(lambda: at_hand(mount) == len(NAMES), lambda: plan_of(mount))
        plan.reached(len(NAMES))
        with locked_pages(map(Path, paths_of(mount))):
            gets = mount.gets()
            plan.extend(shuffled(4))
            wait_until(lambda: is_settled(mount), "the second")
            assert plan_of(mount)["resident"] >= len(NAMES)
            assert mount.gets() == gets


def test_a_data_set_larger_than_memory_streams_through_it(mount_set: Mounter) -> None:
    """What does not fit is dropped behind the readers; what fits stays."""
    mount = mount_set("--mode", "pagecache", "--page-cache", f"{BYTES // 2}B")
    order = shuffled(5)
    with open_plan(paths_of(mount)) as plan:
        plan.extend(order)
        for position, index in enumerate(order, 1):
            read_raw(mount.path / NAMES[index])
            plan.reached(position)
        wait_until(lambda: is_settled(mount), "settled")
        rest = len(NAMES) - _fitting(order)
        wait_until(lambda: plan_of(mount)["dropped"] == rest, "all of the rest")
        assert BYTES * 0.3 <= plan_of(mount)["kept_bytes"] <= BYTES * 0.375
    assert mount.gets() == len(NAMES)


def _fitting(order: list[int]) -> int:
    """How many files were kept: the first that fitted, in the order of the plan."""
    count, left = 0, int(BYTES // 2 * 0.75) + 1
    for index in order:
        size = len(FILES[NAMES[index]])
        if size <= left:
            left -= size
            count += 1
    return count


def kept_descriptors(supervisor: int) -> list[str]:
    """What a supervisor holds of plans."""
    links = map(os.path.realpath, Path(f"/proc/{supervisor}/fd").iterdir())
    return [link for link in links if "penstock-plan" in link]


def test_a_plan_continues_when_its_server_is_killed_and_leaves_nothing(mount: Mount) -> None:
    half = len(NAMES) // 2
    first = list(map(Path, paths_of(mount)))[:half]
    supervisor = find_note(mount.path).pid
    with open_plan(paths_of(mount), label="goes on") as plan:
        plan.extend(range(half))
        wait_until(lambda: at_hand(mount) == half, lambda: plan_of(mount))
        with locked_pages(first):
            server = mount.stats()["pid"]
            os.kill(server, signal.SIGKILL)
            wait_until(lambda: mount.stats()["pid"] != server, "taken over")
            plan.extend(range(half, len(NAMES)))
            wait_until(
                lambda: plan_of(mount)["end"] == len(NAMES) and is_settled(mount), "the second half"
            )
            stats = plan_of(mount)
            assert stats["label"] == "goes on"
            # What the first server pushed is with the kernel: the second one only looks.
            assert stats["resident"] >= half
            assert at_hand(mount) == len(NAMES)
            assert plan.problems() is None
        assert len(kept_descriptors(supervisor)) == 1
        wait_until(
            lambda: len(processes_of(mount.path, "/residency.py")) == 1,
            "that of the killed server is gone",
        )
        (looker,) = processes_of(mount.path, "/residency.py")
        assert b"AWS_SECRET" not in Path(f"/proc/{looker}/environ").read_bytes()
    wait_until(lambda: mount.stats()["plans"] == [], "over")
    wait_until(lambda: kept_descriptors(supervisor) == [], "nothing is kept of it")


def test_two_jobs_have_two_plans(mount: Mount) -> None:
    with open_plan(paths_of(mount), label="one") as one:
        with open_plan(paths_of(mount), label="two") as two:
            one.extend(range(60))
            two.extend(range(60, 120))
            wait_until(lambda: [at_hand(mount, number) for number in (0, 1)] == [60, 60], "both")
            assert {plan["label"] for plan in mount.stats()["plans"]} == {"one", "two"}
        wait_until(lambda: [plan["label"] for plan in mount.stats()["plans"]] == ["one"], "one")


def test_a_plan_ends_with_the_process_that_opened_it(mount: Mount) -> None:
    script = (
        "import sys, os, signal\n"
        "from penstock.integrations.plans import open_plan\n"
        "plan = open_plan(sys.argv[1:]); plan.extend(range(3))\n"
        "child = os.fork()\n"
        "if not child: signal.pause()\n"  # a worker that outlives it does not hold the plan
        "print(child, flush=True); signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *paths_of(mount)[:3]], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            wait_until(lambda: plan_of(mount)["pid"] == process.pid, "it has a plan")
            process.kill()
            wait_until(lambda: mount.stats()["plans"] == [], "gone with it")
        finally:
            os.kill(worker, signal.SIGKILL)


def test_plan_paths_are_resolved_in_any_spelling_and_missing_ones_reported(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "data"
    link.symlink_to(mount.path)
    monkeypatch.chdir(mount.path / "n1")
    found = [str(link / "n0/000.jpg"), "001.jpg", "../n2/002.jpg", "008.jpg"]
    missing = [str(mount.path / "n0" / "absent.jpg"), str(mount.path / "n0")]
    with open_plan([*found, *missing, "/001.jpg", str(tmp_path / "elsewhere")]) as plan:
        plan.extend(range(8))
        wait_until(lambda: at_hand(mount) == 4 and is_settled(mount), lambda: plan_of(mount))
        assert plan_of(mount)["missing"] == 2
        assert "2 of the files" in (plan.problems() or "")
        assert "absent.jpg" in (plan.problems() or "")
    monkeypatch.chdir("/")
    assert mount_of(mount.path) == mount_of(f"{mount.path}/") == mount_of(link / "x") == mount.path
    assert mount_of(mount.path.parent) is None


def test_a_wrong_order_is_replaced_and_the_rest_follows_when_there_is_room(
    mount: Mount,
) -> None:
    with open_plan(paths_of(mount), capacity=60) as plan:
        with pytest.raises(PlanError, match="no file 120"):
            plan.extend([len(NAMES)])
        plan.extend(range(60))
        plan.reached(10)
        plan.restart(range(60, 120))
        wait_until(lambda: plan_of(mount)["end"] == 70 and is_settled(mount), "the new order")
        for name in NAMES[60:]:
            cached = os.getxattr(mount.path / name, "user.penstock.cached")
            assert cached == b"%d" % len(FILES[name])
        plan.extend(range(60))
        for position, end in ((10, 70), (20, 80), (50, 110), (70, 130)):
            plan.reached(position)
            wait_until(
                lambda end=end: plan_of(mount)["end"] == end and is_settled(mount),
                lambda: plan_of(mount),
            )


def test_a_plan_is_told_that_its_mount_is_gone(own: Mount) -> None:
    with open_plan(paths_of(own)) as plan:
        own.umount()
        wait_until(lambda: plan.problems() is not None, "told")
        assert "no longer mounted" in (plan.problems() or "")
        plan.extend([0])
        plan.reached(1)


@both_modes
def test_half_a_cache_serves_half_of_the_reads(mount_set: Mounter, mode: str) -> None:
    """Which is the best that can be: what is there stays."""
    mount = mount_set("--mode", mode, "--cache-size", f"{BYTES // 2}B", "--page-cache", "0")
    gets: list[int] = []
    with open_plan(paths_of(mount)) as plan:
        position = 0
        for epoch in range(3):
            order = shuffled(epoch)
            plan.extend(order)
            for index in order:
                assert read_raw(mount.path / NAMES[index]) == FILES[NAMES[index]]
                position += 1
                plan.reached(position)
            wait_until(lambda: is_settled(mount), "settled")
            drop_pages(map(Path, paths_of(mount)))
            gets.append(mount.gets())
    later = [after - before for before, after in pairwise(gets)]
    assert gets[0] == len(NAMES)
    for count in later:
        assert 0.4 * len(NAMES) <= count <= 0.6 * len(NAMES)


@needs_passthrough
def test_in_passthrough_mode_files_are_cached_before_they_are_opened(
    mount_set: Mounter,
) -> None:
    mount = mount_set("--mode", "passthrough")
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: is_settled(mount), "all is there")
        for name, data in FILES.items():
            assert read_raw(mount.path / name) == data
    stats = mount.stats()
    assert (stats["pushed_bytes"], stats["requests"].get("READ", 0)) == (0, 0)
    assert stats["passthrough_opens"] == mount.gets() == len(NAMES)


def test_a_mount_can_be_unmounted_while_its_page_cache_is_probed(
    own: Mount, tmp_path: Path
) -> None:
    questions = tmp_path / "questions"  # so many that it is at work for seconds
    questions.write_bytes((b"\0".join(map(os.fsencode, NAMES)) + b"\0") * 10_000)
    with (
        questions.open("rb") as asked,
        subprocess.Popen(
            [sys.executable, "-IS", residency.__file__, str(own.path)],
            stdin=asked,
            stdout=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            wait_until(lambda: own.stats()["requests"].get("LOOKUP", 0) >= len(NAMES), "looked")
            assert process.poll() is None
            own.umount()
        finally:
            process.kill()


REWRITTEN = [f"{n:02}" for n in range(30)]


def content(number: int, version: int) -> bytes:
    """Of another size and another byte each time."""
    return bytes([version % 256]) * (10_000 + 7_000 * ((number + version) % 9))


def write_version(bucket: ObjectPath, version: int) -> None:
    write_tree(bucket, {name: content(number, version) for number, name in enumerate(REWRITTEN)})


def test_pushed_pages_of_two_versions_never_mix(s3: S3, mounter: Mounter) -> None:
    bucket = s3.bucket("rewritten")
    write_version(bucket, 0)
    mount = mounter(
        "s3://rewritten", "--endpoint", s3.endpoint, "--mode", "pagecache", "--page-cache", "1MiB"
    )
    stop, reads = threading.Event(), [0]
    wrong: list[tuple[str, int]] = []

    def read() -> None:
        while not stop.is_set():
            number = random.randrange(len(REWRITTEN))
            try:
                data = (mount.path / REWRITTEN[number]).read_bytes()
            except OSError:
                continue  # it was rewritten, and the listing is not there yet: ESTALE
            reads[0] += 1
            if not data or data != content(number, data[0]):
                wrong.append((REWRITTEN[number], len(data)))

    readers = [threading.Thread(target=read) for _ in range(3)]
    with open_plan([str(mount.path / name) for name in REWRITTEN]) as plan:
        for reader in readers:
            reader.start()
        try:
            for version in range(1, 6):
                plan.extend(range(len(REWRITTEN)))
                write_version(bucket, version)
                mount.refresh()
                plan.reached(version * len(REWRITTEN))
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        assert wrong == []
        assert reads[0] > 0
        plan.extend(range(len(REWRITTEN)))
        wait_until(lambda: plan_of(mount)["ahead"] == 6 * len(REWRITTEN), "looked at")
        for number, name in enumerate(REWRITTEN):
            assert (mount.path / name).read_bytes() == content(number, 5)
        assert plan_of(mount)["missing"] == 0
        assert mount.stats()["pushed_bytes"] > 0
