"""The threads of the soak: sixteen readers, which judge what they got and note what was wrong; and
one thread for each kind of trouble that happens to the mounts while they are read.

A mapped file is read in a process of its own: a page that cannot be had ends it with SIGBUS.
"""

import errno
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.daemon.control import ask
from penstock.errors import PenstockError
from tests.model.world import BusError, read_mapped
from tests.soak.contents import IN_A_FOLDER, LARGE, NAMES, SMALL, describe, make, size_of, stamp_of
from tests.soak.stage import DEADLINE_S, MODES, Actor, Stage
from tests.support.damage import cached_files, cut, flip_bit
from tests.support.faults import PASSING
from tests.support.kernelcaches import drop_pages, forget

ROLES = (
    "small whole", "small whole", "small whole", "small mapped",
    "large whole", "large whole", "large random", "large mapped",
)  # fmt: skip
_STEP_BYTES = 256 << 10
_RATES = dict.fromkeys(PASSING, 0.15 / len(PASSING))


@dataclass(frozen=True)
class Error:
    """An error that a reader saw."""

    kind: str  # as in errno, or SIGBUS
    name: str
    promised: bool  # by the states that the file had meanwhile
    began_s: float
    ended_s: float
    clock: str


class Reader(Actor):
    def __init__(self, stage: Stage, stop: threading.Event, number: int) -> None:
        super().__init__(stage, stop, f"reader {number}")
        mount, role = divmod(number, len(ROLES))
        files, self._how = ROLES[role].split()
        self._mount, self._folder, self._ledger = mount, stage.mounts[mount], stage.ledger
        self._files = SMALL if files == "small" else LARGE
        self.operations = self.bytes = 0
        self.longest_pause_s = 0.0
        self.wrong: list[str] = []
        self.errors: list[Error] = []

    def work(self) -> None:
        # Two cores serve 16 readers, the servers, the store and the trouble; a process for each
        # mapped file takes most.
        most_s = 0.3 if self._how == "mapped" else 0.002 if self._files is SMALL else 0.02
        while self.pause(0.0, most_s):
            file = self.chance.choice(self._files)
            floor = self._ledger.floors[self._mount][file]
            began_s = time.monotonic()
            try:
                if self._files is SMALL and self.chance.random() < 0.02:
                    self._list(file)
                else:
                    self._judge(self._read(NAMES[file]), file, floor)
            except BusError:
                self._note("SIGBUS", file, self._ledger.latest[file] > floor, began_s)
            except OSError as error:
                promised = {
                    errno.ENOENT: False in self._ledger.there(floor, file),
                    errno.ESTALE: self._ledger.latest[file] > floor,
                }  # and EIO while the store is away
                number = error.errno or 0
                kind = errno.errorcode.get(number, str(number))
                self._note(kind, file, promised.get(number, False), began_s)
            self.operations += 1
            self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began_s)

    def _read(self, name: str) -> bytes:
        if self._how == "mapped":
            return read_mapped(self._folder / name)
        descriptor = os.open(self._folder / name, os.O_RDONLY)
        try:
            starts = list(range(0, os.fstat(descriptor).st_size + 1, _STEP_BYTES))
            if self._how == "random":
                self.chance.shuffle(starts)
            pieces = {start: _read_piece(descriptor, start) for start in starts}
            if self.chance.random() < 0.5:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        return b"".join(pieces[start] for start in sorted(pieces))

    def _list(self, file: int) -> None:
        first = file // IN_A_FOLDER * IN_A_FOLDER
        files = range(first, first + IN_A_FOLDER)
        floors = {file: self._ledger.floors[self._mount][file] for file in files}
        found = set(os.listdir((self._folder / NAMES[first]).parent))
        for file in files:
            listed = os.path.basename(NAMES[file]) in found
            if self._ledger.there(floors[file], file) == {not listed}:
                self.wrong.append(f"{NAMES[file]}: listed: {listed}")

    def _judge(self, data: bytes, file: int, floor: int) -> None:
        self.bytes += len(data)
        name, (owner, state) = NAMES[file], stamp_of(data) or ("", 0)
        if owner != name or state > self._ledger.latest[file] or size_of(name, state) is None:
            self.wrong.append(f"{name}: no state of this file: {describe(data)}")
        elif data != make(name, state):
            self.wrong.append(f"{name}: {len(data)} bytes, not of state {state}: {describe(data)}")
        elif state < floor:
            self.wrong.append(f"{name}: state {state} after a refresh showed {floor}")

    def _note(self, kind: str, file: int, promised: bool, began_s: float) -> None:
        ended_s, clock = time.monotonic(), time.strftime("%T")
        self.errors.append(Error(kind, NAMES[file], promised, began_s, ended_s, clock))


def _read_piece(descriptor: int, start: int) -> bytes:
    """Up to `_STEP_BYTES`. A read that meets an error behind its first pages is short, and the next
    one raises the error; only one of 0 bytes is the end of the file."""
    piece = b""
    while more := os.pread(descriptor, _STEP_BYTES - len(piece), start + len(piece)):
        piece += more
    return piece


