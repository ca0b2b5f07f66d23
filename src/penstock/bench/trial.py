"""Samples: one epoch through one system in one state, with what it cost on every side.

    cold     nothing in any cache: a fresh cache folder and a fresh mount
    cached   in the local cache, not in the page cache: pages dropped before the epoch
    warm     read before: whatever the system keeps, it has

Noise is met by neighbours. Next to each epoch the same files are read natively, next to each cold
epoch of Penstock they are also fetched by the bare client, and a ratio is taken from neighbours
only. Knows the arms by their common face; what is asked of the figures is not
known here.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.bench import measure, s3server
from penstock.bench.arms import Arm, Mount, Native, Site
from penstock.bench.bareclient import get_epoch
from penstock.bench.datasets import Entry
from penstock.bench.measure import MessageCounter, count_messages
from penstock.bench.readers import Epoch, list_files, read_epoch
from penstock.bench.workspace import BenchError

State = Literal["cold", "cached", "warm"]
BARE = "bare client"

# A warm epoch of a fast system takes 0.2 s: too short for processes that start together on
# few cores. Several are then read in a row.
_SHORTEST_S = 0.4
_MOST_PASSES = 8
# Above this a sample is long enough to stand alone, and repeating it would cost minutes; and a
# figure far from native need not be told from it.
_LONG_S = 2.0
_FAR_FROM_NATIVE = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    arm: str
    dataset: str
    state: State
    readers: int
    epochs: int  # read in a row
    seconds: float
    files: int
    size_bytes: int
    reader_cpu_s: float
    daemon_cpu_s: float  # of all processes of the system
    server_cpu_s: float  # of the S3 server; nothing when the data came from a cache
    memory_bytes: int  # of all processes of the system, after the epoch
    messages: int | None  # to the daemon, counted by the kernel, else as the daemon says
    mode: str | None = None
    native_ratio: float | None = None  # its speed over that of its native neighbour
    bare_ratio: float | None = None  # its speed over that of its bare-client neighbours

    @property
    def files_per_s(self) -> float:
        return self.files / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        """Of the system alone: neither of the readers nor of the S3 server."""
        return self.daemon_cpu_s / self.size_bytes * 1e9

    @property
    def reader_cpu_s_per_gb(self) -> float:
        return self.reader_cpu_s / self.size_bytes * 1e9


class Trial:
    """One arm on one data set, from its start to its end. A context manager by `running`."""

    def __init__(self, arm: Arm, *, seed: int = 0) -> None:
        self.arm = arm
        self.site = arm.site
        self._native = Native(arm.site)
        self._native.start()
        self._counter: MessageCounter | None = None
        self._mode: str | None = None
        self._seed = seed

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A fresh cache and a fresh mount, listed once as a training job lists its data set."""
        try:
            self.arm.start()
            with self._counting():
                self._require_all_listed()
                self._mode = self.arm.mode()
                yield
        finally:
            self.arm.stop()

    def cold(self, readers: int, entries: Sequence[Entry]) -> Sample:
        """The first epoch of a mount that has just started."""
        native = self._read(self._native, readers, self.site.dataset.entries, passes=1)
        # What it reads comes into the cache and into the page cache.
        measure.touch_memory(2 * self.site.dataset.size_bytes)
        return _beside(self._sample("cold", readers, entries), native)

    def cold_beside_bare(self, readers: int, entries: Sequence[Entry]) -> list[Sample]:
        """The bare client, the first epoch, the bare client again."""
        before = bare_sample(self.site, readers, entries)
        sample = self.cold(readers, entries)
        after = bare_sample(self.site, readers, entries)
        beside = (before.bytes_per_s + after.bytes_per_s) / 2
        return [before, replace(sample, bare_ratio=sample.bytes_per_s / beside), after]

    def settle(self) -> None:
        settle(self.arm)

    def cached(self, readers: int, *, rounds: int = 3) -> list[Sample]:
        return self._rounds("cached", readers, rounds, passes=1)

    def make_warm(self, readers: int) -> None:
        """Reads everything once: the state cached leaves nothing in the page cache."""
        self._read(self.arm, readers, self.site.dataset.entries, passes=1)

    def warm(self, readers: int, *, rounds: int = 5) -> list[Sample]:
        """Steady reads. The first only shows how long they take, unless that is long or slow.

        Nor is it steady: the second read after a drop is 15% to 25% slower than the third, also
        natively on tmpfs (seen on 6.18; probably pages moving to the kernel's active list).
        """
        (first,) = self._rounds("warm", readers, 1, passes=1)
        if _stands_alone(first):
            return [first]
        passes = min(max(math.ceil(_SHORTEST_S / first.seconds), 1), _MOST_PASSES)
        return self._rounds("warm", readers, rounds, passes)

    def _rounds(self, state: State, readers: int, rounds: int, passes: int) -> list[Sample]:
        """Native, sample, native, sample, native: each is held against both its neighbours."""
        entries = self.site.dataset.entries

        def read_native() -> Epoch:
            if state == "cached":
                measure.drop_pages()
            return self._read(self._native, readers, entries, passes)

        samples: list[Sample] = []
        before = read_native()
        while len(samples) < rounds:
            if state == "cached":
                measure.drop_pages()
            sample = self._sample(state, readers, entries, passes)
            after = read_native()
            samples.append(_beside(sample, before, after))
            before = after
            if _stands_alone(samples[-1]):
                break
        return samples

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        if isinstance(self.arm, Mount):
            scratch = self.site.workspace.folder / "tracefs"
            scratch.mkdir(exist_ok=True)
            self._counter = count_messages(self.arm.mountpoint, scratch)
        try:
            yield
        finally:
            if self._counter is not None:
                self._counter.close()
                self._counter = None

    def _require_all_listed(self) -> None:
        listed = len(list_files(self.arm.root))
        expected = len(self.site.dataset.entries)
        if listed != expected:
            raise BenchError(f"{self.arm.name}: lists {listed} files of {expected}")

    def _read(self, arm: Arm, readers: int, entries: Sequence[Entry], passes: int) -> Epoch:
        self._seed += 1  # a new order for each epoch, as a sampler draws it
        return read_epoch(
            self.site.workspace, arm.root, entries, readers=readers, seed=self._seed, passes=passes
        )

    def _messages(self) -> int | None:
        return self._counter.count() if self._counter else self.arm.messages()

    def _sample(
        self, state: State, readers: int, entries: Sequence[Entry], passes: int = 1
    ) -> Sample:
        messages = self._messages()
        before, server_before = self.arm.usage(), _server_cpu_s(self.site)
        epoch = self._read(self.arm, readers, entries, passes)
        used, server_after = self.arm.usage().since(before), _server_cpu_s(self.site)
        messages_after = self._messages()
        return Sample(
            arm=self.arm.name,
            dataset=self.site.dataset.name,
            state=state,
            readers=readers,
            epochs=passes,
            seconds=epoch.seconds,
            files=epoch.files,
            size_bytes=epoch.size_bytes,
            reader_cpu_s=epoch.cpu_s,
            daemon_cpu_s=used.cpu_s,
            server_cpu_s=server_after - server_before,
            memory_bytes=used.memory_bytes,
            messages=_difference(messages_after, messages),
            mode=self._mode,
        )


