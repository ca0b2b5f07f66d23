"""Copy one object from one store to another, in bounded memory, verified on both sides.

The bytes pass once. Their MD5 is compared with the source's ETag before the last piece is handed
over, so that damaged data never becomes a whole object in the target, and with the target's ETag
afterwards. An ETag that looks like an MD5 and is none is recognized when a second copy has the same
sum: chance does not damage an object twice in the same way.

Threading: any thread; each copy is one thread's.
"""

import threading
import time
from collections.abc import Callable, Iterator

from typing_extensions import Buffer

from penstock.errors import StoreError
from penstock.operations.locations import Found
from penstock.store import Store
from penstock.store.etags import PART_BYTES, Digest, is_md5
from penstock.warm.pace import RateLimit

# Copies of large objects at once. Of each, four parts may wait to be sent while one is read.
_LARGE_AT_ONCE = 4
_MOST_TRIES = 3
_WAIT_S = 0.01

_large = threading.BoundedSemaphore(_LARGE_AT_ONCE)


class Stopped(Exception):
    """The migration has failed, or its time is over."""


class Copier:
    def __init__(
        self,
        *,
        rate_limit: RateLimit | None,
        moved: Callable[[int], None],
        stopping: threading.Event,
    ) -> None:
        """`moved` is called with the size of each piece that was read."""
        self._rate_limit = rate_limit
        self._moved = moved
        self._stopping = stopping

    def copy(self, found: Found, target: Store, key: str) -> str:
        """Copy one object; return its version in the target."""
        if found.info.size_bytes <= PART_BYTES:
            return self._copy(found, target, key)
        with _large:
            return self._copy(found, target, key)

    def _copy(self, found: Found, target: Store, key: str) -> str:
        transfer = _Transfer(self, found)
        refused: list[str] = []
        for _ in range(_MOST_TRIES):
            version = target.put_file(key, transfer.chunks, found.info.size_bytes)
            digest = transfer.digest
            if not digest.contradicts(version) or digest.name() in refused:
                return version
            refused.append(digest.name())
        raise StoreError(
            f"{target.identity}/{key}: the written data does not match its ETag", kind="mismatch"
        )

    def count(self, size_bytes: int) -> None:
        while self._rate_limit is not None and not self._rate_limit.take(size_bytes):
            self.check_stopped()
            time.sleep(_WAIT_S)
        self.check_stopped()
        self._moved(size_bytes)

    def check_stopped(self) -> None:
        if self._stopping.is_set():
            raise Stopped


class _Transfer:
    """The bytes of one object on their way from the source to the target."""

    def __init__(self, copier: Copier, found: Found) -> None:
        self._copier = copier
        self._found = found
        self._refused: str | None = None
        self.digest = Digest(found.info.size_bytes)

    def chunks(self) -> Iterator[Buffer]:
        info = self._found.info
        self.digest = Digest(info.size_bytes, whole=is_md5(info.version))
        last: Buffer | None = None
        for start in range(0, info.size_bytes, PART_BYTES):
            if last is not None:
                yield last
            length = min(PART_BYTES, info.size_bytes - start)
            last = self._found.store.get(info.key, info.version, start, length, info.size_bytes)
            self.digest.update(last)
            self._copier.count(length)
        self._compare()
        if last is not None:
            yield last

    def _compare(self) -> None:
        version = self._found.info.version
        # The ETag of a multipart upload depends on its part sizes, which are unknown.
        if not is_md5(version) or not self.digest.contradicts(version):
            return
        before, self._refused = self._refused, self.digest.name()
        if before != self._refused:
            raise StoreError(
                f"{self._found.store.identity}/{self._found.info.key}: the data does not match "
                "its ETag",
                kind="mismatch",
            )
