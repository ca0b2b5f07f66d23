"""What a reader sees of a store that fails: each fault alone, and a store that is away."""

import errno
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.faults import PASSING, Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kernelcaches import forget
from tests.support.mounts import Mount, Mounter
from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

MIB = 1024 * 1024
SMALL, LARGE = random.Random(1).randbytes(20_000), random.Random(2).randbytes(2 * MIB + 1)
CACHED = {f"cached/{i}": random.Random(i).randbytes(20_000 + i) for i in range(10)}
# More than there are threads to wait in.
AWAY = {f"away/{i:02}": random.Random(i).randbytes(30_000 + i) for i in range(80)}
LATE = (Fault.STALL, Fault.TRICKLE)  # and nothing worse


@pytest.fixture(scope="module")
def source(_s3_server: S3) -> str:
    bucket = _s3_server.bucket("fails")
    write_tree(bucket, {f"{fault.name}/small": SMALL for fault in PASSING})
    write_tree(bucket, {f"{fault.name}/large": LARGE for fault in PASSING})
    write_tree(bucket, CACHED | AWAY)
    return bucket.source


def start(source: str, proxy: FaultyProxy, mounter: Mounter, deadline: str) -> Mount:
    return mounter(
        source, "--endpoint", proxy.endpoint, "--block-size", "1MiB", "--prefetch", "0",
        "--refresh", "never", "--deadline", deadline,
    )  # fmt: skip


def errno_of_read(path: Path) -> int | None:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


def test_a_fault_that_passes_costs_a_retry_and_never_the_read(
    source: str, proxy: FaultyProxy, mounter: Mounter
) -> None:
    mount = start(source, proxy, mounter, "30s")
    # What is late comes first, before it is known how long a request takes: it is not overtaken.
    for fault in sorted(PASSING, key=lambda fault: fault not in LATE):
        before, injected_before = mount.stats(), proxy.injected
        proxy.script([fault, fault], wait_s=0.1)
        assert (mount.path / fault.name / "small").read_bytes() == SMALL
        proxy.script([fault, None, fault], wait_s=0.1)
        assert (mount.path / fault.name / "large").read_bytes() == LARGE
        proxy.calm()
        injected = proxy.injected - injected_before
        assert set(injected) == {fault}
        stats = mount.stats()
        assert (stats["errors"], stats["hedges"]) == (0, 0), fault
        retries = stats["store_retries"] - before["store_retries"]
        assert retries == (0 if fault in LATE else injected[fault]), fault
        mismatches = stats["store_mismatches"] - before["store_mismatches"]
        assert mismatches == (injected[fault] if fault is Fault.FLIPPED else 0), fault


def test_keys_that_expired_are_read_again(
    source: str, proxy: FaultyProxy, mounter: Mounter
) -> None:
    mount = start(source, proxy, mounter, "30s")
    assert (mount.path / "cached/1").read_bytes() == CACHED["cached/1"]
    proxy.script([Fault.EXPIRED_TOKEN])
    assert (mount.path / "cached/2").read_bytes() == CACHED["cached/2"]
    assert proxy.injected == {Fault.EXPIRED_TOKEN: 1}
    assert mount.stats()["errors"] == 0


def test_a_store_that_is_away_gives_eio_at_the_deadline_and_cached_files_go_on(
    source: str, proxy: FaultyProxy, mounter: Mounter
) -> None:
    """Here it refuses connections; tests/mount/test_failing_store.py has one that hangs."""
    mount = start(source, proxy, mounter, "2s")
    for name, data in CACHED.items():
        assert (mount.path / name).read_bytes() == data
        mount.wait_until_cached(name)
    pid = mount.stats()["pid"]
    proxy.down()
    with ThreadPoolExecutor(len(AWAY)) as readers:
        errors = readers.map(errno_of_read, [mount.path / name for name in AWAY])
        for _ in range(3):
            forget(mount.path)
            for name, data in CACHED.items():
                assert (mount.path / name).read_bytes() == data
        assert set(errors) == {errno.EIO}
    assert mount.stats()["errors_by_name"].keys() == {"EIO"}
    proxy.up()
    for name, data in AWAY.items():
        # What failed a moment ago may be told again once, without asking the store.
        wait_until(lambda name=name: errno_of_read(mount.path / name) is None)
        assert (mount.path / name).read_bytes() == data
    assert mount.stats()["pid"] == pid
