"""Several processes that answer for one mount: what they share, and their ends."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.integrations.plans import open_plan
from tests.support.kills import note, reading
from tests.support.mounts import Mount, Mounter, both_modes, is_settled, penstock, plan_of, warm
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_raw, write_tree
from tests.support.waiting import wait_until

FILES = {f"n{i % 7}/{i:03}.jpg": random.Random(i).randbytes(20_000 + 500 * i) for i in range(120)}
LARGE = {f"large/{i}": random.Random(i).randbytes((3 << 20) + i) for i in range(2)}
NAMES = list(FILES)
BYTES = sum(map(len, FILES.values()))


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, {**FILES, **LARGE})
    return empty_bucket


@pytest.fixture
def own(s3: S3, mounter: Mounter, bucket: ObjectPath) -> Mounter:
    """Mounts with options and three workers, with nothing cached."""

    def mount(*options: str | Path) -> Mount:
        mode = () if "--mode" in options else ("--mode", "pagecache")
        return mounter(
            bucket.source,
            "--endpoint",
            s3.endpoint,
            "--workers",
            "3",
            "--block-size",
            "1MiB",
            "--prefetch",
            "2",
            *mode,
            *options,
        )

    return mount


def pids(mount: Mount) -> list[int]:
    return mount.stats()["workers"]["pids"]


def read_all(mount: Mount) -> dict[str, bytes]:
    return {name: read_raw(mount.path / name) for name in NAMES}


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@both_modes
def test_each_byte_is_fetched_once_whichever_worker_serves_the_read(
    own: Mounter, mode: str
) -> None:
    mount = own("--mode", mode)
    everything = {**FILES, **LARGE}
    with reading(mount.path, everything, readers=8, seed=1) as crowd:
        for _ in range(20):
            crowd.wait_for_more()
    assert {name: read_raw(mount.path / name) for name in everything} == everything
    stats = mount.stats()
    assert stats["store_bytes"] == sum(map(len, everything.values()))
    assert stats["cached_bytes"] == stats["tiers"][0]["used_bytes"] == stats["store_bytes"]
    assert stats["fetching"] == stats["errors"] == 0
    assert stats["workers"]["count"] == 3


@both_modes
def test_a_planned_epoch_is_one_get_for_each_file(own: Mounter, mode: str) -> None:
    mount = own("--mode", mode)
    with open_plan([str(mount.path / name) for name in NAMES]) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: is_settled(mount), "all is there")
        assert plan_of(mount)["fetched"] == len(NAMES)
    stats = mount.stats()
    assert stats["pushed_bytes"] == (BYTES if mode == "pagecache" else 0)
    assert stats["prefetched_blocks"] == len(NAMES)
    assert read_all(mount) == FILES
    assert mount.gets() == len(NAMES)


def test_stopped_and_killed_workers_cost_only_requests(own: Mounter) -> None:
    """Stopped, it has taken what it will never bring; killed, the server hears its end."""
    mount = own()
    before = pids(mount)
    with open_plan([str(mount.path / name) for name in NAMES]) as plan:
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        plan.extend(range(len(NAMES)))
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_settled(mount), "all is there")
    assert read_all(mount) == FILES
    stats = mount.stats()
    assert stats["errors"] == stats["buffered_bytes"] == stats["fetching"] == 0
    assert stats["cached_bytes"] == stats["tiers"][0]["used_bytes"] == BYTES
    assert stats["workers"]["restarts"] == 3
    assert not set(before) & set(pids(mount))


def test_a_hung_worker_is_replaced(own: Mounter) -> None:
    mount = own("--watchdog", "2s")
    before = pids(mount)
    os.kill(before[0], signal.SIGSTOP)
    assert read_all(mount) == FILES  # waits for the watchdog
    wait_until(lambda: is_gone(before[0]), "it is gone")
    assert len(pids(mount)) == 3


def test_workers_end_with_their_server_and_with_the_mount(own: Mounter, state: Path) -> None:
    mount = own()
    before = pids(mount)
    result = penstock("upgrade", mount.path, "--workers", "2")
    assert result.returncode == 0, result.stderr
    wait_until(lambda: all(map(is_gone, before)), "gone with their server")
    assert mount.stats()["workers"]["count"] == len(pids(mount)) == 2
    assert read_all(mount) == FILES
    assert warm(mount, *NAMES)["fetched_bytes"] == 0
    second = pids(mount)
    os.kill(note(state)["server_pid"], signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, second)), "gone with their server")
    assert read_all(mount) == FILES
    third = pids(mount)
    mount.umount()
    assert all(map(is_gone, third)), "they ended before umount returned"


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
@both_modes
def test_kills_of_workers_and_servers_cost_no_error_and_no_byte(
    own: Mounter, state: Path, mode: str, kills: int
) -> None:
    mount = own("--mode", mode, "--cache-size", "10MiB")
    chance = random.Random(7)
    with reading(mount.path, {**FILES, **LARGE}, readers=16, seed=3) as crowd:
        for _ in range(kills):
            time.sleep(chance.uniform(0, 0.3))  # any moment must do
            wait_until(lambda: note(state)["state"] == "serving", "no server serves")
            server = note(state)["server_pid"]
            victims = [chance.choice([server, *workers_of(server)])]
            if chance.random() < 0.3:  # several at once
                victims += workers_of(server)[:2]
            elif chance.random() < 0.25:
                victims = [server]
            for pid in victims:
                kill(pid)
            crowd.wait_for_more()
    assert mount.stats()["errors"] == 0


def kill(pid: int) -> None:
    """Kill a process that may have ended by itself: workers end with their server."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def workers_of(server: int) -> list[int]:
    """The grandchildren of a server, which may be ending."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    nurseries = {pid for pid, parent in parents.items() if parent == server}
    return [pid for pid, parent in parents.items() if parent in nurseries]
