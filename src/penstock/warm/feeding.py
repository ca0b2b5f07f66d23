"""How batches reach an accelerator: a DataLoader's workers, the store, and time. Pure.

The loader is PyTorch's: batch i belongs to worker i % workers; each worker has `queued` batches
to make and makes one after the other; a batch that is taken lets the next one be handed out;
batches are taken in order. A new epoch begins with nothing handed out.

Time flows in batches, not in single GETs: an epoch of a million files takes milliseconds.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.warm.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of everything that batches meet on their way."""

    samples_per_s: float  # what the accelerator takes
    latency_s: float  # of one GET, without its bytes
    bandwidth_bytes_per_s: float  # of all GETs together; math.inf: no limit
    workers: int = 8
    concurrency: int = 256  # GETs in flight, at most; the prefetcher's own bound
    sample_s: float = 0.0  # of a worker's time for each sample that is at hand: read, decode
    queued: int = 2  # batches handed to each worker; DataLoader's prefetch_factor


class Batch(NamedTuple):
    samples: int
    misses: int  # samples that must come from the store
    miss_bytes: float
    gets: float  # for these; more than misses where files are larger than a block


class Timing(NamedTuple):
    first_batch_s: float
    whole_s: float


def feed_unplanned(batches: Sequence[Batch], rates: Rates) -> Timing:
    """One epoch in which each worker asks for one sample after the other, and waits for the first
    block of each: those behind it come ahead of the reader.

    Workers that fetch share bandwidth and GETs in flight, and are slowed alike by each other. So
    `progress`, the seconds that a worker would have needed alone, is one clock for all of them,
    and a worker's batch ends at a place on it that is known when it starts.
    """
    flows = [_Flow.of(batch, rates) for batch in batches]
    slots = rates.queued * rates.workers
    handed = min(slots, len(batches))
    started = [False] * rates.workers
    waiting = list(range(min(rates.workers, handed)))
    ready_s: list[float | None] = [None] * len(batches)
    running: list[tuple[float, int]] = []  # (its place on the clock `progress`, batch)
    now = progress = free_s = first_s = 0.0
    bytes_per_s = gets_in_flight = 0.0  # if nobody slowed anybody
    sharing = Sharing()
    taken = 0
    while taken < len(batches):
        for number in waiting:
            started[number % rates.workers] = True
            flow = flows[number]
            heapq.heappush(running, (progress + flow.alone_s, number))
            bytes_per_s += flow.bytes_per_s
            gets_in_flight += flow.gets_in_flight
        waiting = []
        speed = 1.0
        if running:
            transfer_share = bytes_per_s / rates.bandwidth_bytes_per_s / len(running)
            speed /= sharing.slowdown(transfer_share, min(len(running), rates.concurrency))
            speed *= min(1.0, rates.concurrency / max(gets_in_flight, 1.0))
        made_s = now + (running[0][0] - progress) / speed if running else math.inf
        ready = ready_s[taken]
        take_s = max(ready, free_s) if ready is not None else math.inf
        if take_s <= made_s:
            progress += (take_s - now) * speed
            now = take_s
            free_s = now + batches[taken].samples / rates.samples_per_s
            first_s = now if taken == 0 else first_s
            taken += 1
            if handed < len(batches):
                if not started[handed % rates.workers]:
                    waiting.append(handed)
                handed += 1
        else:
            progress, number = heapq.heappop(running)
            now = ready_s[number] = made_s
            flow = flows[number]
            bytes_per_s = max(0.0, bytes_per_s - flow.bytes_per_s)
            gets_in_flight = max(0.0, gets_in_flight - flow.gets_in_flight)
            started[number % rates.workers] = False
            if number + rates.workers < handed:
                waiting.append(number + rates.workers)
    return Timing(first_s, free_s)


def feed_planned(
    epochs: Sequence[Sequence[Batch]], rates: Rates, ahead_bytes: float = math.inf
) -> list[Timing]:
    """Epochs one after the other, fetched in their order, as far ahead of what was taken as
    `ahead_bytes` says, across the boundaries between them.

    Two queues bound the fetching: the bandwidth, and the GETs in flight, of which each takes
    latency and transfer. As many as may be in flight start at once.
    """
    sharing = Sharing()
    inverse_bandwidth = 1 / rates.bandwidth_bytes_per_s
    slots = rates.queued * rates.workers
    taken_s: list[float] = []  # of all batches of all epochs
    taken_bytes = [0.0]  # fetched bytes in the batches before that place
    gone = 0  # batches that must be taken before the next one fits into the window
    sent_s = moved_s = free_s = asked_bytes = 0.0
    found: list[Timing] = []
    for batches in epochs:
        began_s, first = free_s, len(taken_s)
        made_s: list[float] = []
        for place, batch in enumerate(batches):
            handed_s = began_s if place < slots else taken_s[first + place - slots]
            start_s = max(
                handed_s, made_s[place - rates.workers] if place >= rates.workers else 0.0
            )
            done_s = start_s + batch.samples * rates.sample_s
            asked_bytes += batch.miss_bytes
            if batch.gets:
                while gone < len(taken_s) and asked_bytes - taken_bytes[gone] > ahead_bytes:
                    gone += 1
                # What was handed to a worker is fetched, window or not.
                gate_s = min(taken_s[gone - 1] if gone else 0.0, handed_s)
                get_s = rates.latency_s + batch.miss_bytes / batch.gets * inverse_bandwidth
                transfer_share = 1 - rates.latency_s / get_s if get_s else 0.0
                slowdown = sharing.slowdown(transfer_share, rates.concurrency)
                sent_s = max(sent_s, gate_s)
                sent_s += batch.gets * get_s * slowdown / rates.concurrency
                moved_s = max(moved_s, gate_s + rates.latency_s)
                moved_s += batch.miss_bytes * inverse_bandwidth
                done_s = max(done_s, max(sent_s, moved_s, gate_s + get_s) + rates.sample_s)
            made_s.append(done_s)
            taken_s.append(max(done_s, free_s))
            taken_bytes.append(asked_bytes)
            free_s = taken_s[-1] + batch.samples / rates.samples_per_s
        found.append(Timing(taken_s[first] - began_s, free_s - began_s))
    return found


class _Flow(NamedTuple):
    """A worker that makes a batch, if nobody else were there."""

    alone_s: float
    bytes_per_s: float
    gets_in_flight: float

    @classmethod
    def of(cls, batch: Batch, rates: Rates) -> "_Flow":
        fetching_s = batch.misses * rates.latency_s + batch.miss_bytes / rates.bandwidth_bytes_per_s
        alone_s = fetching_s + batch.samples * rates.sample_s
        if alone_s <= 0:
            return cls(0.0, 0.0, 0.0)
        return cls(alone_s, batch.miss_bytes / alone_s, fetching_s / alone_s)
