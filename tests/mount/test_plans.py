"""Epoch plans over real mounts: what is fetched, when, and what readers still ask for."""

import contextlib
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import IO

import pytest

from penstock.daemon.registry import find_note, supervisor_socket
from penstock.errors import NotOnAMount, PlanError
from penstock.integrations import plans
from penstock.integrations.plans import mount_of, open_plan
from penstock.warm import look
from tests.support.kernelcaches import drop_pages
from tests.support.kills import lookers
from tests.support.mounts import Mount, Mounter, both_modes
from tests.support.page_counts import assert_kept, locked_pages
from tests.support.planned_mounts import is_settled, plan_of
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


def shuffled(seed: int) -> list[int]:
    order = list(range(len(NAMES)))
    random.Random(seed).shuffle(order)
    return order


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


def test_a_reader_who_comes_too_early_joins_the_fetch(mount_set: Mounter) -> None:
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
        wait_until(lambda: plan_of(mount)["fetched"] == len(NAMES), "both epochs are there")
        assert plan_of(mount)["handed_out"] == 0


def test_what_the_kernel_holds_is_not_brought_again(mount_set: Mounter) -> None:
    mount = mount_set("--mode", "pagecache", "--no-cache")
    with open_plan(paths_of(mount)) as plan:
        plan.extend(shuffled(3))
        wait_until(lambda: plan_of(mount)["fetched"] == len(NAMES), "the first epoch")
        plan.reached(len(NAMES))
        with locked_pages(map(Path, paths_of(mount))):
            gets = mount.gets()
            plan.extend(shuffled(4))
            wait_until(lambda: is_settled(mount), "the second")
            assert plan_of(mount)["resident"] == len(NAMES)
            assert mount.gets() == gets


def test_a_set_larger_than_memory_passes_through_it(mount_set: Mounter) -> None:
    """What does not fit is dropped behind the readers; what fits stays."""
    size = sum(map(len, FILES.values()))
    mount = mount_set("--mode", "pagecache", "--page-cache", f"{size // 2}B")
    order = shuffled(5)
    with open_plan(paths_of(mount)) as plan:
        plan.extend(order)
        for position, index in enumerate(order, 1):
            read_raw(mount.path / NAMES[index])
            plan.reached(position)
        wait_until(lambda: is_settled(mount), "settled")
        wait_until(lambda: plan_of(mount)["dropped"] > 0, "dropped")
        stats = plan_of(mount)
        kept = stats["kept_bytes"]
        assert size * 0.3 <= kept <= size * 0.375
        rest = len(NAMES) - _fitting(order)
        wait_until(lambda: plan_of(mount)["dropped"] == rest, "all of the rest")
    assert mount.gets() == len(NAMES)


def _fitting(order: list[int]) -> int:
    """How many files were kept: the first that fitted, in the order of the plan."""
    count, left = 0, int(sum(map(len, FILES.values())) // 2 * 0.75) + 1
    for index in order:
        size = len(FILES[NAMES[index]])
        if size <= left:
            left -= size
            count += 1
    return count


def test_a_plan_goes_on_when_its_server_is_killed(mount: Mount) -> None:
    half = len(NAMES) // 2
    first = list(map(Path, paths_of(mount)))[:half]
    with open_plan(paths_of(mount), label="goes on") as plan:
        plan.extend(range(half))
        wait_until(lambda: plan_of(mount)["fetched"] == half, "the first half")
        with locked_pages(first):
            kill_server(mount)
            plan.extend(range(half, len(NAMES)))
            wait_until(
                lambda: plan_of(mount)["end"] == len(NAMES) and is_settled(mount), "the second half"
            )
            stats = plan_of(mount)
            assert stats["label"] == "goes on"
            # What the first server pushed is with the kernel: the second one only looks.
            assert (stats["resident"], stats["fetched"]) == (half, len(NAMES) - half)
            assert plan.problems() is None
    wait_until(lambda: mount.stats()["plans"] == [], "over")


def kill_server(mount: Mount) -> None:
    pid = find_note(mount.path).server_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: find_note(mount.path).server_pid not in (None, pid), "taken over")


def test_two_jobs_have_two_plans(mount: Mount) -> None:
    with open_plan(paths_of(mount), label="one") as one:
        with open_plan(paths_of(mount), label="two") as two:
            one.extend(range(60))
            two.extend(range(60, 120))
            wait_until(
                lambda: [plan["fetched"] for plan in mount.stats()["plans"]] == [60, 60], "both"
            )
            assert {plan["label"] for plan in mount.stats()["plans"]} == {"one", "two"}
        wait_until(lambda: [plan["label"] for plan in mount.stats()["plans"]] == ["one"], "one")


def test_a_plan_ends_with_the_process_that_made_it(mount: Mount) -> None:
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


def test_files_that_are_not_there_are_passed_over_and_told(mount: Mount) -> None:
    absent = [str(mount.path / "n0" / "absent.jpg"), str(mount.path / "n0")]
    with open_plan([*absent, *paths_of(mount)]) as plan:
        plan.extend(range(len(NAMES) + 2))
        wait_until(lambda: plan_of(mount)["fetched"] == len(NAMES), "the others")
        assert plan_of(mount)["missing"] == 2
        assert "2 of the files" in (plan.problems() or "")
        assert "absent.jpg" in (plan.problems() or "")


