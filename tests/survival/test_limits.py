"""Memory and descriptors are bounded, whatever the load."""

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import supervisor_socket
from penstock.warm.prefetcher import MOST_IN_FLIGHT
from tests.support.mounts import Mount, Mounter, penstock
from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

MIB = 1 << 20
FILES = {f"{n}.bin": random.Random(n).randbytes(3 * MIB + n) for n in range(48)}


def read_around_the_page_cache(mount: Mount, name: str) -> bool:
    descriptor = os.open(mount.path / name, os.O_RDONLY)
    try:
        data = b"".join(os.pread(descriptor, MIB, at) for at in range(0, 4 * MIB, MIB))
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return data == FILES[name]
    finally:
        os.close(descriptor)


def peak_bytes(pid: int) -> int:
    """The most that the process has ever held."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.slow
def test_memory_and_descriptors_stay_within_their_limits_under_load(
    s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("limits"), FILES)
    mount = mounter(
        "s3://limits",
        "--endpoint",
        s3.endpoint,
        "--no-cache",
        "--memory",
        "192MiB",
        "--block-size",
        "4MiB",
        "--threads",
        "64",
    )
    with ThreadPoolExecutor(48) as readers:
        assert all(readers.map(lambda name: read_around_the_page_cache(mount, name), FILES))
    stats = mount.stats()
    assert stats["memory_limit_bytes"] == 192 * MIB
    assert peak_bytes(stats["pid"]) <= 192 * MIB
    assert stats["descriptors"] <= stats["descriptor_limit"]
    assert stats["restarts"] == 0, "it was held by the buffers, not by a restart"


def test_a_server_over_its_memory_limit_is_replaced(tmp_path: Path, mounter: Mounter) -> None:
    write_tree(tmp_path / "set", {"a": b"a"})
    mount = mounter(f"file://{tmp_path}/set", "--watchdog", "2s")
    # Less than the interpreter needs, as if something leaked. The command line refuses that.
    supervisor = supervisor_socket(mount.path)
    settings = {**ask(supervisor, "settings")["settings"], "memory_bytes": 8 * MIB}
    ask(supervisor, "upgrade", settings=settings, python=sys.executable, environment={})
    message = "more than --memory allows"
    wait_until(lambda: message in (mount.stats()["last_end"] or ""), "replaced")
    assert (mount.path / "a").read_bytes() == b"a"


@pytest.mark.parametrize("memory", ["100MiB", "0"])
def test_too_little_memory_is_rejected(tmp_path: Path, memory: str) -> None:
    result = penstock("mount", f"file://{tmp_path}", tmp_path / "mnt", "-b", "--memory", memory)
    assert (result.returncode, "not enough" in result.stderr) == (2, True)
    assert "hint: give at least" in result.stderr


def test_a_load_with_all_its_threads_stays_within_the_descriptor_limit(
    tmp_path: Path, mounter: Mounter
) -> None:
    write_tree(tmp_path / "set", {f"{n}": bytes([n % 256]) * 2000 for n in range(500)})
    mount = mounter(f"file://{tmp_path}/set")
    stats = mount.stats()
    # Each thread of a plan has the catalog and the cache open, and a connection.
    assert stats["descriptor_limit"] >= stats["descriptors"] + 7 * MOST_IN_FLIGHT
    assert penstock("warm", mount.path).returncode == 0
    stats = mount.stats()
    assert stats["cached_bytes"] == stats["bytes"]
    assert stats["descriptors"] <= stats["descriptor_limit"]
    assert stats["restarts"] == 0
