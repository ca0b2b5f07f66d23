"""The workload `states`: one arm in the states cold, cached and warm, by several counts of readers.

    cold     nothing in any cache: a fresh cache folder and a fresh mount
    cached   in the local cache, not in the page cache: pages dropped before the epoch
    warm     read before: whatever the system keeps, it has

Noise is met by neighbours. Next to each epoch the same files are read natively, next to each cold
epoch of Penstock they are also fetched by the bare client, and a ratio is taken from neighbours
only. What is asked of the figures is not known here. Main thread only.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.bench import measure
from penstock.bench.arms import Arm, Mount, Native, Penstock, Site
from penstock.bench.bareclient import get_epoch
from penstock.bench.datasets import Entry
from penstock.bench.experiments import proofs
from penstock.bench.experiments.proofs import Proof
from penstock.bench.experiments.storeline import StoreCounts, StoreLine
from penstock.bench.measure import MessageCounter, count_messages
from penstock.bench.plans.model import ARMS, ReadState, WorkloadPlan
from penstock.bench.readers import Epoch, list_files, read_epoch
from penstock.bench.workspace import BenchError

BARE = "bare client"

# A warm epoch of a fast system takes 0.2 s: too short for processes that start together on
# few cores. Several are then read in a row.
_SHORTEST_S = 0.4
_MOST_PASSES = 8
# A longer sample is precise enough, and repeating it would cost minutes. A figure far below native
# needs no repeats to be distinguished from it.
_LONG_S = 2.0
_FAR_FROM_NATIVE = 0.5
# One reader needs long for a cold epoch and shows the same speed on a part of it: every fourth
# file, from the first to the last.
_SINGLE_READER_STRIDE = 4
_SINGLE_READER_FILES = 1000

Progress = Callable[[str], None]  # what is measured now


@dataclass(frozen=True, slots=True)
class Sample:
    arm: str
    state: ReadState
    readers: int
    epochs: int  # read in a row
    seconds: float
    files: int
    size_bytes: int
    reader_cpu_s: float
    daemon_cpu_s: float  # of all processes of the system
    memory_bytes: int  # of all processes of the system, after the epoch
    messages: int | None  # to the daemon, counted by the kernel, else by the daemon itself
    mode: str | None = None
    native_ratio: float | None = None  # its speed over that of its native neighbour
    bare_ratio: float | None = None  # its speed over that of its bare-client neighbours
    gets: int | None = None  # that the store answered; None: they were not counted
    get_bytes: int | None = None

    @property
    def files_per_s(self) -> float:
        return self.files / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.seconds

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Trial:
    """One arm on one data set, from its start to its end. A context manager by `running`."""

    def __init__(self, arm: Arm, *, seed: int = 0, line: StoreLine | None = None) -> None:
        """`line` counts what comes from the store; without one, nothing is counted."""
        self.arm = arm
        self._line = line
        self.site = arm.site
        self._native = Native(arm.site, ARMS["native"][0])
        self._native.start()
        self._counter: MessageCounter | None = None
        self._mode: str | None = None
        self._seed = seed

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start with a fresh cache and mount, listed once as a training job lists its data set."""
        try:
            self.arm.start()
            with self._counting():
                self._require_all_listed()
                self._mode = self.arm.mode()
                yield
        finally:
            self.arm.stop()

    def cold(self, readers: int, entries: Sequence[Entry]) -> Sample:
        """Measure the first epoch of a mount that has just started."""
        native = self._read(self._native, readers, self.site.dataset.entries, passes=1)
        # What it reads comes into the cache and into the page cache.
        measure.touch_memory(2 * self.site.dataset.size_bytes)
        return _beside(self._sample("cold", readers, entries), native)

    def cold_beside_bare(self, readers: int, entries: Sequence[Entry]) -> list[Sample]:
        """Measure the bare client, the first epoch, and the bare client again."""
        before = bare_sample(self.site, readers, entries)
        sample = self.cold(readers, entries)
        after = bare_sample(self.site, readers, entries)
        beside = (before.bytes_per_s + after.bytes_per_s) / 2
        return [before, replace(sample, bare_ratio=sample.bytes_per_s / beside), after]

    def cached(self, readers: int, *, rounds: int = 3) -> list[Sample]:
        return self._rounds("cached", readers, rounds, passes=1)

    def make_warm(self, readers: int) -> None:
        """Read everything once: the state cached leaves nothing in the page cache."""
        self._read(self.arm, readers, self.site.dataset.entries, passes=1)

    def warm(self, readers: int, *, rounds: int = 5) -> list[Sample]:
        """Measure steady reads. The first one only shows how long they take, unless that is long.

        It is not steady: the second read after a drop is 15% to 25% slower than the third, also
        natively on tmpfs (seen on 6.18; probably pages moving to the kernel's active list).
        """
        (first,) = self._rounds("warm", readers, 1, passes=1)
        if _stands_alone(first):
            return [first]
        passes = min(max(math.ceil(_SHORTEST_S / first.seconds), 1), _MOST_PASSES)
        return self._rounds("warm", readers, rounds, passes)

    def _rounds(self, state: ReadState, readers: int, rounds: int, passes: int) -> list[Sample]:
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
        self, state: ReadState, readers: int, entries: Sequence[Entry], passes: int = 1
    ) -> Sample:
        messages, counts = self._messages(), self._store_counts()
        before = self.arm.usage()
        epoch = self._read(self.arm, readers, entries, passes)
        used = self.arm.usage().since(before)
        messages_after, counts_after = self._messages(), self._store_counts()
        counted = None if counts is None or counts_after is None else counts_after.since(counts)
        return Sample(
            arm=self.arm.name,
            state=state,
            readers=readers,
            epochs=passes,
            seconds=epoch.seconds,
            files=epoch.files,
            size_bytes=epoch.size_bytes,
            reader_cpu_s=epoch.cpu_s,
            daemon_cpu_s=used.cpu_s,
            memory_bytes=used.memory_bytes,
            messages=_difference(messages_after, messages),
            mode=self._mode,
            gets=None if counted is None else counted.gets,
            get_bytes=None if counted is None else counted.get_bytes,
        )

    def _store_counts(self) -> StoreCounts | None:
        return None if self._line is None else self._line.counts()


