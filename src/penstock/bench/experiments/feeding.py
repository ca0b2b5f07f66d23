"""The program that trains: several epochs, on several emulated accelerators.

    python -Pm penstock.bench.experiments.feeding CONFIG.json

Each accelerator (rank) is a forked process with threads that read ahead, as DLIO's readers do: two
batches ahead of the one that is computed, and two samples ahead for each thread where a batch is
smaller than that. A batch is the next samples that arrived, in whatever order, as tf.data gives
them when nothing asks for an order. Bytes are dropped as soon as they have been read.

After each step a rank waits until all the others have computed theirs too, as a distributed
training does when it exchanges gradients; the parent is where they meet. A rank without batches
left is not waited for.

After each epoch the parent reads a FIFO, so that the process that measures can look around while
the ranks, their memory and their plans still exist. The figures of an epoch are in
OUTPUT/epoch-N-rank-R.json before its line is printed.

Threading: forks before any thread is started; a rank's own threads are the loader's, which call
`read` once for each item and `on_taken` under the loader's lock.
"""

import ctypes
import json
import os
import random
import resource
import selectors
import socket
import struct
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.accelerators import Accelerator, Batch
from penstock.bench.readers import BUFFER_BYTES
from penstock.bench.samples import SampleReader, sample_reader
from penstock.errors import PenstockError

_BATCHES_AHEAD = 2
_SAMPLES_AHEAD_OF_A_THREAD = 2