def settle(arm: Arm) -> None:
    """Waits until the daemon has written its cache: until it is idle, or for 10 s."""
    arm.fill_cache()
    deadline = time.monotonic() + 10
    before = arm.usage().cpu_s
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = arm.usage().cpu_s
        if now - before <= 0.02:
            return
        before = now


def bare_sample(site: Site, readers: int, entries: Sequence[Entry]) -> Sample:
    """The same objects by plain GETs, at the same concurrency."""
    before = _server_cpu_s(site)
    epoch = get_epoch(site.workspace, site.server, site.bucket, entries, readers=readers)
    return Sample(
        arm=BARE,
        dataset=site.dataset.name,
        state="cold",
        readers=readers,
        epochs=1,
        seconds=epoch.seconds,
        files=epoch.files,
        size_bytes=epoch.size_bytes,
        reader_cpu_s=epoch.cpu_s,
        daemon_cpu_s=0.0,
        server_cpu_s=_server_cpu_s(site) - before,
        memory_bytes=0,
        messages=None,
        bare_ratio=1.0,
    )


def _beside(sample: Sample, *natives: Epoch) -> Sample:
    native = sum(epoch.bytes_per_s for epoch in natives) / len(natives)
    return replace(sample, native_ratio=sample.bytes_per_s / native)


def _stands_alone(sample: Sample) -> bool:
    far = sample.native_ratio is not None and sample.native_ratio < _FAR_FROM_NATIVE
    return sample.seconds > _LONG_S or (far and sample.seconds > _SHORTEST_S)


def _server_cpu_s(site: Site) -> float:
    return measure.usage(site.workspace.processes(s3server.PART)).cpu_s


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
