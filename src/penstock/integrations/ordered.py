"""Reads files in an order that the mount knows in advance.

For loaders other than torch's DataLoader: tf.data, DALI, WebDataset, a plain loop. `announce`
passes on items that other code reads, `read_in_order` reads files itself. Both publish the order as
a plan, so that the mount fetches ahead of the reader, and move its cursor as they go. The order may
be endless, and may name a file more than once (several epochs, one after the other).

Reads exactly what would be read without a plan, in the same order. If a plan is impossible (no path
is on a mount, or the server does not take the plan), one warning says why, and the files are read
without it: a script runs unchanged on a local copy of its data.

Threading: an iterator belongs to the thread that iterates over it. Its plan, and the threads that
read for it, end with it: when it is exhausted, closed or collected. Make it in the process that
uses it, not before a fork.
"""

import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar

from penstock.errors import PenstockError
from penstock.integrations.plans import Plan, open_plan

T = TypeVar("T")
Name = str | os.PathLike[str]

# How much of an order is drawn ahead of the reader, and published. At 1,786 files/s this is more
# than half a minute, far beyond any window of the prefetcher; an endless order can be published.
CHUNK = 65_536


def read_in_order(
    paths: Sequence[Name],
    order: Iterable[int] | None = None,
    *,
    threads: int = 8,
    label: str = "",
) -> Generator[tuple[int, bytes], None, None]:
    """Yield (index, content) of each file in this order; `order` has indices into `paths`.

    Without an order, each file once, in the order of `paths`. If a file cannot be read, its OSError
    is raised in its place.
    """
    names = [os.fspath(path) for path in paths]
    return each_in_order(
        names, lambda index: read_file(names[index]), order, threads=threads, label=label
    )


def each_in_order(
    paths: Sequence[Name],
    work: Callable[[int], T],
    order: Iterable[int] | None = None,
    *,
    threads: int = 8,
    label: str = "",
    plan: bool = True,
) -> Generator[tuple[int, T], None, None]:
    """Yield (index, work(index)) for each index in this order; `threads` threads work ahead.

    What `work` raises is raised in its place. `plan=False` uses the threads only.
    """
    order = range(len(paths)) if order is None else order
    # The threads alone have few files in flight at once: opening a plan would cost more.
    planned = paths if plan and len(paths) > threads else ()
    with _Announced(planned, _checked(order, len(paths)), label) as announced:
        pool = ThreadPoolExecutor(threads, "penstock-read")
        waiting: deque[tuple[int, Future[T]]] = deque()
        try:
            while True:
                while len(waiting) < 2 * threads and (index := announced.draw()) is not None:
                    waiting.append((index, pool.submit(work, index)))
                if not waiting:
                    return
                index, future = waiting.popleft()
                result = future.result()
                announced.consumed(announced.drawn - len(waiting))
                yield index, result
        finally:
            pool.shutdown(cancel_futures=True)


def announce(
    items: Iterable[T],
    path_of: Callable[[T], Name],
    *,
    lag: int = 1,
    label: str = "",
) -> Generator[T, None, None]:
    """Yield the same items in the same order; the order is published before the first item.

    For items that other code opens: shards of a pipeline, rows with a path. `lag`: how many of the
    yielded items are still being read when the next one is requested. The items are drawn 65,536
    at a time, so they should be names, not data.
    """
    source = iter(items)
    while chunk := list(islice(source, CHUNK)):
        names = [os.fspath(path_of(item)) for item in chunk]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        order = (places[name] for name in names)
        with _Announced(list(places), order, label) as announced:
            for item in chunk:
                announced.draw()
                announced.consumed(max(announced.drawn - lag, 0))
                yield item


def read_file(path: Name) -> bytes:
    """Return the whole content of a file.

    Unbuffered: a buffered open first asks whether the file is a terminal (CPython before 3.14),
    which is one message to the server for each file.
    """
    with open(path, "rb", buffering=0) as file:
        return file.readall()


class _Announced:
    """An order drawn in chunks; each chunk is published before its first index is handed out."""

    def __init__(self, paths: Sequence[Name], order: Iterable[int], label: str) -> None:
        self.drawn = 0
        self._order = iter(order)
        self._ahead: deque[int] = deque()
        self._plan = _plan(paths, label) if paths else None

    def draw(self) -> int | None:
        """Return the next index; None at the end of the order."""
        if len(self._ahead) <= CHUNK // 2:
            chunk = list(islice(self._order, CHUNK - len(self._ahead)))
            self._ahead.extend(chunk)
            if chunk and self._plan is not None:
                self._plan.extend(chunk)
        if not self._ahead:
            return None
        self.drawn += 1
        return self._ahead.popleft()

    def consumed(self, count: int) -> None:
        """Move the cursor: the first `count` of those drawn have been read to their end."""
        if self._plan is not None:
            self._plan.reached(self.drawn, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._plan is not None:
            self._plan.close()


def _plan(paths: Sequence[Name], label: str) -> Plan | None:
    try:
        return open_plan([os.fspath(path) for path in paths], label=label)
    except PenstockError as error:
        hint = f"; hint: {error.hint}" if error.hint else ""
        # 4: the line that iterates; between are the generator and its order.
        warnings.warn(f"penstock reads without a plan: {error}{hint}", stacklevel=4)
        return None


def _checked(order: Iterable[int], count: int) -> Iterator[int]:
    for index in order:
        if not 0 <= index < count:
            raise IndexError(f"the order names file {index}, and there are {count}")
        yield index
