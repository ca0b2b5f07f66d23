"""What the model test acts on: a bucket that is a plain folder, its mount, and the faulty proxy.

One world serves many examples; each works in a folder of its own. One thread.
"""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.daemon.control import RemoteError, ask
from penstock.daemon.registry import find_note
from penstock.errors import PenstockError
from tests.conftest import Mount
from tests.faults.kinds import PASSING
from tests.faults.proxy import FaultyProxy
from tests.kernelcaches import drop_pages, forget

_MAP = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sys.stdout.buffer.write(bytes(pages))  # touched here: write(2) itself would give EFAULT
"""
_PATIENCE_S = 30


@dataclass
class World:
    bucket: Path
    mount: Mount
    proxy: FaultyProxy
    cache: Path
    mode: str
    examples: int = 0
    # Each costs a deadline: a run has time for a few.
    outages_left: int = 2
    killed: set[int] = field(default_factory=lambda: set[int]())

    def next_folder(self) -> str:
        self.examples += 1
        return f"example{self.examples}"

    # -- upstream -------------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> None:
        path = self.bucket / name
        with self.proxy.unchanging():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def delete(self, name: str) -> None:
        """The file, and the folders that only it kept: a bucket has none that are empty."""
        path = self.bucket / name
        with self.proxy.unchanging():
            path.unlink()
            for folder in path.parents:
                if folder == self.bucket or any(folder.iterdir()):
                    break
                folder.rmdir()

    def clear(self, folder: str) -> None:
        with self.proxy.unchanging():
            shutil.rmtree(self.bucket / folder, ignore_errors=True)

    # -- the mount ------------------------------------------------------------------------

    def ask(self, verb: str) -> dict[str, Any]:
        """As the commands do, without the start of a process; a server that was just killed is
        waited for."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask(find_note(self.mount.path).socket_path, verb)
            except RemoteError:
                raise
            except PenstockError:
                if not self.killed or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def kill_server(self) -> None:
        """If there is one that was not killed yet: it may be the second kill in a row."""
        pid = find_note(self.mount.path).server_pid
        if pid is not None and pid not in self.killed:
            os.kill(pid, signal.SIGKILL)
            self.killed.add(pid)

    def drop_kernel_pages(self, paths: Iterable[Path], held: Iterable[int]) -> None:
        """Those of the files with these names, as far as the kernel knows them, and of those that
        are held open by whatever name."""
        # In passthrough an open is a message; but there the pages are those of the cache's files.
        drop_pages(paths if self.mode == "pagecache" else self._cached_files())
        for descriptor in held:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def drop_kernel_names(self) -> None:
        forget(self.mount.path)

    def wait_while_eio(self, path: Path) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                path.read_bytes()
            except OSError as error:
                if error.errno != errno.EIO:
                    return
                assert time.monotonic() < deadline, "the store is back, and reads fail on"
                time.sleep(0.05)
            else:
                return

    # -- trouble --------------------------------------------------------------------------

    def start_faults(self, seed: int) -> None:
        self.proxy.seed = seed
        rates = dict.fromkeys(PASSING, 0.3 / len(PASSING))
        self.proxy.inject(rates, wait_s=0.05, most_in_a_row=2)

    def flip_bits_in_the_cache(self, chance: random.Random) -> None:
        for path in self._some_cached_files(chance):
            with suppress(FileNotFoundError), open(path, "r+b") as file:
                if size := os.fstat(file.fileno()).st_size:
                    at = chance.randrange(size)
                    file.seek(at)
                    (byte,) = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte ^ 1 << chance.randrange(8)]))

    def cut_files_in_the_cache(self, chance: random.Random) -> None:
        for path in self._some_cached_files(chance):
            with suppress(FileNotFoundError), open(path, "r+b") as file:
                file.truncate(chance.randrange(os.fstat(file.fileno()).st_size + 1))

    def _some_cached_files(self, chance: random.Random) -> list[Path]:
        """Half of them; the server may take any away meanwhile."""
        return [path for path in self._cached_files() if chance.random() < 0.5]

    def _cached_files(self) -> list[Path]:
        walk = list(os.walk(self.cache / "objects"))
        return [Path(folder, name) for folder, _, names in walk for name in sorted(names)]

    def delete_the_cache(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)


def read_mapped(path: Path) -> bytes:
    """The file's bytes by mmap, in a process of its own: a page that cannot be had is a SIGBUS."""
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _MAP, path], capture_output=True, check=False
    )
    if result.returncode == -signal.SIGBUS:
        raise BusError
    if b"cannot mmap an empty file" in result.stderr:
        return b""
    for kind in (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        if kind.__name__.encode() in result.stderr:
            raise kind
    if b"OSError: [Errno " in result.stderr:
        number = int(result.stderr.split(b"OSError: [Errno ")[1].split(b"]")[0])
        raise OSError(number, os.strerror(number))
    assert result.returncode == 0, result.stderr
    return result.stdout


class BusError(Exception):
    """A mapped page could not be read."""
