"""What the model test acts on: a bucket, its mount, and the faulty proxy in between.

One world serves many examples; each works in a folder of its own. One thread.
"""

import errno
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.daemon.control_socket import RemoteError, ask
from penstock.daemon.mount_registry import find_note
from penstock.errors import PenstockError
from tests.support.damage import cached_files
from tests.support.faults import PASSING
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kernelcaches import drop_pages
from tests.support.mounts import Mount
from tests.support.s3 import ObjectPath
from tests.support.trees import read_or_errno
from tests.support.waiting import wait_until

_MAP = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sys.stdout.buffer.write(bytes(pages))  # touched here: write(2) itself would give EFAULT
"""


@dataclass
class World:
    bucket: ObjectPath
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

    # -- the mount ------------------------------------------------------------------------

    def ask(self, verb: str) -> dict[str, Any]:
        """As the commands do, without the start of a process; a server that was just killed is
        waited for."""

        def answer() -> dict[str, Any] | None:
            try:
                return ask(find_note(self.mount.path).socket_path, verb)
            except RemoteError:
                raise
            except PenstockError:
                if not self.killed:
                    raise
                return None

        return wait_until(answer, f"nobody answers to {verb}")

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
        drop_pages(paths if self.mode == "pagecache" else cached_files(self.cache))
        for descriptor in held:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def wait_while_eio(self, path: Path) -> None:
        wait_until(lambda: read_or_errno(path) != errno.EIO, "the store is back, and reads fail on")

    # -- trouble --------------------------------------------------------------------------

    def start_faults(self, seed: int) -> None:
        self.proxy.seed = seed
        rates = dict.fromkeys(PASSING, 0.3 / len(PASSING))
        self.proxy.inject(rates, wait_s=0.05, most_in_a_row=2)

    def damage_the_cache(self, damage: Callable[[Path, random.Random], object], seed: int) -> None:
        chance = random.Random(seed)
        for path in cached_files(self.cache):
            if chance.random() < 0.5:
                damage(path, chance)


def read_mapped(path: Path) -> bytes:
    """The file's bytes by mmap, in a process of its own: a page that cannot be had is a SIGBUS."""
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _MAP, path], capture_output=True, check=False
    )
    if result.returncode == -signal.SIGBUS:
        raise BusError
    if b"cannot mmap an empty file" in result.stderr:
        return b""
    if found := re.search(rb"Error: \[Errno (\d+)\]", result.stderr):
        raise OSError(int(found[1]), os.strerror(int(found[1])))  # of the class for this number
    assert result.returncode == 0, result.stderr
    return result.stdout


class BusError(Exception):
    """A mapped page could not be read."""
