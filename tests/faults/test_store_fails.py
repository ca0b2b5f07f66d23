"""What a reader sees of a store that fails: each fault alone, and a store that is away."""

import errno
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import S3, Mount, Mounter, write_tree
from tests.faults.kinds import PASSING, Fault
from tests.faults.proxy import FaultyProxy
from tests.kernelcaches import forget
from tests.mount.conftest import needs_passthrough
from tests.mount.test_refresh import poll

MIB = 1024 * 1024
SMALL = {f"small/{i:03}": random.Random(i).randbytes(20_000 + i) for i in range(200)}
LARGE = {f"large/{i}": random.Random(-i).randbytes(2 * MIB + i) for i in range(1, 4)}
DATA = {**SMALL, **LARGE}


def start(
    s3: S3, proxy: FaultyProxy, mounter: Mounter, *options: str,
    bucket: str = "fails", data: dict[str, bytes] = DATA,
) -> Mount:  # fmt: skip
    if not (s3.folder / bucket).exists():
        write_tree(s3.folder / bucket, data)
    return mounter(
        f"s3://{bucket}", "--endpoint", proxy.endpoint, "--block-size", "1MiB", "--prefetch", "0",
        "--refresh", "never", *options,
    )  # fmt: skip


def errno_of_read(path: Path) -> int | None:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


# -- one fault at a time ----------------------------------------------------------------


LATE = (Fault.STALL, Fault.TRICKLE)  # and nothing worse


def test_a_fault_that_passes_costs_a_retry_and_never_the_read(
    s3: S3, proxy: FaultyProxy, mounter: Mounter
) -> None:
    data = {f"{fault.name}/small": SMALL["small/001"] for fault in PASSING}
    data |= {f"{fault.name}/large": LARGE["large/1"] for fault in PASSING}
    mount = start(s3, proxy, mounter, "--deadline", "30s", bucket="passing", data=data)
    # What is late comes first, before it is known how long a request takes: it is not overtaken.
    for fault in sorted(PASSING, key=lambda fault: fault not in LATE):
        before, injected_before = mount.stats(), proxy.injected
        proxy.script([fault, fault], wait_s=0.1)
        assert (mount.path / fault.name / "small").read_bytes() == SMALL["small/001"]
        proxy.script([fault, None, fault], wait_s=0.1)
        assert (mount.path / fault.name / "large").read_bytes() == LARGE["large/1"]
        proxy.calm()
        injected = proxy.injected - injected_before
        assert set(injected) == {fault}
        stats = mount.stats()
        assert (stats["errors"], stats["hedges"]) == (0, 0), fault
        retries = stats["store_retries"] - before["store_retries"]
        assert retries == (0 if fault in LATE else injected[fault]), fault
        mismatches = stats["store_mismatches"] - before["store_mismatches"]
        assert mismatches == (injected[fault] if fault is Fault.FLIPPED else 0), fault


def test_keys_that_expired_are_read_again(s3: S3, proxy: FaultyProxy, mounter: Mounter) -> None:
    mount = start(s3, proxy, mounter)
    assert (mount.path / "small/001").read_bytes() == SMALL["small/001"]
    proxy.script([Fault.EXPIRED_TOKEN])
    assert (mount.path / "small/002").read_bytes() == SMALL["small/002"]
    assert proxy.injected == {Fault.EXPIRED_TOKEN: 1}
    assert mount.stats()["errors"] == 0


def test_a_clock_that_is_wrong_is_an_error_until_it_is_right(
    s3: S3, proxy: FaultyProxy, mounter: Mounter
) -> None:
    mount = start(s3, proxy, mounter, "--deadline", "2s")
    proxy.inject({Fault.CLOCK_SKEW: 1})
    assert errno_of_read(mount.path / "small/001") in (errno.EIO, errno.EACCES)
    proxy.calm()
    assert poll(lambda: errno_of_read(mount.path / "small/001") is None)
    assert (mount.path / "small/001").read_bytes() == SMALL["small/001"]


def test_a_request_that_hangs_is_overtaken_by_a_second_one(
    s3: S3, proxy: FaultyProxy, mounter: Mounter
) -> None:
    mount = start(s3, proxy, mounter, "--deadline", "20s")
    names = list(SMALL)
    for name in names[:150]:  # how long a request takes is learned first
        assert (mount.path / name).read_bytes() == SMALL[name]
    assert poll(lambda: mount.gets() == 150)  # no second request is still on its way
    before = mount.stats()
    proxy.script([Fault.STALL], wait_s=3600)
    assert (mount.path / names[150]).read_bytes() == SMALL[names[150]]
    after = mount.stats()
    assert after["hedges"] - before["hedges"] == 1
    assert after["hedges_won"] - before["hedges_won"] == 1
    assert after["errors"] == 0


# -- a store that is away ---------------------------------------------------------------


@contextmanager
def back_at_the_end(proxy: FaultyProxy) -> Iterator[None]:
    """Whatever comes of the test, nobody is left waiting."""
    try:
        yield
    finally:
        proxy.up()
        proxy.calm()


@pytest.mark.parametrize(
    ("mode", "how"),
    [("pagecache", "refuses"), pytest.param("passthrough", "hangs", marks=needs_passthrough)],
)
def test_a_store_that_is_away_gives_eio_at_the_deadline_and_cached_files_go_on(
    s3: S3, proxy: FaultyProxy, mounter: Mounter, mode: str, how: str
) -> None:
    mount = start(s3, proxy, mounter, "--mode", mode, "--deadline", "2s")
    cached = [*list(SMALL)[:50], "large/1"]
    for name in cached:
        assert (mount.path / name).read_bytes() == DATA[name]
    mount.stats()  # waits for what is on its way into the cache
    pid = mount.stats()["pid"]
    if how == "refuses":
        proxy.down()
    else:
        proxy.inject({Fault.STALL: 1}, wait_s=3600)
    away = [*list(SMALL)[100:180], "large/2"]  # more than there are threads to wait in
    with ThreadPoolExecutor(len(away)) as readers, back_at_the_end(proxy):
        errors = readers.map(errno_of_read, [mount.path / name for name in away])
        for _ in range(3):
            forget(mount.path)
            for name in cached:
                assert (mount.path / name).read_bytes() == DATA[name]
        assert set(errors) == {errno.EIO}
    assert mount.stats()["errors_by_name"].keys() == {"EIO"}
    for name, data in DATA.items():
        # What failed a moment ago may be told again once, without asking the store.
        assert poll(lambda name=name: errno_of_read(mount.path / name) is None)
        assert (mount.path / name).read_bytes() == data
    assert mount.stats()["pid"] == pid


def test_a_store_that_is_away_for_less_than_the_deadline_is_not_noticed(
    s3: S3, proxy: FaultyProxy, mounter: Mounter
) -> None:
    mount = start(s3, proxy, mounter, "--deadline", "30s")
    proxy.down()
    with ThreadPoolExecutor(8) as readers, back_at_the_end(proxy):
        found = readers.map(lambda name: (mount.path / name).read_bytes(), list(SMALL)[:8])
        assert poll(lambda: mount.stats()["store_retries"] > 0)
        proxy.up()
        assert list(found) == list(SMALL.values())[:8]
    assert mount.stats()["errors"] == 0
