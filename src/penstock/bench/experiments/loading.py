"""Reads ahead of an accelerator: threads that open, read and close, and batches of what has come.

As DLIO's readers do: a few threads, two batches ahead of the one that is computed (and two samples
ahead for each thread, where a batch is smaller than that). A batch is the next samples that have
come, in whatever order, as tf.data gives them when nothing asks for an order. Bytes are dropped
as soon as they have been read, so two batches ahead cost no memory.

Threading: `read` runs in the loader's threads, one call for each item; `on_taken` under its lock;
iteration in the caller's thread.
"""

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.bench.accelerator import Batch
from penstock.bench.experiments.reading import SampleReader

_BATCHES_AHEAD = 2
_SAMPLES_AHEAD_OF_A_THREAD = 2


@dataclass(slots=True)
class Log:
    """What each sample took. Appended to by whoever holds the lock of its owner."""

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
        self._come = threading.Condition(self._lock)
        self._next = 0  # item
        self._ahead = 0  # samples that have come, or are being read, and were not taken
        self._sizes: list[int] = []  # of those that have come
        self._came_s: list[float] = []  # when
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
                self._come.wait()
            if self._failure is not None:
                raise self._failure
            taken, self._sizes = self._sizes[: self._batch], self._sizes[self._batch :]
            came_s, self._came_s = self._came_s[: self._batch], self._came_s[self._batch :]
            self._ahead -= len(taken)
            self._room.notify_all()
            return Batch(len(taken), sum(taken), max(came_s, default=None))

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
                self._come.notify()

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
                self._came_s.append(end_s)
                if len(self._sizes) >= self._batch:
                    self._come.notify()

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
