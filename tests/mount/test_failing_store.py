"""The store fails under a mount: what is cached is served, the rest comes late or as EIO."""

import errno
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.faults import Answer, End, Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kernelcaches import forget
from tests.support.liar import Liar, Request, Steps, md5, serve_liar
from tests.support.mounts import Mount, Mounter, both_modes
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_or_errno, write_tree
from tests.support.waiting import wait_until

DEADLINE_S = 3
READERS = 40  # more than threads
CACHED = {f"cached/{i}": random.Random(i).randbytes(30_000 + i) for i in range(10)}
COLD = {f"cold/{i:03}": random.Random(i).randbytes(20_000 + i) for i in range(100)}
LARGE = random.Random(7).randbytes(3 * 1024 * 1024 + 17)


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, {**CACHED, **COLD, "large": LARGE})
    return empty_bucket


@pytest.fixture
def mount(proxy: FaultyProxy, bucket: ObjectPath, mounter: Mounter) -> Mounter:
    options = ("--endpoint", proxy.endpoint, "--deadline", f"{DEADLINE_S}s", "--refresh", "never")
    return lambda *more: mounter(bucket.source, *options, *more)


def reads(mounted: Mount) -> int:
    return mounted.stats()["requests"].get("READ", 0)


@both_modes
def test_cached_files_are_served_while_every_other_read_hangs_until_eio(
    proxy: FaultyProxy, mount: Mounter, mode: str
) -> None:
    mounted = mount("--mode", mode, "--threads", "4")
    for name, data in CACHED.items():
        assert read_or_errno(mounted.path / name) == data
        mounted.wait_until_cached(name)
    forget(mounted.path)
    before = reads(mounted)
    proxy.inject({Fault.STALL: 1.0}, wait_s=600)
    hangs_since_s = time.monotonic()
    with ThreadPoolExecutor(READERS) as readers:
        stuck: list[Future[bytes | int | None]] = [
            readers.submit(read_or_errno, mounted.path / name) for name in [*COLD][:READERS]
        ]
        # In passthrough each of these is opened and verified now; in page-cache mode, read by us.
        wait_until(lambda: reads(mounted) >= before + READERS)
        for name, data in CACHED.items():
            assert read_or_errno(mounted.path / name) == data
        ended = any(future.done() for future in stuck)
        assert not ended or time.monotonic() - hangs_since_s >= DEADLINE_S, "it does not even hang"
        assert [future.result(60) for future in stuck] == [errno.EIO] * READERS
    assert mounted.stats()["errors_by_name"].keys() == {"EIO"}
    proxy.calm()
    wait_until(lambda: read_or_errno(mounted.path / "cold/000") == COLD["cold/000"])
    assert read_or_errno(mounted.path / "large") == LARGE


def test_a_store_outage_within_the_deadline_costs_only_time(
    proxy: FaultyProxy, mount: Mounter
) -> None:
    mounted = mount("--deadline", "60s")
    proxy.down()
    with ThreadPoolExecutor(16) as readers:
        waiting = [readers.submit(read_or_errno, mounted.path / name) for name in [*COLD][:16]]
        large = readers.submit(read_or_errno, mounted.path / "large")
        wait_until(lambda: mounted.stats()["store_retries"] >= 40)
        proxy.up()
        assert [future.result(60) for future in waiting] == [*COLD.values()][:16]
        assert large.result(60) == LARGE
    stats = mounted.stats()
    assert stats["errors"] == 0
    assert set(stats["store_retries_by_kind"]) <= {"reset", "refused", "other", "short_body"}


def test_a_stuck_request_is_overtaken_by_a_hedge(proxy: FaultyProxy, mount: Mounter) -> None:
    # What is slow is known after a hundred requests, to each worker by itself.
    mounted = mount("--deadline", "60s", "--no-cache", "--workers", "1")
    for name, data in [*[*COLD.items()][1:], *CACHED.items()]:
        assert read_or_errno(mounted.path / name) == data
    reads = len(COLD) - 1 + len(CACHED)
    wait_until(lambda: mounted.gets() == reads)  # no second request is still on its way
    before = mounted.stats()
    proxy.script([Fault.STALL], wait_s=600)
    assert read_or_errno(mounted.path / "cold/000") == COLD["cold/000"]
    # The reader has its bytes before the win is counted.
    wait_until(lambda: mounted.stats()["hedges_won"] > before["hedges_won"])
    stats = mounted.stats()
    assert stats["hedges"] == before["hedges"] + 1
    assert stats["store_retries"] == 0


def test_a_body_that_is_always_wrong_gives_eio_and_both_digests_are_logged(
    mounter: Mounter, state: Path, s3: S3
) -> None:
    right, wrong = b"right", b"wrong"
    with serve_liar() as liar:
        liar.objects = {"bad": right, "good": right}

        def lie(_liar: Liar, request: Request, truth: Answer) -> Steps:
            body = wrong if request.path == "/b/bad" else truth.body
            return (truth.head(), body, End.KEEP)

        liar.lie = lie
        options = ("--endpoint", liar.endpoint, "--deadline", "4s", "--verify-store", "always")
        mount = mounter("s3://b", *options)
        for _ in range(2):
            assert read_or_errno(mount.path / "bad") == errno.EIO
            assert read_or_errno(mount.path / "good") == right
        assert mount.stats()["store_mismatches"] > 2
        (log,) = (state / "logs").glob("*.log")
        assert f"have the MD5 {md5(wrong)}, but the ETag is {md5(right)}" in log.read_text()
        liar.lie = None
        wait_until(lambda: read_or_errno(mount.path / "bad") == right)