@dataclass(slots=True)
class Log:
    """The time and size of each sample. Append to it with the lock of its owner held."""

    ends_s: "array[float]" = field(default_factory=lambda: array("d"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, start_s: float, end_s: float, size_bytes: int) -> None:
        self.ends_s.append(end_s)
        self.seconds.append(end_s - start_s)
        self.sizes.append(size_bytes)


class Loader:
    """One epoch of one accelerator. Iterate once; `close` ends the threads."""

    def __init__(
        self,
        items: Sequence[str],
        make_reader: Callable[[], SampleReader],
        *,
        batch: int,
        threads: int,
        on_taken: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = Log()
        self._items = items
        self._make_reader = make_reader
        self._batch = batch
        self._on_taken = on_taken
        self._clock = clock
        self._most_ahead = max(_BATCHES_AHEAD * batch, _SAMPLES_AHEAD_OF_A_THREAD * threads)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._arrived = threading.Condition(self._lock)
        self._next = 0  # item
        self._ahead = 0  # samples that arrived or are being read, and were not taken
        self._sizes: list[int] = []  # of those that arrived
        self._arrived_s: list[float] = []  # when
        self._running = 0
        self._closed = False
        self._failure: OSError | None = None
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __iter__(self) -> Iterator[Batch]:
        self._running = len(self._threads)
        for thread in self._threads:
            thread.start()
        while (batch := self._take()).samples:
            yield batch

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._room.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _take(self) -> Batch:
        with self._lock:
            while len(self._sizes) < self._batch and self._running and self._failure is None:
                self._arrived.wait()
            if self._failure is not None:
                raise self._failure
            count = self._batch
            taken, self._sizes = self._sizes[:count], self._sizes[count:]
            arrived_s, self._arrived_s = self._arrived_s[:count], self._arrived_s[count:]
            self._ahead -= len(taken)
            self._room.notify_all()
            return Batch(len(taken), sum(taken), max(arrived_s, default=None))

    def _run(self) -> None:
        read = self._make_reader()
        try:
            while (item := self._next_item()) is not None:
                self._read_item(read(item))
        except OSError as error:
            self._failure = error
        finally:
            with self._lock:
                self._running -= 1
                self._arrived.notify()

    def _read_item(self, samples: Iterator[int]) -> None:
        while self._wait_for_room():
            start_s = self._clock()
            size_bytes = next(samples, None)
            end_s = self._clock()
            with self._lock:
                if size_bytes is None:
                    self._ahead -= 1
                    self._room.notify()
                    return
                self.log.add(start_s, end_s, size_bytes)
                self._sizes.append(size_bytes)
                self._arrived_s.append(end_s)
                if len(self._sizes) >= self._batch:
                    self._arrived.notify()

    def _next_item(self) -> str | None:
        with self._lock:
            if self._closed or self._next >= len(self._items):
                return None
            item = self._items[self._next]
            self._next += 1
            self._on_taken()
            return item

    def _wait_for_room(self) -> bool:
        with self._lock:
            while self._ahead >= self._most_ahead and not self._closed:
                self._room.wait()
            self._ahead += 1
            return not self._closed


INTERVAL_S = 0.5  # of the series
_PR_SET_TIMERSLACK = 29
_TIMERSLACK_NS = 1000  # 50 us by default: 1.4% of CosmoFlow's steps of 3.5 ms on an H100
_WAITS, _ENDED, _GO = b"w", b"e", b"g"
_TIME = struct.Struct("d")
_MESSAGE_BYTES = 1 + _TIME.size  # what it is, and often a time


@dataclass(frozen=True, slots=True)
class Item:
    """One file, and how many samples it has."""

    path: str
    size_bytes: int
    samples: int


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """CONFIG.json: what the program reads, and how."""

    root: str | None  # None: samples are made in memory, nothing is read
    layout: str
    items: tuple[Item, ...]
    ranks: int
    threads: int  # of each rank
    batch: int
    step_s: float
    epochs: int
    seed: int
    planned: bool
    gate: str
    output: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def reader_config_from_json(value: dict[str, Any]) -> ReaderConfig:
    items: list[dict[str, Any]] = value["items"]
    words: dict[str, Any] = {**value, "items": tuple(Item(**item) for item in items)}
    return ReaderConfig(**words)


def share_of(config: ReaderConfig, epoch: int, rank: int) -> "array[int]":
    """Return the places of the files that a rank reads, in an order of this epoch alone."""
    places = list(range(len(config.items)))
    random.Random(f"{config.seed}/{epoch}").shuffle(places)
    return array("q", places[rank :: config.ranks])


class Rank:
    """One process: an accelerator."""

    def __init__(self, config: ReaderConfig, number: int, line: socket.socket) -> None:
        self._config = config
        self._number = number
        self._line = line
        self._plan_publisher = _PlanPublisher(config, number) if config.planned else None

    def run(self) -> None:
        # Else each sleep would be longer than asked for by as much.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMERSLACK_NS, 0, 0, 0)
        for epoch in range(self._config.epochs):
            share = share_of(self._config, epoch, self._number)
            items = [self._config.items[place].path for place in share]
            go_s = self._wait_for_go()
            before = resource.getrusage(resource.RUSAGE_SELF)
            if self._plan_publisher is not None:
                self._plan_publisher.begin(epoch)
            start_s = time.monotonic()
            log, figures = self._train(items, epoch)
            end_s = start_s + figures["seconds"]
            after = resource.getrusage(resource.RUSAGE_SELF)
            self._write(
                epoch,
                {
                    "start_s": start_s - go_s,
                    "end_s": end_s - go_s,
                    "samples": len(log.sizes),
                    "bytes": sum(log.sizes),
                    "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                    "figures": figures,
                    "seconds": [round(seconds, 6) for seconds in log.seconds],
                    **series_of(log, go_s),
                },
            )
            self._line.sendall(_ENDED)
        self._line.recv(1)  # nothing, when the parent ends

    def _train(self, items: list[str], epoch: int) -> tuple[Log, dict[str, Any]]:
        config, batch = self._config, self._config.batch
        loader = Loader(
            items,
            self._make_reader,
            batch=batch,
            threads=config.threads,
            on_taken=self._plan_publisher.taken
            if self._plan_publisher is not None
            else lambda: None,
        )
        # Threads are joined after the clock stopped: no batch is left to wait for.
        try:
            figures = Accelerator(batch, config.step_s).train(
                loader,
                epoch=epoch,
                barrier=self._wait_at_barrier if config.ranks > 1 else None,
            )
        finally:
            loader.close()
        return loader.log, asdict(figures)

    def _make_reader(self) -> SampleReader:
        if self._config.root is None:
            return _memory_reader(self._config)
        read, root = sample_reader(self._config.layout), self._config.root
        return lambda item: read(f"{root}/{item}")

    def _wait_at_barrier(self, done_s: float) -> float:
        """Send the time at which this rank was done; return the time at which the last one was."""
        self._line.sendall(_WAITS + _TIME.pack(done_s))
        return self._wait_for_go()

    def _wait_for_go(self) -> float:
        message = self._line.recv(_MESSAGE_BYTES)
        if not message:
            raise OSError("the others that read are gone")
        return _TIME.unpack(message[1:])[0]

    def _write(self, epoch: int, found: dict[str, Any]) -> None:
        path = Path(self._config.output) / f"epoch-{epoch}-rank-{self._number}.json"
        path.write_text(json.dumps(found))


class _PlanPublisher:
    """Publishes to the mount what this rank will read. One thread at a time calls `taken`."""

    def __init__(self, config: ReaderConfig, rank: int) -> None:
        from penstock.integrations.publisher import Publisher

        self._config, self._rank = config, rank
        self._publisher = Publisher([f"{config.root}/{item.path}" for item in config.items])

    def begin(self, epoch: int) -> None:
        self._publisher.begin([share_of(self._config, epoch, self._rank)])
        if epoch + 1 < self._config.epochs:
            self._publisher.announce(share_of(self._config, epoch + 1, self._rank))

    def taken(self) -> None:
        self._publisher.hand_out(1, lag=self._config.threads)


def _memory_reader(config: ReaderConfig) -> SampleReader:
    """Return a reader that copies samples of the right sizes in memory: the ceiling."""
    source = memoryview(bytes(BUFFER_BYTES))
    items = {item.path: item for item in config.items}

    def make(path: str) -> Iterator[int]:
        item = items[path]
        for number in range(item.samples):
            size = item.size_bytes // item.samples
            if number == item.samples - 1:
                size += item.size_bytes % item.samples
            for begin in range(0, size, BUFFER_BYTES):
                bytes(source[: min(BUFFER_BYTES, size - begin)])
            yield size

    return make


def series_of(log: Log, go_s: float) -> dict[str, list[int]]:
    """Return bytes and samples of each stretch of INTERVAL_S since the epoch began."""
    last = max(log.ends_s, default=go_s) - go_s
    sizes, samples = [0] * (int(last / INTERVAL_S) + 1), [0] * (int(last / INTERVAL_S) + 1)
    for end_s, size_bytes in zip(log.ends_s, log.sizes, strict=True):
        place = int((end_s - go_s) / INTERVAL_S)
        sizes[place] += size_bytes
        samples[place] += 1
    return {"series_bytes": sizes, "series_samples": samples}


class _Barrier:
    """The parent's side: starts an epoch, and releases the ranks when all have arrived."""

    def __init__(self, lines: list[socket.socket]) -> None:
        self._lines = lines

    def run_epoch(self) -> bool:
        """Run one epoch; return False if a rank has died."""
        message = _GO + _TIME.pack(time.monotonic())
        active, waiting, last_s = set(self._lines), set[socket.socket](), 0.0
        with selectors.DefaultSelector() as selector:
            for line in self._lines:
                selector.register(line, selectors.EVENT_READ)
                line.sendall(message)
            while active:
                for key, _ in selector.select():
                    line = key.fileobj
                    assert isinstance(line, socket.socket)
                    message = line.recv(_MESSAGE_BYTES)
                    if not message:
                        return False
                    if message == _ENDED:
                        active.discard(line)
                    else:
                        waiting.add(line)
                        last_s = max(last_s, _TIME.unpack(message[1:])[0])
                if waiting and waiting >= active:
                    for line in waiting:
                        line.sendall(_GO + _TIME.pack(last_s))
                    waiting.clear()
        return True


def _fork(config: ReaderConfig, number: int, others: list[socket.socket]) -> socket.socket:
    # Messages stay whole.
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        child_end.close()
        return parent_end
    status = 1
    try:
        parent_end.close()
        for other in others:
            other.close()
        Rank(config, number, child_end).run()
        status = 0
    except (OSError, PenstockError) as error:
        os.write(2, f"{error}\n".encode())
    finally:
        # Also after an unexpected error: a fork must never go on as its parent.
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(status)


def run(config: ReaderConfig, wait_at_gate: Callable[[], object]) -> int:
    lines: list[socket.socket] = []
    for number in range(config.ranks):
        lines.append(_fork(config, number, lines))
    barrier = _Barrier(lines)
    for epoch in range(config.epochs):
        if not barrier.run_epoch():
            return 1
        print(json.dumps({"epoch": epoch}), flush=True)
        wait_at_gate()
    return 0


def main() -> int:
    config = reader_config_from_json(json.loads(Path(sys.argv[1]).read_text()))
    return run(config, lambda: Path(config.gate).read_bytes())


if __name__ == "__main__":
    sys.exit(main())
