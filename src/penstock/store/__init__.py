"""Object storage: one small protocol, and the backends that speak it.

Charter: turns names and ranges into bytes, and library exceptions into ours. Knows nothing
of directories, caches or files. Every call blocks and may be made from any thread.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from typing_extensions import Buffer


class ObjectInfo(NamedTuple):
    key: str  # as the store spells it, below the source's prefix; may be odd (`a//b`)
    size_bytes: int
    mtime_ns: int
    version: str  # changes whenever the bytes change: ETag where there is one


class Level(NamedTuple):
    """One level of a listing by `/`: what lies directly here, and what goes deeper."""

    objects: list[ObjectInfo]
    prefixes: list[str]


# The bytes of one object, a piece at a time; from the beginning each time it is called, since what
# failed in the middle is sent again.
Chunks = Callable[[], Iterator[Buffer]]


# Called with what has arrived so far of the bytes that were asked for, again and again.
Progress = Callable[[memoryview], None]


class Pending(Protocol):
    """An object on its way, for a thread that has other things to do meanwhile."""

    def fileno(self) -> int:
        """What to wait for: readable when there is something to receive."""
        ...

    def advance(self) -> bool:
        """Receive what has arrived. True once `result` knows; never blocks, never raises."""
        ...

    def result(self) -> Buffer:
        """The bytes, or what this one attempt has failed with."""
        ...

    def retry(self, error: Exception, /) -> Buffer:
        """The bytes after all, where trying again helps: blocks as `get` does, and raises `error`
        or what came after it."""
        ...


class WrappedPending:
    """See Pending. `check` gets the bytes before the caller does, and may raise; `retry` replaces
    that of the inner one."""

    def __init__(
        self,
        pending: Pending,
        *,
        check: Callable[[Buffer], None] | None = None,
        retry: Callable[[Exception], Buffer] | None = None,
    ) -> None:
        self.fileno = pending.fileno
        self.advance = pending.advance
        self.retry = retry or pending.retry
        self._result = pending.result
        self._check = check

    def result(self) -> Buffer:
        data = self._result()
        if self._check is not None:
            self._check(data)
        return data


class Store(Protocol):
    @property
    def identity(self) -> str:
        """SourcePrefix the data without credentials; part of every cache key."""
        ...

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        """Everything below `prefix` ("" or a path without a trailing slash), page by page.

        `after` goes on with a listing that broke behind this key. What lies before it may come
        again: not every store lists in order.
        """
        ...

    def list_level(self, prefix: str) -> Level | None:
        """One level; None where this store cannot list by level."""
        ...

    def get(
        self,
        key: str,
        version: str,
        start: int,
        length: int,
        size_bytes: int,
        progress: Progress | None = None,
    ) -> Buffer:
        """Exactly `length` bytes of that version, or ObjectChanged, ObjectNotFound, StoreError.

        `progress` is called meanwhile where a store can do that, with bytes of that version that
        nothing will be found wrong with: not for a whole object, which may have a checksum.
        """
        ...

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        """Ask for a whole object without waiting for it; None where only `get` can."""
        ...

    def why_unreadable(self, key: str) -> str | None:
        """Why `get` could never fetch this key; None if it can."""
        ...

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        """Writes an object of so many bytes, in place of the one that may be there: all of it or
        nothing, and never held in memory as a whole. Returns its version. What `chunks` raises
        ends it, and comes out."""
        ...

    def delete(self, key: str) -> None:
        """One that is not there is no error: not every store tells."""
        ...

    def clear_partial(self, key: str) -> None:
        """Takes away what a `put_file` of this key has left that was killed in the middle: parts
        of an upload are seen by nobody, and paid for."""
        ...
