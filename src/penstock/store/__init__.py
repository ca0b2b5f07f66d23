"""Object storage: one small protocol, and the backends that speak it.

Charter: turns names and ranges into bytes, and library exceptions into ours. Knows nothing
of directories, caches or files. Every call blocks and may be made from any thread.
"""

from collections.abc import Iterator
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


class Store(Protocol):
    @property
    def identity(self) -> str:
        """Names the data without credentials; part of every cache key."""
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

    def get(self, key: str, version: str, start: int, length: int, size_bytes: int) -> Buffer:
        """Exactly `length` bytes of that version, or ObjectChanged, ObjectNotFound, StoreError."""
        ...

    def why_unreadable(self, key: str) -> str | None:
        """Why `get` could never fetch this key; None if it can."""
        ...
