"""A remote object store: S3 and web servers through our own client, the others through obstore.

Threading: any thread; blocking calls release the interpreter lock. A GET of 110 KiB costs 169 us of
CPU with obstore, 380 with its asyncio calls (ADR 1), and 60 with `s3objects` (ADR 13).
"""

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Protocol

import obstore
from obstore.exceptions import BaseError
from typing_extensions import Buffer

from penstock.errors import StoreError
from penstock.metrics import OK, Counters
from penstock.store import Chunks, Level, ObjectInfo, Pending, Progress, WrappedPending
from penstock.store.etags import PART_BYTES, BodyCheck, part_bytes
from penstock.store.obstore_listing import ObstoreListing
from penstock.store.s3objects import S3Objects
from penstock.store.s3uploads import S3Uploads
from penstock.store.source import SourcePrefix
from penstock.store.translate import translate
from penstock.store.versions import (
    BY_SIZE,
    BY_TIME,
    check_version,
    version_of,
)

_CHUNKS_AHEAD = 2


def read_in_thread(chunks: Chunks) -> Generator[Buffer]:
    """Yield chunks that another thread reads, a few ahead.

    obstore takes an upload's chunks within its own runtime. Chunks that are read with obstore, as
    in a copy from one bucket to another, would start a second runtime inside the first, which
    panics. Raises what reading raises. Closing the generator stops the thread.
    """
    chunk_queue: queue.Queue[Buffer | BaseException | None] = queue.Queue(_CHUNKS_AHEAD)
    stopped = threading.Event()

    def put(one: Buffer | BaseException | None) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                chunk_queue.put(one, timeout=0.1)
                return

    def read() -> None:
        try:
            for chunk in chunks():
                put(chunk)
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by the generator
            put(error)
        else:
            put(None)

    reader = threading.Thread(target=read, name="chunks", daemon=True)
    reader.start()
    try:
        while (one := chunk_queue.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        stopped.set()
        reader.join()


if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

# Parts of one object in flight at once; each is held in memory.
_PARTS_AT_ONCE = 4

# What obstore raises for a server that ignores a Range header: for S3, and for others.
_NO_RANGES = ("non-partial response", "Range request not supported")


class Listing(Protocol):
    """A listing."""

    def list_all(self, prefix: str, after: str) -> Iterator[list[ObjectInfo]]: ...

    def list_level(self, prefix: str) -> Level | None: ...

    def why_unreadable(self, key: str) -> str | None: ...


class RemoteStore:
    def __init__(
        self,
        store: "ObjectStore",
        *,
        identity: str,
        prefix: str,
        counters: Counters,
        ordered: bool = True,  # lists by key, so that a listing can continue behind one
        objects: S3Objects | None = None,  # used for reading instead of obstore
        listing: Listing | None = None,  # used instead of obstore's
        uploads: S3Uploads | None = None,
        check: BodyCheck | None = None,  # of bodies read with obstore; `objects` has its own
    ) -> None:
        self._store = store
        self.identity = identity
        self._counters = counters
        self._objects = objects
        self._listing = listing
        self._uploads = uploads
        self._check = check
        names = SourcePrefix(identity, prefix)
        self._inventory = ObstoreListing(store, names, counters, ordered=ordered)
        self._full = names.full

    # -- listing ------------------------------------------------------------------------

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        return (self._listing or self._inventory).list_all(prefix, after)

    def list_level(self, prefix: str) -> Level | None:
        return (self._listing or self._inventory).list_level(prefix)

    # -- data ---------------------------------------------------------------------------

    def get(
        self,
        key: str,
        version: str,
        start: int,
        length: int,
        size_bytes: int,
        progress: Progress | None = None,
    ) -> Buffer:
        if self._objects is not None:
            where, full = f"{self.identity}/{key}", self._full(key)
            data = self._objects.get(where, full, version, start, length, size_bytes, progress)
            return self._counted(key, data, length)
        options: GetOptions = {}
        if length != size_bytes:
            options["range"] = (start, start + length)
        if not version.startswith((BY_TIME, BY_SIZE, "W/")):
            options["if_match"] = f'"{version}"'
        try:
            result = obstore.get(self._store, self._full(key), options=options)
            self._check_version(key, version, size_bytes, result.meta)
            data = result.bytes()
        except (BaseError, OSError) as error:
            if any(words in str(error) for words in _NO_RANGES):
                data = self._get_from_the_start(key, version, start + length, size_bytes)
                return self._counted(key, memoryview(data)[start:], length)
            raise translate(error, f"{self.identity}/{key}") from error
        if self._check is not None and length == size_bytes == memoryview(data).nbytes:
            # obstore does not return the headers: the ETag of an object encrypted with a KMS key
            # is taken for an MD5 here.
            self._check(f"{self.identity}/{key}", version, {}, data)
        return self._counted(key, data, length)

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        if self._objects is None:
            return None
        where, full = f"{self.identity}/{key}", self._full(key)
        pending = self._objects.begin(where, full, version, size_bytes)
        if pending is None:
            return None
        return WrappedPending(pending, check=lambda data: self._count(memoryview(data).nbytes))

    def _check_version(self, key: str, version: str, size_bytes: int, meta: "ObjectMeta") -> None:
        where = f"{self.identity}/{key}"
        check_version(where, version, size_bytes, _version(meta), meta["size"])

    def _get_from_the_start(self, key: str, version: str, stop: int, size_bytes: int) -> bytearray:
        """Read from a server that ignores ranges, up to `stop` and no further."""
        data = bytearray()
        try:
            result = obstore.get(self._store, self._full(key))
            self._check_version(key, version, size_bytes, result.meta)
            for piece in result.stream():
                data += memoryview(piece)
                if len(data) >= stop:
                    break
        except (BaseError, OSError) as error:
            raise translate(error, f"{self.identity}/{key}") from error
        del data[stop:]
        return data

    def _counted(self, key: str, data: Buffer, length: int) -> Buffer:
        received = memoryview(data).nbytes
        if received != length:
            raise StoreError(
                f"{self.identity}/{key}: received {received} of {length} bytes", kind="wrong_length"
            )
        self._count(received)
        return data

    def _count(self, size_bytes: int) -> None:
        self._counters.add("store_requests", label="get", outcome=OK)
        self._counters.add("store_bytes", size_bytes)

    # -- writing ------------------------------------------------------------------------

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        where, full = f"{self.identity}/{key}", self._full(key)
        if self._uploads is not None:
            return self._uploads.put_file(where, full, chunks, size_bytes)
        in_parts = size_bytes > PART_BYTES
        try:
            # Whatever `chunks` raises cancels the upload, and removes its parts.
            result = obstore.put(
                self._store,
                full,
                _counted_chunks(chunks, size_bytes, where),
                use_multipart=in_parts,
                chunk_size=part_bytes(size_bytes),
                max_concurrency=_PARTS_AT_ONCE,
            )
            self._counters.add("store_requests", label="put", outcome=OK)
            if result["e_tag"] and not in_parts:
                return version_of(result["e_tag"], 0, size_bytes)
            # A store may lose a part when it joins them.
            written = obstore.head(self._store, full)
        except (BaseError, OSError) as error:
            raise translate(error, where) from error
        if written["size"] != size_bytes:
            raise StoreError(
                f"{where}: the store has {written['size']} of {size_bytes} bytes",
                kind="wrong_length",
            )
        return _version(written)

    def delete(self, key: str) -> None:
        if self._uploads is not None:
            self._uploads.delete(f"{self.identity}/{key}", self._full(key))
            return
        try:
            obstore.delete(self._store, self._full(key))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise translate(error, f"{self.identity}/{key}") from error
        self._counters.add("store_requests", label="delete", outcome=OK)

    def clear_partial(self, key: str) -> None:
        # Azure deletes old blocks; of the others only S3 keeps parts for ever.
        if self._uploads is not None:
            self._uploads.abort_uploads(self.identity, self._full(key))

    def why_unreadable(self, key: str) -> str | None:
        try:
            # Keys that object_store's Path cannot hold can be listed but not requested.
            key.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        if any(character < " " or character == "\x7f" for character in key):
            return "its name has a control character"
        return None if self._listing is None else self._listing.why_unreadable(key)


def _version(meta: "ObjectMeta") -> str:
    return version_of(meta["e_tag"], meta["last_modified"].timestamp(), meta["size"])


def _counted_chunks(chunks: Chunks, size_bytes: int, where: str) -> Iterator[Buffer]:
    received = 0
    with closing(read_in_thread(chunks)) as read:
        for chunk in read:
            received += memoryview(chunk).nbytes
            yield chunk
    if received != size_bytes:
        raise StoreError(f"{where}: read {received} of {size_bytes} bytes", kind="wrong_length")
