"""Epoch plans over real mounts: what is fetched, when, and what readers still ask for."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

from penstock.daemon.registry import supervisor_socket
from penstock.errors import NotOnAMount, PlanError
from penstock.integrations import plans
from penstock.integrations.plans import mount_of, open_plan
from penstock.warm import look
from tests.conftest import S3, Mount, Mounter, write_tree
from tests.kernelcaches import forget
from tests.mount.conftest import MODES
from tests.survival.kills import lookers, note, wait_until

FILES = {f"n{i % 7}/{i:03}.jpg": random.Random(i).randbytes(20_000 + 500 * i) for i in range(120)}
NAMES = list(FILES)
BYTES = sum(map(len, FILES.values()))

MountSet = Callable[..., Mount]


@pytest.fixture
def mount_set(s3: S3, mounter: Mounter, request: pytest.FixtureRequest) -> MountSet:
    name = f"plans-{abs(hash(request.node.name)) % 10**9}"
    write_tree(s3.bucket(name), FILES)

    def mount(*options: str) -> Mount:
        mode = () if "--mode" in options else ("--mode", "pagecache")
        return mounter(f"s3://{name}", "--endpoint", s3.endpoint, *mode, *options)

    return mount


def paths_of(mount: Mount) -> list[str]:
    return [str(mount.path / name) for name in NAMES]


def shuffled(seed: int) -> list[int]:
    order = list(range(len(NAMES)))
    random.Random(seed).shuffle(order)
    return order


def read(path: str) -> bytes:
    """As C does it: Python's open asks whether it is a terminal, which is a message."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 20)
    finally:
        os.close(file)


def drop_pages(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def told(mount: Mount) -> dict[str, Any]:
    return mount.stats()["plans"][0]


def settled(mount: Mount) -> bool:
    """Nothing comes any more: not now, and not in the moment between asking and starting."""
    for _ in range(3):
        stats = mount.stats()
        plan = stats["plans"][0]
        if plan["ahead"] != plan["end"] or stats["gets_in_flight"]:
            return False
        time.sleep(0.02)
    return True


def test_a_planned_epoch_is_one_get_for_each_file_and_no_read(mount_set: MountSet) -> None:
    mount = mount_set()
    sent: list[dict[str, int]] = []
    # The kernel may take a page back at any moment, unasked: of three times the least counts. The
    # second and the third come from the cache.
    for seed in range(3):
        order = shuffled(seed)
        with open_plan(paths_of(mount), label="job") as plan:
            plan.extend(order)
            wait_until(lambda: settled(mount), "all is there")
            before = Counter(mount.stats()["requests"])
            for position, index in enumerate(order, 1):
                plan.reached(position)
                assert read(str(mount.path / NAMES[index])) == FILES[NAMES[index]]
            sent.append(Counter(mount.stats()["requests"]) - before)
            if seed == 0:
                stats = mount.stats()
                assert stats["pushed_bytes"] == stats["store_bytes"] == BYTES
        forget(mount.path)
    assert {} in sent
    assert mount.gets() == len(NAMES)


def test_a_reader_who_comes_too_early_joins_the_fetch(mount_set: MountSet) -> None:
    mount = mount_set("--no-cache")
    order = shuffled(2)
    with open_plan(paths_of(mount)) as plan:
        plan.extend(order)
        for position, index in enumerate(order, 1):
            plan.reached(position)
            assert read(str(mount.path / NAMES[index])) == FILES[NAMES[index]]
        wait_until(lambda: settled(mount), "settled")
    assert mount.gets() == len(NAMES)


def test_the_next_epoch_is_prefetched_before_this_one_ends(mount_set: MountSet) -> None:
    mount = mount_set()
    half = len(NAMES) // 2
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(half))
        plan.extend(range(half, len(NAMES)))  # the next epoch: other files
        wait_until(lambda: told(mount)["fetched"] == len(NAMES), "both epochs are there")
        assert told(mount)["handed_out"] == 0


def test_what_the_kernel_holds_is_not_brought_again(mount_set: MountSet) -> None:
    mount = mount_set("--no-cache")
    with open_plan(paths_of(mount)) as plan:
        plan.extend(shuffled(3))
        wait_until(lambda: told(mount)["fetched"] == len(NAMES), "the first epoch")
        plan.reached(len(NAMES))
        plan.extend(shuffled(4))
        wait_until(lambda: settled(mount), "the second")
        # All but what the kernel has taken back meanwhile, unasked.
        assert len(NAMES) - 5 <= told(mount)["resident"] <= len(NAMES)
    assert mount.gets() <= len(NAMES) + 5


