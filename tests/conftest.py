"""Real parts for every test: an S3 server, mounts, and a state folder of their own."""

import gc
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.s3server import free_port
from penstock.cli.stats import ask_stats
from penstock.store import secrets
from tests.namespaces import leave_others_mounts
from tests.turns import turn

pytest_plugins = ["tests.taken_back"]
ACCESS_KEY, SECRET_KEY = "AKIAPENSTOCKTEST", "a-secret-for-loopback-only"


def pytest_sessionstart() -> None:
    leave_others_mounts()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that want to be alone come last: each of them waits until all others have ended, and
    four workers that stand still are dear."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def pytest_collection_finish() -> None:
    """What is there by now stays: who collects garbage later need not look at it (70 ms)."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where several workers run tests, one marked `alone` runs while no other does. Outside of
    pytest-timeout's hook: waiting for one's turn is not a test that hangs."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    shared = Path(item.config.getoption("basetemp")).parent
    with turn(shared, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport]:
    """A test that CI skips is a test that nobody runs: there it fails, with what is missing."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped in CI: {report.longrepr}"
    return report


def isolate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on a folder is the state, and nothing of this machine's own is seen."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "OSS_", "BOS_", "BCE_", "GOOGLE_", "AZURE_", "PENSTOCK_")):
            patch.delenv(name)
    patch.setenv("PENSTOCK_STATE_DIR", str(folder))
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # What an earlier test called a secret, such as "secret", would be cut out of words of this one.
    patch.setattr(secrets, "_known", ())
    patch.setenv("HOME", str(folder))


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees this machine's own state, credentials or configuration."""
    folder = tmp_path_factory.mktemp("state")
    isolate(monkeypatch, folder)
    return folder


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended by itself"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the server did not answer within 60 s")


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, process)
        yield
    finally:
        process.terminate()
        process.wait(20)


def rclone() -> str:
    beside = Path(sys.executable).parent / "rclone"
    return str(beside) if beside.exists() else shutil.which("rclone") or "rclone"


@dataclass(frozen=True)
class S3:
    """A real S3 server (rclone) over a folder: a sub-folder is a bucket, a file an object."""

    endpoint: str
    folder: Path

    def bucket(self, name: str) -> Path:
        path = self.folder / name
        if path.exists():
            shutil.rmtree(path)  # of the same test, which is run again
        path.mkdir()
        return path


def serve_s3(folder: Path) -> Iterator[S3]:
    """A server of one's own, for tests that leave uploads unfinished: rclone's then spins, and
    would take a core from all tests that follow."""
    port = free_port()
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    address = f"127.0.0.1:{port}"
    # Nothing is cached by the server: what a test changes in the folder is there at once.
    command = [rclone(), "serve", "s3", "--auth-key", keys, "--addr", address,
               "--vfs-cache-mode", "off", "--dir-cache-time", "0s",
               "--poll-interval", "0", str(folder)]  # fmt: skip
    with running(command, port):
        yield S3(f"http://{address}", folder)


@pytest.fixture(scope="session")
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serve_s3(tmp_path_factory.mktemp("s3"))


@pytest.fixture
def s3(_s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return _s3_server


def penstock(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command, as a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        capture_output=True, text=True, timeout=100, check=False, **options,
    )  # fmt: skip


@dataclass
class Mount:
    path: Path
    arguments: tuple[str | Path, ...] = ()
    said: str = ""
    _mounted: bool = field(default=True)

    def stats(self) -> dict[str, Any]:
        """What `penstock stats -o json` prints, without the start of a process: tests ask often.
        Between two servers it would be the little that the supervisor knows: waits for the next.
        """
        deadline = time.monotonic() + 60
        while (found := ask_stats(str(self.path))).get("state") == "restarting":
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        return found

    def messages_while(self, act: Callable[[], object]) -> Counter[str]:
        """What the kernel sends to the server while `act` runs: of three times, the least.

        It may take a page back at any moment, unasked (DAMON, somebody's drop_caches): seen as two
        READs more in one epoch. What comes from what we do comes each time.
        """
        found: list[Counter[str]] = []
        for _ in range(3):
            before = Counter(self.stats()["requests"])
            act()
            found.append(Counter(self.stats()["requests"]) - before)
        return min(found, key=Counter.total)

    def wait_until_cached(self, name: str) -> None:
        """A reader has its bytes before the cache has them."""
        size = (self.path / name).stat().st_size
        deadline = time.monotonic() + 30
        while int(os.getxattr(self.path / name, "user.penstock.cached")) < size:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def gets(self) -> int:
        """Without the second ones for what was slow, as it may be on a busy machine."""
        return gets_in(self.stats())

    def refresh(self) -> None:
        assert penstock("refresh", self.path).returncode == 0

    def umount(self) -> None:
        if self._mounted:
            result = penstock("umount", self.path)
            assert result.returncode == 0, result.stderr
            self._mounted = False


def gets_in(stats: Mapping[str, Any]) -> int:
    return stats["store_requests_by_verb"].get("get", 0) - stats["hedges"]


Mounter = Callable[..., Mount]


@contextmanager
def mounting(folder: Path) -> Iterator[Mounter]:
    """mounter(source, *options) mounts in the background; everything is unmounted at the end."""
    with ExitStack() as stack:
        count = 0

        def mount(source: str, *options: str | Path) -> Mount:
            nonlocal count
            count += 1
            path = folder / f"mnt{count}"
            path.mkdir()
            arguments = (source, path, "-b", *options)
            if not any(str(option).startswith(("--tier", "--cache-dir", "--no-cache"))
                       for option in options):  # fmt: skip
                arguments += ("--cache-dir", folder / "cache")
            result = penstock("mount", *arguments)
            assert result.returncode == 0, result.stderr
            mounted = Mount(path, arguments, result.stderr)
            stack.callback(mounted.umount)
            return mounted

        yield mount


@pytest.fixture
def mounter(tmp_path: Path) -> Iterator[Mounter]:
    with mounting(tmp_path) as mount:
        yield mount


def write_tree(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