class StatesRun:
    """All samples of one arm. `run` is called once, with an arm that was prepared."""

    def __init__(
        self,
        arm: Arm,
        workload: WorkloadPlan,
        line: StoreLine,
        *,
        seed: int,
        progress: Progress,
        prove: Callable[[Proof], None],
    ) -> None:
        self._trial = Trial(arm, seed=seed, line=line)
        self._workload, self._progress, self._prove = workload, progress, prove

    def run(self) -> Iterator[Sample]:
        with measure.memory_kept_in_guest():
            for sample in self._samples():
                if sample.arm != BARE:
                    self._prove_sample(sample)
                yield sample

    def _samples(self) -> Iterator[Sample]:
        *fewer, most = self._workload.reader_counts
        if isinstance(self._trial.arm, Native):
            # Beside itself: how far its ratio is from 1 is the noise of this machine.
            with self._trial.running():
                yield from self._read_again()
            return
        if "cold" in self._workload.states:
            for readers in fewer:
                yield from self._cold(readers, self._cold_rounds)
            # The last mount is filled by the cold epoch of the most readers, and read on.
            yield from self._cold(most, self._cold_rounds - 1)
        with self._fresh_mount():
            yield from self._first_epoch(most)
            self._progress("settling")
            settle(self._trial.arm)
            yield from self._read_again()

    @property
    def _cold_rounds(self) -> int:
        """A cold epoch cannot be repeated on one mount, so only Penstock's are."""
        return self._workload.cold_rounds if isinstance(self._trial.arm, Penstock) else 1

    @contextlib.contextmanager
    def _fresh_mount(self) -> Iterator[None]:
        arm = self._trial.arm
        if isinstance(arm, Mount):
            self._prove(proofs.cache_empty(arm.cache))
        with self._trial.running():
            yield

    def _cold(self, readers: int, rounds: int) -> Iterator[Sample]:
        for _ in range(rounds):
            with self._fresh_mount():
                yield from self._first_epoch(readers)

    def _first_epoch(self, readers: int) -> list[Sample]:
        self._progress(f"cold, {readers} reading")
        entries = self._cold_entries(readers)
        if isinstance(self._trial.arm, Penstock):
            return self._trial.cold_beside_bare(readers, entries)
        return [self._trial.cold(readers, entries)]

    def _cold_entries(self, readers: int) -> Sequence[Entry]:
        entries = self._trial.site.dataset.entries
        fills_cache = readers == self._workload.reader_counts[-1]
        if readers > 1 or fills_cache or len(entries) < _SINGLE_READER_FILES:
            return entries
        return entries[::_SINGLE_READER_STRIDE]

    def _read_again(self) -> Iterator[Sample]:
        counts, states = self._workload.reader_counts, self._workload.states
        if "cached" in states and measure.can_drop_pages():
            for readers in counts:
                self._progress(f"cached, {readers} reading")
                yield from self._trial.cached(readers)
            self._trial.make_warm(counts[-1])
        if "warm" in states:
            for readers in counts:
                self._progress(f"warm, {readers} reading")
                yield from self._trial.warm(readers, rounds=self._workload.rounds)

    def _prove_sample(self, sample: Sample) -> None:
        if sample.get_bytes is None:
            return
        name = f"{sample.state}-{sample.readers}-reading"
        counts = StoreCounts(sample.gets, sample.get_bytes, None)
        if sample.state == "cold" and isinstance(self._trial.arm, Mount):
            self._prove(proofs.from_the_store(name, counts, sample.size_bytes))
        else:
            self._prove(proofs.little_from_the_store(name, counts, sample.size_bytes))


def settle(arm: Arm) -> None:
    """Wait until the daemon has written its cache: until it is idle, or for 10 s."""
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
    """Fetch the same objects by plain GETs, at the same concurrency."""
    epoch = get_epoch(site.workspace, site.server, site.bucket, entries, readers=readers)
    return Sample(
        arm=BARE,
        state="cold",
        readers=readers,
        epochs=1,
        seconds=epoch.seconds,
        files=epoch.files,
        size_bytes=epoch.size_bytes,
        reader_cpu_s=epoch.cpu_s,
        daemon_cpu_s=0.0,
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


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
