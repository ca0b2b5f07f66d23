"""Real parts for every test: an S3 server, mounts, and a state folder of their own."""

import ctypes
import fcntl
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.mounttable import FILESYSTEM_TYPE, mount_table
from tests.support.faulty_proxy import FaultyProxy
from tests.support.isolation import isolate
from tests.support.mounts import Mounter, mounting
from tests.support.s3 import KEYS, S3, serve_seaweedfs

pytest_plugins = [
    "tests.support.declared",
    "tests.support.gated_set",
    "tests.support.members",
    "tests.support.page_counts",
    "tests.support.users",
]
_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 8 << 30
_NEW_MOUNTS, _PRIVATE_BELOW, _DETACH = 0x00020000, (1 << 18) | 16384, 2


# A busy machine may stop a process for longer than the 0.2 s that an example may take by default.
settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")


def pytest_configure() -> None:
    """Keep temporary folders in memory where there is room for them.

    A new cache directory makes 256 folders: that takes 0.2 s on a disk, and 0.01 s in memory.
    """
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_sessionstart() -> None:
    _leave_others_mounts()
    # A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP: every child
    # would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _leave_others_mounts() -> None:
    """Namespaces that tests make (jobs have one) hold copies of the mounts that there are, and a
    mount does not end before its copies: those of several workers would wait for each other."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_NEW_MOUNTS) != 0:
        return
    if libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE_BELOW), None) != 0:
        raise OSError(ctypes.get_errno(), "mounts of tests would be seen by others")
    for entry in mount_table():
        if entry.kind == FILESYSTEM_TYPE:
            libc.umount2(os.fsencode(entry.mountpoint), _DETACH)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests marked `alone` last: each waits until all other workers stand still."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collections: each would take 70 ms more."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked `alone` while no other worker runs one. This wraps pytest-timeout's hook:
    a test that waits for its turn does not hang."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    shared = Path(item.config.getoption("basetemp")).parent
    with _turn(shared, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Two locks on files that the workers share: the room, in which tests are together or one is
    alone, and the gate before it. A test that waits to be alone keeps the gate, so that no other
    goes in meanwhile. The kernel releases both when a worker dies."""
    with open(folder / "gate", "a") as gate, open(folder / "room", "a") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Not left to the close: a child that was forked meanwhile has the lock too.
            fcntl.flock(room, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport]:
    """Fail a test that CI would skip, with what is missing: nobody else would run it."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own, also for the processes it starts."""
    folder = tmp_path_factory.mktemp("state")
    isolate(monkeypatch, folder)
    return folder


@pytest.fixture(scope="session")
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with serve_seaweedfs(tmp_path_factory.mktemp("s3") / "seaweedfs") as server:
        yield server


@pytest.fixture
def s3(_s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An S3 server whose keys are in the environment."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return _s3_server


@pytest.fixture
def mounter(tmp_path: Path) -> Iterator[Mounter]:
    with mounting(tmp_path) as mount:
        yield mount


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder whose pages can be dropped: other temporary folders may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultyProxy]:
    """What stands before the S3 server and passes requests on, until it is told to do worse."""
    with FaultyProxy(s3.endpoint, seed=1) as proxy:
        yield proxy
