"""Processes that fetch for plans and loads, over real mounts: what they bring, and their ends."""

import os
import random
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from penstock.bench.programs import free_port
from penstock.daemon.registry import find_note
from penstock.integrations.plans import open_plan
from tests.support.faults import Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kills import processes_of
from tests.support.mounts import Mount, Mounter, both_modes, is_settled, penstock, plan_of, warm
from tests.support.rclone import rclone_serves
from tests.support.s3 import S3, SECRET_KEY, ObjectPath
from tests.support.trees import read_raw, write_tree
from tests.support.waiting import wait_until

# So many are wanted before the first process is started.
FIRST = {f"first/{i:03}": random.Random(i).randbytes(500 + i) for i in range(70)}
FILES = {f"n{i % 7}/{i:03}.jpg": random.Random(i).randbytes(20_000 + 500 * i) for i in range(120)}
NAMES = list(FILES)
BYTES = sum(map(len, FILES.values()))
TWO = ("--fetchers", "2")


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, {**FIRST, **FILES})
    return empty_bucket


@pytest.fixture
def own(s3: S3, mounter: Mounter, bucket: ObjectPath) -> Mounter:
    """Mounts with options, with nothing cached but FIRST, and two fetchers that are ready."""

    def mount(*options: str | Path, endpoint: str = s3.endpoint) -> Mount:
        mode = () if "--mode" in options else ("--mode", "pagecache")
        mount = mounter(bucket.source, "--endpoint", endpoint, *mode, *TWO, *options)
        wait_for_both(mount)
        return mount

    return mount


def wait_for_both(mount: Mount) -> None:
    warm(mount, "first")
    wait_until(lambda: len(pids(mount)) == 2, "both are ready")


def pids(mount: Mount) -> list[int]:
    return mount.stats()["fetchers"]["pids"]


def fetchers(mount: Mount) -> list[int]:
    """The processes that there are, whatever the server says."""
    return processes_of(mount.path, "penstock.daemon.fetcher")


def paths_of(mount: Mount) -> list[str]:
    return [str(mount.path / name) for name in NAMES]


def read_all(mount: Mount) -> dict[str, bytes]:
    return {name: read_raw(mount.path / name) for name in NAMES}


@both_modes
def test_a_planned_epoch_is_one_get_for_each_file(own: Mounter, mode: str) -> None:
    mount = own("--mode", mode)
    before = mount.stats()
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: is_settled(mount), "all is there")
        assert plan_of(mount)["fetched"] == len(NAMES)
    stats = mount.stats()
    assert stats["fetchers"]["brought"] - before["fetchers"]["brought"] == len(NAMES)
    assert stats["store_bytes"] - before["store_bytes"] == BYTES
    assert stats["pushed_bytes"] == (BYTES if mode == "pagecache" else 0)
    assert stats["prefetched_blocks"] == len(FIRST) + len(NAMES)
    assert read_all(mount) == FILES
    assert mount.gets() == len(FIRST) + len(NAMES)
    after = mount.stats()
    assert (after["fetchers"]["in_flight"], after["fetchers"]["given_back"]) == (0, 0)
    assert after["buffered_bytes"] == after["fetching"] == 0
    assert sum(tier["used_bytes"] for tier in after["tiers"]) == after["store_bytes"]


def test_one_that_is_stopped_and_one_that_is_killed_cost_nothing_but_gets(own: Mounter) -> None:
    """Stopped, it has taken what it will never bring; killed, the server hears its end."""
    mount = own()
    for pid in pids(mount):
        os.kill(pid, signal.SIGSTOP)
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(len(NAMES)))
        wait_until(lambda: mount.stats()["fetchers"]["in_flight"] > 50, "they have taken some")
        for pid in pids(mount):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_settled(mount), "all is there")
        assert plan_of(mount)["fetched"] == len(NAMES)
    assert mount.stats()["fetchers"]["given_back"] > 50
    assert read_all(mount) == FILES
    assert mount.gets() == len(FIRST) + len(NAMES)
    stats = mount.stats()
    assert stats["errors"] == stats["buffered_bytes"] == stats["fetching"] == 0
    assert sum(tier["used_bytes"] for tier in stats["tiers"]) == stats["store_bytes"]
    wait_until(lambda: len(pids(mount)) == 2, "others are in their place")


@pytest.mark.slow  # it waits for the deadline
def test_one_that_hangs_is_replaced(own: Mounter) -> None:
    mount = own("--deadline", "6s")
    hanging = pids(mount)
    for pid in hanging:
        os.kill(pid, signal.SIGSTOP)
    assert warm(mount)["cached_percentage"] == 100
    assert read_all(mount) == FILES
    wait_until(lambda: len(pids(mount)) == 2, "others are in their place")
    assert not set(hanging) & set(pids(mount))
    wait_until(lambda: not set(hanging) & set(fetchers(mount)), "they are gone")


def test_a_store_that_fails_is_asked_again_by_the_server(proxy: FaultyProxy, own: Mounter) -> None:
    mount = own(endpoint=proxy.endpoint)
    proxy.inject({Fault.SLOW_DOWN: 0.5}, most_in_a_row=2)
    assert warm(mount)["cached_percentage"] == 100
    stats = mount.stats()
    assert stats["fetchers"]["given_back"] > 0
    assert stats["store_retries_by_kind"]["slow_down"] >= stats["fetchers"]["given_back"]
    proxy.down()
    assert read_all(mount) == FILES


def test_one_whose_keys_were_rotated_is_replaced(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "served" / "rotated", {**FIRST, **FILES})
    keys, port = tmp_path / "keys", free_port()
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_PROFILE", "default")
    served = tmp_path / "served"
    with serve_with(served, keys, port, "AKIABEFORE"):
        mount = mounter("s3://rotated", "--endpoint", f"http://127.0.0.1:{port}", *TWO)
        wait_for_both(mount)
        before = pids(mount)
    with serve_with(served, keys, port, "AKIAAFTER"):
        assert warm(mount)["cached_percentage"] == 100
        wait_until(lambda: not set(before) & set(pids(mount)), "they are of no use")
        assert read_all(mount) == FILES
        assert mount.stats()["store_reopens"] == 1


def serve_with(folder: Path, keys: Path, port: int, key: str) -> AbstractContextManager[object]:
    """An S3 server that knows one key, which is also the one that is found in a file."""
    keys.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={SECRET_KEY}\n")
    return rclone_serves("s3", folder, f"--auth-key={key},{SECRET_KEY}", port=port)


def test_those_of_a_server_that_was_replaced_and_those_of_a_mount_end_with_it(own: Mounter) -> None:
    """The server is killed, as in any hand-over; the mount has no supervisor in the end."""
    mount = own()
    before = fetchers(mount)
    assert len(before) == 2
    result = penstock("upgrade", mount.path)
    assert result.returncode == 0, result.stderr
    wait_until(lambda: not set(before) & set(fetchers(mount)), "gone with their server")
    assert warm(mount)["fetched_bytes"] == BYTES, "each byte once"
    wait_until(lambda: len(pids(mount)) == 2, "those of the next one")
    assert read_all(mount) == FILES
    assert warm(mount, "--evict")["freed_bytes"] > BYTES
    os.kill(find_note(mount.path).pid, signal.SIGKILL)
    assert len(fetchers(mount)) == 2
    with open_plan(paths_of(mount)) as plan:
        plan.extend(range(len(NAMES)))
        mount.umount()  # in the middle of their work
    wait_until(lambda: not fetchers(mount), "they ended with the mount")
