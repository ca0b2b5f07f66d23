"""What readers and real programs see of a store that fails; and what the soak found."""

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.daemon.mount_registry import find_note
from tests.support.faults import LIES, PASSING, Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kernelcaches import drop_pages, forget
from tests.support.mounts import MODES, Mount, Mounter
from tests.support.s3 import S3
from tests.support.trees import read_or_errno, read_tree, write_tree
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
        source,
        "--endpoint",
        proxy.endpoint,
        "--block-size",
        "1MiB",
        "--prefetch",
        "0",
        "--refresh",
        "never",
        "--deadline",
        deadline,
    )


def test_a_transient_fault_costs_a_retry_and_never_the_read(
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


def test_an_answer_that_no_honest_server_gives_is_rejected(
    source: str, proxy: FaultyProxy, mounter: Mounter
) -> None:
    mount = start(source, proxy, mounter, "30s")
    for number, fault in enumerate(LIES):
        before = proxy.injected
        name = f"{PASSING[number].name}/{'large' if fault is Fault.OTHER_RANGE else 'small'}"
        proxy.script([fault, fault])
        data = LARGE if fault is Fault.OTHER_RANGE else SMALL
        assert (mount.path / name).read_bytes() == data, fault
        assert set(proxy.injected - before) == {fault}
        proxy.calm()
    assert mount.stats()["errors"] == 0


def test_expired_keys_are_read_again(source: str, proxy: FaultyProxy, mounter: Mounter) -> None:
    mount = start(source, proxy, mounter, "30s")
    assert (mount.path / "cached/1").read_bytes() == CACHED["cached/1"]
    proxy.script([Fault.EXPIRED_TOKEN])
    assert (mount.path / "cached/2").read_bytes() == CACHED["cached/2"]
    assert proxy.injected == {Fault.EXPIRED_TOKEN: 1}
    stats = mount.stats()
    assert (stats["errors"], stats["store_reopens"]) == (0, 1)


def test_an_unreachable_store_gives_eio_at_the_deadline_while_cached_files_work(
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
        errors = readers.map(read_or_errno, [mount.path / name for name in AWAY])
        for _ in range(3):
            forget(mount.path)
            for name, data in CACHED.items():
                assert (mount.path / name).read_bytes() == data
        assert set(errors) == {errno.EIO}
    assert mount.stats()["errors_by_name"].keys() == {"EIO"}
    proxy.up()
    for name, data in AWAY.items():
        # What failed a moment ago may be told again once, without asking the store.
        wait_until(lambda name=name, data=data: read_or_errno(mount.path / name) == data)
    assert mount.stats()["pid"] == pid


# -- what the soak found, each as small as it can be ---------------------------------------


def test_reading_past_the_end_of_a_shortened_file_gives_estale(s3: S3, mounter: Mounter) -> None:
    bucket = s3.bucket("shorter")
    write_tree(bucket, {"file": LARGE})
    mount = mounter(
        "s3://shorter",
        "--endpoint",
        s3.endpoint,
        "--block-size",
        "1MiB",
        "--prefetch",
        "0",
        "--refresh",
        "never",
    )
    descriptor = os.open(mount.path / "file", os.O_RDONLY)
    try:
        assert os.pread(descriptor, 10, 0) == LARGE[:10]
        write_tree(bucket, {"file": LARGE[: MIB // 2]})
        with pytest.raises(OSError, match="Stale") as caught:
            os.pread(descriptor, 10, 3 * MIB // 2)
        assert caught.value.errno == errno.ESTALE
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_read_of_deleted_bytes_fails_and_is_not_short(
    s3: S3, mounter: Mounter, workers: str
) -> None:
    bucket = s3.bucket(f"half-gone-{workers}")
    write_tree(bucket, {"file": LARGE})
    mount = mounter(
        bucket.source,
        "--endpoint",
        s3.endpoint,
        "--block-size",
        "128KiB",
        "--prefetch",
        "0",
        "--refresh",
        "never",
        "--workers",
        workers,
    )
    descriptor = os.open(mount.path / "file", os.O_RDONLY)

    def read_a_page() -> bool:
        """Read the first one; its block, and no other, is fetched unless it is cached."""
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        with suppress(OSError):
            return os.pread(descriptor, 4096, 0) == LARGE[:4096]
        return False

    try:
        assert read_a_page()
        wait_until(lambda: mount.stats()["cached_bytes"] == 128 * 1024)
        write_tree(bucket, {"file": LARGE[::-1]})
        drop_pages([mount.path / "file"])
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)
        with pytest.raises(OSError, match="Stale"):
            os.pread(descriptor, 300_000, 0)
        # What the kernel holds it hands out first; what follows is an error, and never the end.
        wait_until(read_a_page)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)
        got = os.pread(descriptor, 300_000, 0)
        assert got == LARGE[: len(got)]
        assert 4096 <= len(got) <= 128 * 1024
        with pytest.raises(OSError, match="Stale"):
            os.pread(descriptor, 300_000, len(got))
        with open(descriptor, "rb", closefd=False) as file, pytest.raises(OSError, match="Stale"):
            file.read()  # who reads to the end, as most programs do, is told
    finally:
        os.close(descriptor)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "test", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(ballast: Path) -> None:
    """Until not one page more is to be had."""
    with open(ballast, "wb", 0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_server_killed_while_the_disk_of_its_cache_is_full_is_replaced_at_once(
    small_disk: Path, s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("full-disk"), {"first": SMALL, "second": LARGE})
    mount = mounter(
        "s3://full-disk",
        "--endpoint",
        s3.endpoint,
        "--cache-dir",
        small_disk / "cache",
        "--cache-size",
        "3MiB",
    )
    assert (mount.path / "first").read_bytes() == SMALL
    fill(small_disk / "ballast")
    pid = find_note(mount.path).server_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert (mount.path / "second").read_bytes() == LARGE
    wait_until(lambda: find_note(mount.path).server_pid not in (None, pid), "no new server")
    assert find_note(mount.path).restarts == 1


# -- real programs: they end well, with the right bytes -------------------------------------

SAMPLES = {
    f"n{i // 20:04}/img{i:05}.jpg": random.Random(i).randbytes(3_000 + 331 * i) for i in range(60)
}
# Fetched block by block, as ranges: what a range lacks is its own kind of trouble.
BLOCKS = {f"large/{i}.bin": random.Random(-i).randbytes(3 * 1024 * 1024 + i) for i in range(1, 3)}
DATA = {**SAMPLES, **BLOCKS}
SHARE = 0.18  # of all requests for data; every kind alike

# Each program in one mode, and in each mode two programs.
in_pagecache = pytest.mark.parametrize("failing", MODES[:1], indirect=True)
in_passthrough = pytest.mark.parametrize("failing", MODES[1:], indirect=True)


@pytest.fixture(scope="module")
def programs(_s3_server: S3) -> str:
    bucket = _s3_server.bucket("programs")
    write_tree(bucket, DATA)
    return bucket.source


@pytest.fixture
def failing(
    request: pytest.FixtureRequest, programs: str, proxy: FaultyProxy, mounter: Mounter
) -> Iterator[Mount]:
    """A mount of DATA, nothing of it cached yet, behind a store that fails all the time."""
    mode: str = request.param
    mount = mounter(
        programs,
        "--endpoint",
        proxy.endpoint,
        "--mode",
        mode,
        "--block-size",
        "1MiB",
        "--deadline",
        "60s",
    )
    proxy.inject(dict.fromkeys(PASSING, SHARE / len(PASSING)), wait_s=0.2)
    yield mount
    assert proxy.injected.total() > 5, "nothing failed: this has shown nothing"
    stats = mount.stats()
    assert stats["errors"] == 0
    assert stats["store_retries"] > 0


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@in_pagecache
def test_rsync_by_checksum_copies_everything_while_the_store_fails(
    failing: Mount, tmp_path: Path
) -> None:
    command = ("rsync", "-a", "-c", "--itemize-changes", f"{failing.path}/", f"{tmp_path}/to/")
    assert sum(line.startswith(">f") for line in run(*command).splitlines()) == len(DATA)
    assert read_tree(tmp_path / "to") == DATA
    assert run(*command) == ""


@in_passthrough
def test_tar_packs_everything_while_the_store_fails(failing: Mount, tmp_path: Path) -> None:
    run("tar", "cf", tmp_path / "packed.tar", "-C", failing.path, ".")
    (tmp_path / "to").mkdir()
    run("tar", "xf", tmp_path / "packed.tar", "-C", tmp_path / "to")
    assert read_tree(tmp_path / "to") == DATA


@pytest.mark.slow
@in_pagecache
def test_sha256sum_matches_for_every_file_while_the_store_fails(
    failing: Mount, tmp_path: Path
) -> None:
    sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in DATA.items()]
    (tmp_path / "sums").write_text("".join(sums))
    output = run("sha256sum", "--strict", "-c", tmp_path / "sums", cwd=failing.path)
    assert output.splitlines() == [f"{name}: OK" for name in DATA]


@pytest.mark.slow
@in_passthrough
def test_a_pytorch_loader_reads_every_sample_while_the_store_fails(failing: Mount) -> None:
    script = Path(__file__).parent / "train.py"
    output = run(sys.executable, "-W", "error", script, failing.path)
    epoch = {name: hashlib.sha256(data).hexdigest() for name, data in SAMPLES.items()}
    assert json.loads(output) == [epoch, epoch]
