"""One object from one store to another, in bounded memory, and compared on both sides.

The bytes pass by once: their MD5 is compared with the source's ETag before the last of them is
handed over, so that nothing wrong is ever whole in the target, and with the target's ETag after.
An ETag that looks like an MD5 and is none is found out: chance does not damage an object twice in
the same way.

Threading: any thread; one copy is one thread's, and at most so many large ones are on their way.
"""

import threading
import time
from collections.abc import Callable, Iterator

from typing_extensions import Buffer

from penstock.errors import StoreError
from penstock.resources.operations.locations import Found
from penstock.store import Store
from penstock.store.parts import PART_BYTES, Digest, is_md5
from penstock.warm.bucket import Bucket

# Four parts of each may wait to be sent, and one is being read.
_LARGE_AT_ONCE = 4
_MOST_TRIES = 3
_WAIT_S = 0.01

_large = threading.BoundedSemaphore(_LARGE_AT_ONCE)


class Stopped(Exception):
    """The migration has given up, or its time is over."""


class Copier:
    def __init__(
        self, *, bucket: Bucket | None, moved: Callable[[int], None], stopping: threading.Event
    ) -> None:
        """`moved` is told of each piece that has been read."""
        self._bucket = bucket
        self._moved = moved
        self._stopping = stopping

    def copy(self, found: Found, target: Store, key: str) -> str:
        """The target's version of it."""
        if found.info.size_bytes <= PART_BYTES:
            return self._copy(found, target, key)
        with _large:
            return self._copy(found, target, key)

    def _copy(self, found: Found, target: Store, key: str) -> str:
        one = _Passing(self, found)
        refused: list[str] = []
        for _ in range(_MOST_TRIES):
            version = target.put_file(key, one.chunks, found.info.size_bytes)
            digest = one.digest
            if not digest.contradicts(version) or digest.name() in refused:
                return version
            refused.append(digest.name())
        raise StoreError(
            f"{target.identity}/{key}: what was written does not match its ETag", kind="mismatch"
        )

    def pass_by(self, size_bytes: int) -> None:
        while self._bucket is not None and not self._bucket.take(size_bytes):
            self.look_up()
            time.sleep(_WAIT_S)
        self.look_up()
        self._moved(size_bytes)

    def look_up(self) -> None:
        if self._stopping.is_set():
            raise Stopped


class _Passing:
    """The bytes of one object on their way."""

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
            self._copier.pass_by(length)
        self._compare()
        if last is not None:
            yield last

    def _compare(self) -> None:
        version = self._found.info.version
        # Of one that came in parts nobody knows how it was cut up.
        if not is_md5(version) or not self.digest.contradicts(version):
            return
        before, self._refused = self._refused, self.digest.name()
        if before != self._refused:
            raise StoreError(
                f"{self._found.store.identity}/{self._found.info.key}: what came does not match "
                "its ETag",
                kind="mismatch",
            )
