"""Object storage: one small protocol, its backends and its wrappers.

Charter: turns keys and ranges into bytes, and library exceptions into PenstockErrors. Knows nothing
of directories, caches or files. Every call but `begin` blocks; any thread may call.

    source             parses s3://bucket/prefix; connect opens the store of a source
    credentials        given keys, environment, profiles, roles; redaction hides them in texts
    retry              wraps a store with retries; faulty wraps one with injected faults, for tests
    remote             object stores: obstore for gs and az, our own client for the others
    s3objects          objects over http and sigv4: s3, oss, bos, http, https
    s3listing, s3uploads, s3headers, obstore_listing, weblisting, indexpage, xmlbody
    local              a folder of this machine; removed is a store that is not mounted any more
    versions, etags    what identifies the bytes of an object, and verifies them
    translate          library exceptions to ours
    buffers            memory for the bodies of large objects
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
    """One level of a listing by `/`: objects directly here, and prefixes of deeper ones."""

    objects: list[ObjectInfo]
    prefixes: list[str]


# Returns the bytes of one object, a piece at a time; from the start on each call, since a failed
# upload is retried.
Chunks = Callable[[], Iterator[Buffer]]


# Called repeatedly with the bytes of a request that have arrived so far.
Progress = Callable[[memoryview], None]


class Pending(Protocol):
    """A GET in flight, for a thread that does other work meanwhile."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to receive."""
        ...

    def advance(self) -> bool:
        """Receive what has arrived; return True once `result` is ready. Never blocks or raises."""
        ...

    def result(self) -> Buffer:
        """Return the bytes, or raise what this one attempt failed with."""
        ...

    def retry(self, error: Exception, /) -> Buffer:
        """Return the bytes by retrying, where that may help.

        Blocks as `get` does, and raises `error` or a later one.
        """
        ...


class WrappedPending:
    """A Pending of a store that wraps another one.

    `check` is called with the bytes before the caller gets them, and may raise; `retry` replaces
    that of the inner Pending.
    """

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
        """Name the data without credentials; part of every cache key."""
        ...

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        """Yield every object below `prefix` ("" or a path without a trailing slash), page by page.

        `after` continues a listing that failed behind this key. Objects before it may come again:
        not every store lists in order.
        """
        ...

    def list_level(self, prefix: str) -> Level | None:
        """Return one level; None where this store cannot list by level."""
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
        """Return exactly `length` bytes of that version; raise ObjectChanged, ObjectNotFound or
        StoreError.

        `progress` is called meanwhile where a store can do that, with bytes that need no further
        check: not for a whole object, which may have a checksum.
        """
        ...

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        """Request a whole object without waiting for it; None where only `get` can."""
        ...

    def why_unreadable(self, key: str) -> str | None:
        """Return why `get` can never fetch this key; None if it can."""
        ...

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        """Write an object of `size_bytes`, replacing an old one atomically; return its version.

        The object is never held in memory as a whole. What `chunks` raises cancels the upload, and
        is raised here.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete an object. A missing one is no error: not every store reports it."""
        ...

    def clear_partial(self, key: str) -> None:
        """Remove what a killed `put_file` of this key has left: the parts of an unfinished upload
        are invisible, and cost money."""
        ...
