"""The workload `read`: one arm in the states cold, cached and warm, by several numbers of readers.

    cold     nothing in any cache: a fresh cache folder and a fresh mount; planned: the same, and
             the readers tell the mount their order
    cached   in the local cache, not in the page cache: pages dropped before the epoch
    warm     read before: whatever the system keeps, it has

Noise is met by neighbours. Next to each epoch the same files are read natively, next to each cold
epoch of Penstock they are also fetched by the bare client, and a ratio is taken from neighbours
only. What is asked of the figures is not known here. Main thread only.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.bench import measure
from penstock.bench.arms import Arm, Mount, Native, Penstock, Site
from penstock.bench.bareclient import get_epoch
from penstock.bench.datasets import Entry
from penstock.bench.experiments import proofs
from penstock.bench.experiments.programs import gated_program
from penstock.bench.experiments.proofs import Proof
from penstock.bench.experiments.result_files import Figures
from penstock.bench.experiments.storeline import StoreCounts, StoreLine
from penstock.bench.measure import MessageCounter, count_messages
from penstock.bench.plans.experiments import CACHED_ROUNDS, states_of
from penstock.bench.plans.known_arms import ARMS, ArmPlan
from penstock.bench.plans.model import WorkloadPlan
from penstock.bench.readers import (
    PART,
    Epoch,
    list_files,
    order_of,
    read_epoch,
    reader_command,
)
from penstock.bench.workspace import BenchError

BARE = "bare client"

# A warm epoch of a fast system may take 10 ms: too short for processes that start together on few
# cores. So many are read in a row that they take this long.
_SHORTEST_S = 0.4
_MOST_PASSES = 64
# A longer sample is precise enough, and repeating it would cost minutes. A figure far below native
# needs few repeats to be distinguished from it; from two, an interval would say nothing.
_LONG_S = 2.0
_FAR_FROM_NATIVE = 0.5
_FEWEST_ROUNDS = 3
# One reader needs long for a cold epoch and shows the same speed on a part of it: every fourth
# file, from the first to the last.
_SINGLE_READER_STRIDE = 4
_SINGLE_READER_FILES = 1000
_MOST_FILLS = 3

Prove = Callable[[Proof], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """One epoch, or several in a row, with what they cost the system."""

    arm: str
    state: str
    readers: int
    epoch: Epoch
    used: measure.Usage  # of all processes of the system; memory after the epoch
    messages: int | None  # to the daemon, counted by the kernel, else by the daemon itself
    mode: str | None = None
    native_ratio: float | None = None  # its speed over that of its native neighbour
    bare_ratio: float | None = None  # its speed over that of its bare-client neighbours
    store: StoreCounts | None = None  # None: not counted
    hit_bytes: dict[str, int] | None = None

    @property
    def files(self) -> int:
        return self.epoch.files

    @property
    def size_bytes(self) -> int:
        return self.epoch.size_bytes

    def figures(self) -> Figures:
        """Return an item of `epochs` in result.json."""
        epoch = self.epoch
        return {
            "arm": self.arm,
            "state": self.state,
            "readers": self.readers,
            "passes": epoch.passes,
            "seconds": epoch.seconds,
            "samples": epoch.files,
            "bytes": epoch.size_bytes,
            "cpu_s": {"system": self.used.cpu_s, "readers": epoch.cpu_s},
            "memory_bytes": self.used.memory_bytes,
            "messages": self.messages,
            "mode": self.mode,
            "native_ratio": self.native_ratio,
            "bare_ratio": self.bare_ratio,
            "store": None if self.store is None else self.store.to_json(),
            "hit_bytes": self.hit_bytes,
        }


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

    def cold(
        self, readers: int, entries: Sequence[Entry], prove_plans: Prove | None = None
    ) -> Sample:
        """Measure the first epoch of a mount that has just started. With `prove_plans` the readers
        tell the mount their order first."""
        native = self.read_native(readers, 1)
        # What it reads comes into the cache and into the page cache.
        measure.touch_memory(2 * self.site.dataset.size_bytes)
        state = "cold" if prove_plans is None else "planned"
        return _beside(self._sample(state, readers, entries, 1, prove_plans), native)

    def cold_beside_bare(self, readers: int, entries: Sequence[Entry]) -> list[Sample]:
        """Measure the bare client, the first epoch, and the bare client again."""
        before = bare_sample(self.site, readers, entries)
        sample = self.cold(readers, entries)
        after = bare_sample(self.site, readers, entries)
        beside = (before.epoch.bytes_per_s + after.epoch.bytes_per_s) / 2
        return [before, replace(sample, bare_ratio=sample.epoch.bytes_per_s / beside), after]

    def cached(self, readers: int, *, rounds: int = CACHED_ROUNDS) -> list[Sample]:
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
        if first.epoch.seconds > _LONG_S:
            return [first]
        passes = min(max(math.ceil(_SHORTEST_S / first.epoch.seconds), 1), _MOST_PASSES)
        return self._rounds("warm", readers, rounds, passes)

    def read_native(self, readers: int, passes: int) -> Epoch:
        return self._read(self._native, readers, self.site.dataset.entries, passes)

    def _rounds(self, state: str, readers: int, rounds: int, passes: int) -> list[Sample]:
        """Native, sample, native, sample, native: each is held against both its neighbours."""

        def drop() -> None:
            if state == "cached":
                measure.drop_pages()

        samples: list[Sample] = []
        drop()
        before = self.read_native(readers, passes)
        while len(samples) < rounds:
            drop()
            sample = self._sample(state, readers, self.site.dataset.entries, passes)
            drop()
            after = self.read_native(readers, passes)
            samples.append(_beside(sample, before, after))
            before = after
            if _are_enough(samples):
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

    def _read_planned(self, readers: int, entries: Sequence[Entry], prove: Prove) -> Epoch:
        """Read once by readers that tell the mount their order, and prove it while it is there."""
        arm, workspace = self.arm, self.site.workspace
        assert isinstance(arm, Penstock)
        self._seed += 1
        order = order_of(arm.root, entries, readers=readers, seed=self._seed)

        def command(gate: Path) -> list[str]:
            path = workspace.folder / "order.json"
            path.write_text(json.dumps(order | {"gate": str(gate)}))
            return reader_command(path)

        environment = arm.reader_environment()
        with gated_program(workspace, PART, command, epochs=1, extra=environment) as program:
            answer = program.wait_for(0)
            plans = arm.statistics()["plans"]
            prove(proofs.hinted(plans, readers, len(entries)))
            program.go_on()
        return Epoch(**answer["read"])

    def _messages(self) -> int | None:
        return self._counter.count() if self._counter else self.arm.messages()

    def _sample(
        self,
        state: str,
        readers: int,
        entries: Sequence[Entry],
        passes: int,
        prove_plans: Prove | None = None,
    ) -> Sample:
        hits = self._hits()
        messages, counts = self._messages(), self._store_counts()
        before = self.arm.usage()
        if prove_plans is None:
            epoch = self._read(self.arm, readers, entries, passes)
        else:
            epoch = self._read_planned(readers, entries, prove_plans)
        used = self.arm.usage().since(before)
        messages_after, counts_after = self._messages(), self._store_counts()
        sent = None
        if messages is not None and messages_after is not None:
            sent = messages_after - messages
        hits_after = self._hits()
        return Sample(
            arm=self.arm.plan.name,
            state=state,
            readers=readers,
            epoch=epoch,
            used=used,
            messages=sent,
            mode=self._mode,
            store=counts_after.since(counts) if counts and counts_after else None,
            hit_bytes={name: hits_after[name] - hits.get(name, 0) for name in hits_after} or None,
        )

    def _store_counts(self) -> StoreCounts | None:
        return None if self._line is None else self._line.counts()

    def _hits(self) -> dict[str, int]:
        """Return the mount's own count of bytes from its tiers, where it has a part of the data:
        asking takes a process."""
        if isinstance(self.arm, Penstock) and 0 < self.arm.plan.cache_share < 1:
            return self.arm.statistics()["hit_bytes"]
        return {}


class ReadRun:
    """All samples of one arm. `run` is called once, with an arm that was prepared.

    `fill` fills the cache of a mount that has just started.
    """

    def __init__(
        self,
        arm: Arm,
        workload: WorkloadPlan,
        line: StoreLine,
        *,
        seed: int,
        progress: Callable[[str], None],
        prove: Prove,
        fill: Callable[[], None],
    ) -> None:
        self._trial = Trial(arm, seed=seed, line=line)
        self._plan: ArmPlan = arm.plan
        self._workload, self._progress = workload, progress
        self._prove, self._fill = prove, fill
        self._states = states_of(arm.plan, workload)

    def run(self) -> Iterator[Sample]:
        with measure.memory_kept_in_guest():
            for sample in self._samples():
                if sample.arm != BARE:
                    self._prove_sample(sample)
                yield sample

    def _samples(self) -> Iterator[Sample]:
        *fewer, most = self._workload.reader_counts
        if not {"cold", "planned"} & set(self._states):
            # Native files beside themselves: how far the ratio is from 1 is the machine's noise.
            with self._fresh_mount():
                self._progress("filling")
                self._fill()
                yield from self._read_again()
            return
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
            if isinstance(arm, Mount) and 0 < self._plan.cache_share < 1:
                self._prove(proofs.cache_within(arm.cache, arm.quota_bytes))

    def _cold(self, readers: int, rounds: int) -> Iterator[Sample]:
        for _ in range(rounds):
            with self._fresh_mount():
                yield from self._first_epoch(readers)

    def _first_epoch(self, readers: int) -> list[Sample]:
        self._progress(f"{self._plan.state}, {readers} reading")
        entries = self._cold_entries(readers)
        if self._plan.state == "planned":
            return [self._trial.cold(readers, entries, self._prove)]
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
        counts = self._workload.reader_counts
        if "cached" in self._states and measure.can_drop_pages():
            for readers in counts:
                self._progress(f"cached, {readers} reading")
                yield from self._trial.cached(readers)
        if "warm" in self._states:
            self._trial.make_warm(counts[-1])
            for readers in counts:
                self._progress(f"warm, {readers} reading")
                yield from self._trial.warm(readers, rounds=self._workload.rounds)

    def _prove_sample(self, sample: Sample) -> None:
        counts, arm = sample.store, self._trial.arm
        if counts is None:
            return
        name, size_bytes = f"{sample.state}-{sample.readers}-reading", sample.size_bytes
        if sample.state in ("cold", "planned") and isinstance(arm, Mount):
            self._prove(proofs.from_the_store(name, counts, size_bytes))
        elif 0 < self._plan.cache_share < 1:
            self._prove(proofs.rest_from_the_store(name, counts, size_bytes, self._plan))
        else:
            self._prove(proofs.little_from_the_store(name, counts, size_bytes))


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


def make_warm(arm: Arm, *, readers: int, seed: int) -> Proof | None:
    """Read everything until the page cache has it, and prove that; where a system lets the kernel
    keep no pages, there is nothing to prove."""
    site, proof = arm.site, None
    for number in range(_MOST_FILLS):
        entries = site.dataset.entries
        read_epoch(site.workspace, arm.root, entries, readers=readers, seed=seed + number)
        proof = proofs.pages_resident(site.dataset, arm)
        if proof is None or proof.ok:
            break
    return proof


def bare_sample(site: Site, readers: int, entries: Sequence[Entry]) -> Sample:
    """Fetch the same objects by plain GETs, at the same concurrency."""
    epoch = get_epoch(site.workspace, site.server, site.bucket, entries, readers=readers)
    return Sample(BARE, "cold", readers, epoch, measure.Usage(0.0, 0), None, bare_ratio=1.0)


def _beside(sample: Sample, *natives: Epoch) -> Sample:
    native = sum(epoch.bytes_per_s for epoch in natives) / len(natives)
    return replace(sample, native_ratio=sample.epoch.bytes_per_s / native)


def _are_enough(samples: Sequence[Sample]) -> bool:
    last = samples[-1]
    far = last.native_ratio is not None and last.native_ratio < _FAR_FROM_NATIVE
    return last.epoch.seconds > _LONG_S or (far and len(samples) >= _FEWEST_ROUNDS)
