"""The threads of the soak: sixteen readers and two that list, which judge what they got and note
what was wrong; and one thread for each kind of trouble that happens to the mounts meanwhile.

A mapped file is read in a process of its own: a page that cannot be had ends it with SIGBUS.
"""

import errno
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.daemon.control_socket import ask
from penstock.errors import PenstockError
from tests.model.world import BusError, read_mapped
from tests.soak.contents import LARGE, NAMES, SMALL, STILL, describe, make, size_of, stamp_of
from tests.soak.stage import DEADLINE_S, MODES, Actor, Stage, find
from tests.support.damage import CATALOG_DAMAGES, cached_files, cut, flip_bit
from tests.support.faults import (
    FINAL_FOR_LISTINGS,
    LIES,
    LISTING_FAULTS,
    LISTING_LIES,
    PASSING,
    Fault,
)
from tests.support.kernelcaches import drop_pages, forget

ROLES = (
    "small whole",
    "small whole",
    "small whole",
    "small mapped",
    "large whole",
    "large whole",
    "large random",
    "large mapped",
)
# Not of the log: what was not sealed yet is lost with it, until the next refresh. And nothing that
# SQLite has mapped is cut: a signal would end the server, and another take over.
_DAMAGES = sorted(CATALOG_DAMAGES.keys() - {"shared_memory", "log"})
_DAMAGES_OF_A_MAPPED_FILE = sorted(set(_DAMAGES) - {"half", "text", "empty"})
_STEP_BYTES = 256 << 10
_RATES = {
    **dict.fromkeys(PASSING, 0.12 / len(PASSING)),
    **dict.fromkeys((*LIES, Fault.WHOLE), 0.03 / (len(LIES) + 1)),
    Fault.REDIRECT: 0.002,  # it costs an EIO
}
# About ten pages make a listing; what a client does not ask for again ends all of it.
_LISTING_RATES = {
    fault: 0.003 if fault in FINAL_FOR_LISTINGS else 0.01
    for fault in {*LISTING_FAULTS, *LISTING_LIES}
} | {Fault.LOST_PAGES: 0.1, Fault.SAME_TOKEN: 0.05}  # of the few pages that others follow
_LOOKS_FOR_A_NUMBER_S = 3 * DEADLINE_S


@dataclass(frozen=True)
class Error:
    """An error that a reader saw."""

    kind: str  # as in errno, or SIGBUS
    name: str
    promised: bool  # by the states that the file had meanwhile
    renumbered: bool  # it had another inode number before than after
    began_s: float
    ended_s: float
    clock: str


class Witness(Actor):
    """Asks something of one mount again and again, and notes what was wrong."""

    def __init__(self, stage: Stage, stop: threading.Event, name: str, mount: int) -> None:
        super().__init__(stage, stop, name)
        self._mount, self._folder, self._ledger = mount, stage.mounts[mount], stage.ledger
        self.operations = self.bytes = 0
        self.longest_pause_s = 0.0
        self.wrong: list[str] = []
        self.errors: list[Error] = []

    def _note(
        self,
        kind: str,
        name: str,
        began_s: float,
        *,
        number: int | None,
        promised: bool,
        lost_a_child: bool = False,
    ) -> None:
        """`number`: the inode number that it had before."""
        ended_s, clock = time.monotonic(), time.strftime("%T")
        self._took(began_s)
        looks = kind in ("ESTALE", "SIGBUS") and not promised and number is not None
        looks = looks and bool(self.stage.damaged)
        renumbered = looks and self._is_renumbered(name, number)
        renumbered = renumbered or (kind == "ESTALE" and lost_a_child)
        self.errors.append(Error(kind, name, promised, renumbered, began_s, ended_s, clock))

    def _took(self, began_s: float) -> None:
        self.operations += 1
        self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began_s)

    def _is_renumbered(self, name: str, number: int | None) -> bool:
        """A catalog that was damaged may still be made anew, and the kernel be told."""
        until_s = time.monotonic() + _LOOKS_FOR_A_NUMBER_S
        while time.monotonic() < until_s:
            with suppress(OSError):
                if os.stat(self._folder / name).st_ino != number:
                    return True
            time.sleep(0.2)
        return False

    def _number(self, name: str) -> int | None:
        with suppress(OSError):
            return os.stat(self._folder / name).st_ino
        return None


class Reader(Witness):
    def __init__(self, stage: Stage, stop: threading.Event, number: int) -> None:
        mount, role = divmod(number, len(ROLES))
        super().__init__(stage, stop, f"reader {number}", mount)
        files, self._how = ROLES[role].split()
        self._files = SMALL if files == "small" else LARGE

    def work(self) -> None:
        # Two cores serve 16 readers, the servers, the store and the trouble; a process for each
        # mapped file takes most.
        most_s = 0.3 if self._how == "mapped" else 0.002 if self._files is SMALL else 0.02
        while self.pause(0.0, most_s):
            file = self.chance.choice(self._files)
            name, floor = NAMES[file], self._ledger.floors[self._mount][file]
            began_s = time.monotonic()
            number = self._number(name)
            try:
                self._judge(self._read(name), file, floor)
                self._took(began_s)
            except BusError:
                outdated = self._ledger.latest[file] > floor
                self._note("SIGBUS", name, began_s, number=number, promised=outdated)
            except OSError as error:
                promised = {
                    errno.ENOENT: False in self._ledger.there(floor, file),
                    errno.ESTALE: self._ledger.latest[file] > floor,
                }.get(error.errno or 0, False)  # and EIO while the store is away
                self._note(_kind(error), name, began_s, number=number, promised=promised)

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

    def _judge(self, data: bytes, file: int, floor: int) -> None:
        self.bytes += len(data)
        name, (owner, state) = NAMES[file], stamp_of(data) or ("", 0)
        if owner != name or state > self._ledger.latest[file] or size_of(name, state) is None:
            self.wrong.append(f"{name}: no state of this file: {describe(data)}")
        elif data != make(name, state):
            self.wrong.append(f"{name}: {len(data)} bytes, not of state {state}: {describe(data)}")
        elif state < floor:
            self.wrong.append(f"{name}: state {state} after a refresh showed {floor}")


