"""What happens to the mounts while they are read: each kind of trouble is a thread of its own."""

import os
import shutil
import signal
import time
from pathlib import Path

from penstock.errors import PenstockError
from tests.soak.contents import NAMES, make, size_of
from tests.soak.stage import DEADLINE_S, MODES, Actor
from tests.support.damage import cached_files, cut, flip_bit
from tests.support.faults import PASSING, Fault
from tests.support.kernelcaches import drop_pages, forget

_SHARE = 0.15


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
        name = NAMES[file]
        path = self.stage.bucket / name
        was_there = size_of(name, self.stage.ledger.latest[file]) is not None
        self.stage.ledger.latest[file] += 1
        state = self.stage.ledger.latest[file]
        there = size_of(name, state) is not None
        if there:
            path.write_bytes(make(name, state))
        elif was_there:
            path.unlink()
        what = {(1, 1): "rewritten", (1, 0): "deleted", (0, 1): "added", (0, 0): "left absent"}
        self.counts[what[was_there, there]] += 1

    def _refresh(self, mount: int) -> bool:
        try:
            self.stage.ask(mount, "refresh")
        except PenstockError:  # the store is away, or the server was killed a moment ago
            self.counts["refreshes that failed"] += 1
            return False
        self.counts["refreshes"] += 1
        return True


class Weather(Actor):
    """The store's faults, and times when it is away; the kernel's caches are dropped meanwhile."""

    def work(self) -> None:
        rates = dict.fromkeys(PASSING, _SHARE / len(PASSING))
        # Two in the shortest soak, the second of which ends with it.
        interval_s = min(20.0, self.stage.minutes * 60 / 4)
        self._storm(rates)
        next_outage_s = time.monotonic() + interval_s
        long = False
        while self.pause(0.5, 1.5):
            self._drop_kernel_caches(names_too=self.chance.random() < 1 / 3)
            if time.monotonic() > next_outage_s:
                self._be_away(DEADLINE_S + 2 if long else DEADLINE_S / 5, remember=long)
                next_outage_s, long = time.monotonic() + interval_s, not long
            elif self.chance.random() < 0.1:
                self.stage.proxy.calm()
                self.pause(0.2, 1)
                self._storm(rates)

    def _drop_kernel_caches(self, *, names_too: bool) -> None:
        for mount in self.stage.mounts:
            drop_pages(mount / name for name in NAMES)
            if names_too:
                forget(mount)
        self.counts["kernel caches dropped"] += 1

    def _storm(self, rates: dict[Fault, float]) -> None:
        self.stage.proxy.inject(rates, wait_s=0.3, most_in_a_row=2)

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
            kinds = [self._fill, self._cut_or_delete, self._delete_all]
            if mode == "pagecache":
                kinds += [self._flip, self._flip]
            self.chance.choice(kinds)(self.stage.cache(mode))

    def _flip(self, cache: Path) -> None:
        for path in self._some_files(cache):
            self.counts["bits flipped"] += flip_bit(path, self.chance)

    def _cut_or_delete(self, cache: Path) -> None:
        for path in self._some_files(cache):
            if self.chance.random() < 0.5 and cache == self.stage.cache("pagecache"):
                cut(path, self.chance)
                self.counts["files cut"] += 1
            else:
                path.unlink(missing_ok=True)
                self.counts["files deleted"] += 1

    def _delete_all(self, cache: Path) -> None:
        if self.chance.random() < 0.5:
            shutil.rmtree(cache, ignore_errors=True)
            self.counts["caches deleted"] += 1

    def _fill(self, cache: Path) -> None:
        ballast = cache.parent / "ballast"
        try:
            with open(ballast, "wb") as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError:
            self.counts["disks filled"] += 1  # ENOSPC: that is the point
        self.pause(0.5, 2)
        ballast.unlink(missing_ok=True)

    def _some_files(self, cache: Path) -> list[Path]:
        files = cached_files(cache)
        return self.chance.sample(files, min(len(files), 5))