def test_files_on_no_mount_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotOnAMount, match="and 1 more"):
        open_plan([str(tmp_path / "a"), str(tmp_path / "b")])
    assert mount_of(tmp_path) is None


def test_files_elsewhere_are_passed_over(mount: Mount, tmp_path: Path) -> None:
    with open_plan([str(tmp_path / "x"), *paths_of(mount)]) as plan:
        plan.extend([0, 1, 2, 0, 3])
        wait_until(lambda: plan_of(mount)["fetched"] == 3, "those of the mount")
        assert plan_of(mount)["missing"] == 0
    assert mount_of(mount.path / "n0" / "x") == mount.path


def test_paths_are_found_however_they_are_spelled(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "data"
    link.symlink_to(mount.path)
    monkeypatch.chdir(mount.path / "n1")
    spelled = [str(link / "n0/000.jpg"), "001.jpg", "../n2/002.jpg", "/001.jpg", "008.jpg"]
    with open_plan(spelled) as plan:
        plan.extend(range(5))
        wait_until(lambda: is_settled(mount), "settled")
        assert (plan_of(mount)["files"], plan_of(mount)["fetched"]) == (4, 4)
    monkeypatch.chdir("/")
    assert mount_of(mount.path) == mount_of(f"{mount.path}/") == mount_of(link / "x") == mount.path
    assert mount_of(mount.path.parent) is None


def test_a_server_that_knows_no_plans_refuses_with_the_mounts_name(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:

    class Older:  # its supervisor never knew any
        socket_path = supervisor_socket(mount.path)

    monkeypatch.setattr(plans, "find_served", lambda _: Older)
    with pytest.raises(PlanError, match=f"{mount.path} takes no plan: bad request"):
        open_plan(paths_of(mount))


def test_an_order_that_names_no_file_is_refused(mount: Mount) -> None:
    with open_plan(paths_of(mount)) as plan, pytest.raises(PlanError, match="no file 120"):
        plan.extend([len(NAMES)])


def test_an_order_that_turned_out_wrong_is_replaced(mount: Mount) -> None:
    with open_plan(paths_of(mount), capacity=60) as plan:
        plan.extend(range(60))
        plan.reached(10)
        plan.restart(range(60, 120))
        wait_until(lambda: plan_of(mount)["end"] == 70 and is_settled(mount), "the new order")
        for name in NAMES[60:]:
            assert os.getxattr(mount.path / name, "user.penstock.cached") == b"%d" % len(
                FILES[name]
            )


def test_more_than_there_is_room_for_is_published_as_readers_go_on(mount: Mount) -> None:
    with open_plan(paths_of(mount), capacity=50) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: plan_of(mount)["fetched"] == 50, "as much as there is room for")
        plan.reached(50)
        wait_until(lambda: plan_of(mount)["fetched"] == 100, "as much again")
        plan.reached(70)
        wait_until(lambda: plan_of(mount)["fetched"] == len(NAMES), "the rest")


def test_a_mount_that_goes_away_is_told(own: Mount) -> None:
    with open_plan(paths_of(own)) as plan:
        own.umount()
        wait_until(lambda: plan.problems() is not None, "told")
        assert "not mounted any more" in (plan.problems() or "")
        plan.extend([0])
        plan.reached(1)


@both_modes
def test_half_a_cache_hits_half(mount_set: Mounter, mode: str) -> None:
    """Which is the best that can be: what is there stays."""
    size = sum(map(len, FILES.values()))
    mount = mount_set("--mode", mode, "--cache-size", f"{size // 2}B", "--page-cache", "0")
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


def test_in_passthrough_mode_files_are_in_the_cache_before_they_are_opened(
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


def test_older_kernels_tell_the_same_of_the_page_cache(mount: Mount) -> None:
    read, dropped, unread = (mount.path / name for name in NAMES[:3])
    read_raw(dropped)
    drop_pages([dropped])
    with locked_pages([read]):
        for path in (read, dropped, unread):
            size, file = path.stat().st_size, os.open(path, os.O_RDONLY)
            pages = -(-size // mmap.PAGESIZE) if path == read else 0
            assert look.pages_by_mincore(file, size) == pages
            assert look.pages_by_cachestat(file) in (pages, None)
            os.close(file)
            assert look.look(os.fsencode(path)) == (look.RESIDENT if path == read else look.HELD)
    assert look.look(os.fsencode(mount.path / "absent")) == look.MISSING


def test_the_process_that_looks_has_no_keys(mount: Mount) -> None:
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: is_settled(mount), "settled")
        (looker,) = lookers(mount.path)
        assert b"AWS_SECRET" not in Path(f"/proc/{looker}/environ").read_bytes()


def test_a_mount_whose_files_are_looked_at_can_be_unmounted(own: Mount) -> None:
    question = b"\0".join(map(os.fsencode, NAMES)) + b"\0"  # and on and on, without any answer
    with subprocess.Popen(
        [sys.executable, "-IS", look.__file__, str(own.path)], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, bufsize=0,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        asks = threading.Thread(target=_write_until_closed, args=(process.stdin, question))
        asks.start()
        try:
            wait_until(lambda: own.stats()["requests"].get("LOOKUP", 0) >= len(NAMES), "looked")
            own.umount()
        finally:
            process.kill()
            asks.join()


def _write_until_closed(pipe: IO[bytes], question: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while True:
            pipe.write(question)