class Changes(Actor):
    """Rewrites, deletes and adds upstream; then refreshes each mount, and the ledger knows."""

    def work(self) -> None:
        while self.pause(0.5, 2):
            for file in self.chance.sample(range(len(NAMES)), self.chance.randrange(1, 12)):
                self._change(file)
            states = list(self.stage.ledger.latest)
            for mount in range(len(MODES)):
                if self.chance.random() < 0.8 and self._refresh(mount):
                    self.stage.ledger.floors[mount] = states

    def _change(self, file: int) -> None:
        name, latest = NAMES[file], self.stage.ledger.latest
        was_there = size_of(name, latest[file]) is not None
        latest[file] += 1
        there = size_of(name, latest[file]) is not None
        if there:
            (self.stage.bucket / name).write_bytes(make(name, latest[file]))
        elif was_there:
            (self.stage.bucket / name).unlink()
        what = {(1, 1): "rewritten", (1, 0): "deleted", (0, 1): "added", (0, 0): "left absent"}
        self.counts[what[was_there, there]] += 1

    def _refresh(self, mount: int) -> bool:
        try:
            ask(self.stage.note(mount).socket_path, "refresh", timeout_s=60)
        except PenstockError:  # the store is away, or the server was killed a moment ago
            self.counts["refreshes that failed"] += 1
            return False
        self.counts["refreshes"] += 1
        return True


class Weather(Actor):
    """The store's faults, and times when it is away; the kernel's caches are dropped meanwhile."""

    def work(self) -> None:
        # Two in the shortest soak, the second of which ends with it.
        interval_s = min(20.0, self.stage.minutes * 60 / 4)
        self._storm()
        next_outage_s, long = time.monotonic() + interval_s, False
        while self.pause(0.5, 1.5):
            self._drop_kernel_caches(names_too=self.chance.random() < 1 / 3)
            if time.monotonic() > next_outage_s:
                self._be_away(DEADLINE_S + 2 if long else DEADLINE_S / 5, remember=long)
                next_outage_s, long = time.monotonic() + interval_s, not long
            elif self.chance.random() < 0.1:
                self.stage.proxy.calm()
                self.pause(0.2, 1)
                self._storm()

    def _drop_kernel_caches(self, *, names_too: bool) -> None:
        for mount in self.stage.mounts:
            drop_pages(mount / name for name in NAMES)
            if names_too:
                forget(mount)
        self.counts["kernel caches dropped"] += 1

    def _storm(self) -> None:
        self.stage.proxy.inject(_RATES, wait_s=0.3, most_in_a_row=2)

    def _be_away(self, seconds: float, *, remember: bool) -> None:
        gone_s = time.monotonic()
        self.stage.proxy.down()
        self.stop.wait(seconds)
        self.stage.proxy.up()
        self.counts[f"outages {'over' if remember else 'within'} the deadline"] += 1
        if remember:
            # Who asked just before it came back may meet nothing but faults after that, until its
            # own deadline; and a failure is told again for a second without asking the store.
            self.stage.away.append((gone_s, time.monotonic() + DEADLINE_S + 1))


class Kills(Actor):
    def work(self) -> None:
        killed: set[int] = set()
        while self.pause(1.5, 5):
            mount = self.chance.randrange(len(MODES))
            pid = self.stage.note(mount).server_pid
            if pid is not None and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                self.counts[f"kill -9 ({MODES[mount]})"] += 1


class Damage(Actor):
    """To the caches: bits flipped, files cut, disk full, everything deleted.

    In passthrough mode the kernel reads a file by itself after it was found whole, so there only
    the disk fills up and files vanish; what rots under it nobody could notice (semantics.md).
    """

    def work(self) -> None:
        while self.pause(0.5, 3):
            if not self.counts["bits flipped"]:  # the shortest soak is to have seen it too
                self._flip(self.stage.cache("pagecache"))
                continue
            mode = self.chance.choice(MODES)
            kinds = [self._fill, self._delete_some, self._delete_all]
            if mode == "pagecache":
                kinds += [self._cut, self._flip, self._flip]
            self.chance.choice(kinds)(self.stage.cache(mode))

    def _flip(self, cache: Path) -> None:
        for path in self._some_files(cache):
            self.counts["bits flipped"] += flip_bit(path, self.chance)

    def _cut(self, cache: Path) -> None:
        for path in self._some_files(cache):
            cut(path, self.chance)
            self.counts["files cut"] += 1

    def _delete_some(self, cache: Path) -> None:
        for path in self._some_files(cache):
            path.unlink(missing_ok=True)
            self.counts["files deleted"] += 1

    def _delete_all(self, cache: Path) -> None:
        if self.chance.random() < 0.5:
            shutil.rmtree(cache, ignore_errors=True)
            self.counts["caches deleted"] += 1

    def _fill(self, cache: Path) -> None:
        ballast = cache.parent / "ballast"
        try:
            ballast.write_bytes(bytes(64 << 20))
        except OSError:
            self.counts["disks filled"] += 1  # ENOSPC: that is the point
        self.pause(0.5, 2)
        ballast.unlink(missing_ok=True)

    def _some_files(self, cache: Path) -> list[Path]:
        files = cached_files(cache)
        return self.chance.sample(files, min(len(files), 5))