class Lister(Witness):
    """Lists all of a mount, and compares the names with those that the bucket holds: as it was when
    the last refresh began, or with any change since then. An error is never a missing name."""

    def __init__(self, stage: Stage, stop: threading.Event, mount: int) -> None:
        super().__init__(stage, stop, f"lister {mount}", mount)
        self._children: dict[str, dict[str, int]] = {}  # of each folder: the numbers seen last

    def work(self) -> None:
        while self.pause(0.1, 0.7):
            if self.chance.random() < 0.5:
                forget(self._folder)  # or the kernel lists what it knows
            floors, began_s = self._ledger.floors[self._mount], time.monotonic()
            numbers = {name: self._number(name) for name in _FOLDERS}
            try:
                names = find(self._folder) if self.chance.random() < 0.5 else self._walk()
            except OSError as error:
                name = str(error.filename or "").removeprefix(f"{self._folder}/")
                promised = error.errno == errno.ENOENT and self._may_be_gone(name, floors)
                self._note(
                    _kind(error),
                    name,
                    began_s,
                    number=numbers.get(name),
                    promised=promised,
                    lost_a_child=self._has_lost_a_child(name),
                )
            else:
                wrong = self._ledger.wrong_in(names, floors)
                self.wrong += [f"listing: {one}" for one in wrong[:5]]
                if len(wrong) > 5:
                    self.wrong.append(f"listing: {len(wrong)} names are wrong")
                self._took(began_s)
                for name in ("", *_FOLDERS):
                    self._children[name] = self._numbers_in(name)

    def _numbers_in(self, name: str) -> dict[str, int]:
        with suppress(OSError), os.scandir(self._folder / name) as entries:
            return {entry.name: entry.inode() for entry in entries}
        return {}

    def _has_lost_a_child(self, name: str) -> bool:
        """A listing goes on behind a child by its number, so a child that got another one ends it
        with ESTALE. `name`: the folder; the mount itself is named by its whole path."""
        name = "" if name == str(self._folder) else name
        now = self._numbers_in(name)
        return any(
            now.get(child, number) != number
            for child, number in self._children.get(name, {}).items()
        )

    def _walk(self) -> set[str]:
        def fail(error: OSError) -> None:
            raise error

        top = os.fspath(self._folder)
        walk = os.walk(top, onerror=fail)
        return {
            os.path.join(place, name)[len(top) + 1 :] for place, _, names in walk for name in names
        }

    def _may_be_gone(self, name: str, floors: list[int]) -> bool:
        """A file, or a folder of which nothing was left, that was listed a moment ago."""
        below = [file for file, one in enumerate(NAMES) if one == name or f"{name}/" in one]
        return bool(below) and all(
            False in self._ledger.there(floors[file], file) for file in below
        )


_FOLDERS = sorted({str(Path(name).parent) for name in (*NAMES, *STILL)} | {"small"})


def _kind(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))


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
        self.stage.proxy.inject(_RATES, wait_s=0.3, most_in_a_row=2, listing_rates=_LISTING_RATES)

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
    """To the caches: bits flipped, files cut, disk full, everything deleted. To their indexes and
    to the catalogs: all that a bad disk can do to a file.

    In passthrough mode the kernel reads a file by itself after it was found whole, so there only
    the disk fills up and files vanish; what rots under it nobody could notice (semantics.md).
    """

    def work(self) -> None:
        due = {  # the shortest soak is to see these, too
            "bits flipped": self._flip,
            "indexes damaged": self._damage_index,
            "catalogs damaged": self._damage_catalog,
        }
        while self.pause(0.5, 3):
            if missing := next((act for what, act in due.items() if not self.counts[what]), None):
                missing(self.stage.cache("pagecache"))
                continue
            mode = self.chance.choice(MODES)
            kinds = [self._fill, self._delete_some, self._delete_all, self._damage_index]
            kinds += [self._damage_catalog]
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

    def _damage_index(self, cache: Path) -> None:
        self._damage("indexes", cache / "index.sqlite", _DAMAGES_OF_A_MAPPED_FILE)

    def _damage_catalog(self, _cache: Path) -> None:
        # None is there while one that is gone is being made anew.
        for catalog in sorted(self.stage.catalogs.glob("*.sqlite"))[:1]:
            began_s = time.monotonic()
            if self._damage("catalogs", catalog, _DAMAGES):
                self.stage.damaged.append(began_s)

    def _damage(self, what: str, path: Path, kinds: list[str]) -> bool:
        how = CATALOG_DAMAGES[self.chance.choice(kinds)]
        with suppress(OSError, IndexError):  # it is being made anew, or has no page of that kind
            how(path, self.chance)
            self.counts[f"{what} damaged"] += 1
            return True
        return False

    def _some_files(self, cache: Path) -> list[Path]:
        files = cached_files(cache)
        return self.chance.sample(files, min(len(files), 5))