def test_a_set_larger_than_memory_passes_through_it(mount_set: MountSet) -> None:
    """What does not fit is dropped behind the readers; what fits stays."""
    size = sum(map(len, FILES.values()))
    mount = mount_set("--page-cache", f"{size // 2}B")
    order = shuffled(5)
    with open_plan(paths_of(mount)) as plan:
        plan.extend(order)
        for position, index in enumerate(order, 1):
            read(str(mount.path / NAMES[index]))
            plan.reached(position)
        wait_until(lambda: settled(mount), "settled")
        wait_until(lambda: told(mount)["dropped"] > 0, "dropped")
        stats = told(mount)
        kept = stats["kept_bytes"]
        assert size * 0.3 <= kept <= size * 0.375
        wait_until(
            lambda: told(mount)["dropped"] == len(NAMES) - _fitting(order, kept), "all of the rest"
        )
    assert mount.gets() == len(NAMES)


def _fitting(order: list[int], kept_bytes: int) -> int:
    """How many files were kept: the first that fitted, in the order of the plan."""
    count, left = 0, int(sum(map(len, FILES.values())) // 2 * 0.75) + 1
    for index in order:
        size = len(FILES[NAMES[index]])
        if size <= left:
            left -= size
            count += 1
    return count


def test_a_plan_goes_on_when_its_server_is_killed(mount_set: MountSet, state: Path) -> None:
    mount = mount_set()
    half = len(NAMES) // 2
    with open_plan(paths_of(mount), label="goes on") as plan:
        plan.extend(range(half))
        wait_until(lambda: told(mount)["fetched"] == half, "the first half")
        server = note(state)["server_pid"]
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: note(state)["server_pid"] not in (None, server), "taken over")
        plan.extend(range(half, len(NAMES)))
        wait_until(lambda: told(mount)["end"] == len(NAMES) and settled(mount), "the second half")
        stats = told(mount)
        assert stats["label"] == "goes on"
        # What the first server pushed is with the kernel (but for what that took back): the second
        # one only looks.
        assert half - 5 <= stats["resident"] <= half
        assert stats["fetched"] == len(NAMES) - half
        assert plan.problems() is None
    wait_until(lambda: mount.stats()["plans"] == [], "over")


def test_two_jobs_have_two_plans(mount_set: MountSet) -> None:
    mount = mount_set()
    with open_plan(paths_of(mount), label="one") as one:
        with open_plan(paths_of(mount), label="two") as two:
            one.extend(range(60))
            two.extend(range(60, 120))
            wait_until(
                lambda: [plan["fetched"] for plan in mount.stats()["plans"]] == [60, 60], "both"
            )
            assert {plan["label"] for plan in mount.stats()["plans"]} == {"one", "two"}
        wait_until(lambda: [plan["label"] for plan in mount.stats()["plans"]] == ["one"], "one")


def test_a_plan_ends_with_the_process_that_made_it(mount_set: MountSet) -> None:
    mount = mount_set()
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
            wait_until(lambda: told(mount)["pid"] == process.pid, "it has a plan")
            process.kill()
            wait_until(lambda: mount.stats()["plans"] == [], "gone with it")
        finally:
            os.kill(worker, signal.SIGKILL)


def test_files_that_are_not_there_are_passed_over_and_told(mount_set: MountSet) -> None:
    mount = mount_set()
    absent = [str(mount.path / "n0" / "absent.jpg"), str(mount.path / "n0")]
    with open_plan([*absent, *paths_of(mount)]) as plan:
        plan.extend(range(len(NAMES) + 2))
        wait_until(lambda: told(mount)["fetched"] == len(NAMES), "the others")
        assert told(mount)["missing"] == 2
        assert "2 of the files" in (plan.problems() or "")
        assert "absent.jpg" in (plan.problems() or "")


def test_files_on_no_mount_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotOnAMount, match="and 1 more"):
        open_plan([str(tmp_path / "a"), str(tmp_path / "b")])
    assert mount_of(tmp_path) is None


def test_files_elsewhere_are_passed_over(mount_set: MountSet, tmp_path: Path) -> None:
    mount = mount_set()
    with open_plan([str(tmp_path / "x"), *paths_of(mount)]) as plan:
        plan.extend([0, 1, 2, 0, 3])
        wait_until(lambda: told(mount)["fetched"] == 3, "those of the mount")
        assert told(mount)["missing"] == 0
    assert mount_of(mount.path / "n0" / "x") == mount.path


def test_paths_are_found_however_they_are_spelled(
    mount_set: MountSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = mount_set()
    link = tmp_path / "data"
    link.symlink_to(mount.path)
    monkeypatch.chdir(mount.path / "n1")
    spelled = [str(link / "n0/000.jpg"), "001.jpg", "../n2/002.jpg", "/001.jpg", "008.jpg"]
    with open_plan(spelled) as plan:
        plan.extend(range(5))
        wait_until(lambda: settled(mount), "settled")
        assert (told(mount)["files"], told(mount)["fetched"]) == (4, 4)
    monkeypatch.chdir("/")
    assert mount_of(mount.path) == mount_of(f"{mount.path}/") == mount_of(link / "x") == mount.path
    assert mount_of(mount.path.parent) is None


def test_a_server_that_knows_no_plans_refuses_with_the_mounts_name(
    mount_set: MountSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = mount_set()

    class Older:  # its supervisor never knew any
        socket_path = supervisor_socket(mount.path)

    monkeypatch.setattr(plans, "find_served", lambda _: Older)
    with pytest.raises(PlanError, match=f"{mount.path} takes no plan: bad request"):
        open_plan(paths_of(mount))


def test_an_order_that_names_no_file_is_refused(mount_set: MountSet) -> None:
    mount = mount_set()
    with open_plan(paths_of(mount)) as plan, pytest.raises(PlanError, match="no file 120"):
        plan.extend([len(NAMES)])


def test_an_order_that_turned_out_wrong_is_replaced(mount_set: MountSet) -> None:
    mount = mount_set("--page-cache", "0")
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(60))
        plan.reached(10)
        plan.restart(range(60, 120))
        wait_until(lambda: told(mount)["end"] == 70 and settled(mount), "the new order")
    stats = mount.stats()
    assert all(mount.path.joinpath(NAMES[index]).exists() for index in range(60, 120))
    assert stats["store_requests_by_verb"]["get"] >= 60


def test_more_than_there_is_room_for_is_published_as_readers_go_on(mount_set: MountSet) -> None:
    mount = mount_set()
    with open_plan(paths_of(mount), capacity=50) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: told(mount)["fetched"] == 50, "as much as there is room for")
        plan.reached(50)
        wait_until(lambda: told(mount)["fetched"] == 100, "as much again")
        plan.reached(70)
        wait_until(lambda: told(mount)["fetched"] == len(NAMES), "the rest")


def test_a_mount_that_goes_away_is_told(mount_set: MountSet) -> None:
    mount = mount_set()
    with open_plan(paths_of(mount)) as plan:
        mount.umount()
        wait_until(lambda: plan.problems() is not None, "told")
        assert "not mounted any more" in (plan.problems() or "")
        plan.extend([0])
        plan.reached(1)


@pytest.mark.parametrize("mode", MODES)
def test_half_a_cache_hits_half(mount_set: MountSet, mode: str) -> None:
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
                assert read(str(mount.path / NAMES[index])) == FILES[NAMES[index]]
                position += 1
                plan.reached(position)
            wait_until(lambda: settled(mount), "settled")
            for name in NAMES:
                drop_pages(mount.path / name)
            gets.append(mount.gets())
    later = [after - before for before, after in pairwise(gets)]
    assert gets[0] == len(NAMES)
    for count in later:
        assert 0.4 * len(NAMES) <= count <= 0.6 * len(NAMES)


def test_in_passthrough_mode_files_are_in_the_cache_before_they_are_opened(
    mount_set: MountSet,
) -> None:
    mount = mount_set("--mode", "passthrough")
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: settled(mount), "all is there")
        for name, data in FILES.items():
            assert read(str(mount.path / name)) == data
    stats = mount.stats()
    assert (stats["pushed_bytes"], stats["requests"].get("READ", 0)) == (0, 0)
    assert stats["passthrough_opens"] == mount.gets() == len(NAMES)


def test_older_kernels_tell_the_same_of_the_page_cache(mount_set: MountSet) -> None:
    mount = mount_set()
    page = os.sysconf("SC_PAGE_SIZE")
    for name in NAMES[:5]:
        read(str(mount.path / name))
    drop_pages(mount.path / NAMES[4])
    for number, name in enumerate(NAMES[:10]):
        path = mount.path / name
        size, file = path.stat().st_size, os.open(path, os.O_RDONLY)
        pages = -(-size // page) if number < 4 else 0
        assert look.pages_by_mincore(file, size) == pages
        assert look.pages_by_cachestat(file) in (pages, None)
        os.close(file)
        assert look.look(os.fsencode(path)) == (look.RESIDENT if number < 4 else look.HELD)
    assert look.look(os.fsencode(mount.path / "absent")) == look.MISSING


def test_the_process_that_looks_has_no_keys(mount_set: MountSet) -> None:
    mount = mount_set()
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: settled(mount), "settled")
        (looker,) = lookers(mount.path)
        assert b"AWS_SECRET" not in Path(f"/proc/{looker}/environ").read_bytes()


def test_a_mount_whose_files_are_looked_at_can_be_unmounted(mount_set: MountSet) -> None:
    mount = mount_set()
    question = b"\0".join(map(os.fsencode, NAMES)) + b"\0"  # and on and on, without any answer
    with subprocess.Popen(
        [sys.executable, "-IS", look.__file__, str(mount.path)], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, bufsize=0,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        asks = threading.Thread(target=_write_until_closed, args=(process.stdin, question))
        asks.start()
        try:
            wait_until(lambda: mount.stats()["requests"].get("LOOKUP", 0) >= len(NAMES), "looked")
            mount.umount()
        finally:
            process.kill()
            asks.join()


def _write_until_closed(pipe: IO[bytes], question: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while True:
            pipe.write(question)
