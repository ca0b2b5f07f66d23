"""Object stores through obstore, and what is read of S3 and of the web through a client of our own.

Threading: any thread; blocking calls release the interpreter lock. obstore's cost 169 us of CPU for
a GET of 110 KiB, its asyncio calls 380 (ADR 1), and those of `s3objects` 60 (ADR 13).
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
from penstock.metrics import Counters
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

# Chunks that are made in a thread of their own, a few ahead of who takes them.
#
# obstore takes an upload's chunks within its own runtime. Whoever makes them with obstore, as a
# copy from one bucket to another does, would start a second runtime inside of the first, which
# panics.

_AHEAD = 2


def made_elsewhere(chunks: Chunks) -> Generator[Buffer]:
    """What making them raises comes out here. Closed early, no more are made."""
    made: queue.Queue[Buffer | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(one: Buffer | BaseException | None) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                made.put(one, timeout=0.1)
                return

    def make() -> None:
        try:
            for chunk in chunks():
                put(chunk)
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by who takes them
            put(error)
        else:
            put(None)

    maker = threading.Thread(target=make, name="chunks", daemon=True)
    maker.start()
    try:
        while (one := made.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        stopped.set()
        maker.join()


if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

# Parts of one object that are on their way at once; each is held in memory.
_PARTS_AT_ONCE = 4


# What obstore says of a server that answers the question for a part with the whole: S3's, others'.
_NO_RANGES = ("non-partial response", "Range request not supported")


class Listing(Protocol):
    """What is listed without obstore."""

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
        ordered: bool = True,  # by key, so that a listing can go on behind one
        objects: S3Objects | None = None,  # what is read is read through these, if not None
        listing: Listing | None = None,
        uploads: S3Uploads | None = None,
        check: BodyCheck | None = None,  # of what obstore reads; `objects` have their own
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
        data = self._counted(key, data, length)
        if self._check is not None and length == size_bytes:
            # obstore does not show the headers: the ETag of an object that is encrypted with a key
            # of KMS is taken for an MD5 here.
            self._check(f"{self.identity}/{key}", version, {}, data)
        return data

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
        """From a server that knows no ranges: up to what is wanted, and no further."""
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
        came = memoryview(data).nbytes
        self._count(came)
        if came != length:
            raise StoreError(
                f"{self.identity}/{key}: {came} bytes came of {length}", kind="wrong_length"
            )
        return data

    def _count(self, came: int) -> None:
        self._counters.add("store_requests", label="get")
        self._counters.add("store_bytes", came)

    # -- writing ------------------------------------------------------------------------

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        where, full = f"{self.identity}/{key}", self._full(key)
        if self._uploads is not None:
            return self._uploads.put_file(where, full, chunks, size_bytes)
        in_parts = size_bytes > PART_BYTES
        try:
            # Whatever `chunks` raises ends the upload, and takes its parts away again.
            result = obstore.put(
                self._store,
                full,
                _counted_chunks(chunks, size_bytes, where),
                use_multipart=in_parts,
                chunk_size=part_bytes(size_bytes),
                max_concurrency=_PARTS_AT_ONCE,
            )
            self._counters.add("store_requests", label="put")
            if result["e_tag"] and not in_parts:
                return version_of(result["e_tag"], 0, size_bytes)
            # Who puts parts together may leave one out.
            written = obstore.head(self._store, full)
        except (BaseError, OSError) as error:
            raise translate(error, where) from error
        if written["size"] != size_bytes:
            raise StoreError(
                f"{where}: {written['size']} bytes were kept of {size_bytes}", kind="wrong_length"
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
        self._counters.add("store_requests", label="delete")

    def clear_partial(self, key: str) -> None:
        # Azure forgets blocks by itself; of the others only S3 is known to keep parts for ever.
        if self._uploads is not None:
            self._uploads.abort_uploads(self.identity, self._full(key))

    def why_unreadable(self, key: str) -> str | None:
        try:
            # What object_store's Path refuses to hold can be listed but never asked for.
            key.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        if any(character < " " or character == "\x7f" for character in key):
            return "its name has a control character"
        return None if self._listing is None else self._listing.why_unreadable(key)


def _version(meta: "ObjectMeta") -> str:
    return version_of(meta["e_tag"], meta["last_modified"].timestamp(), meta["size"])


def _counted_chunks(chunks: Chunks, size_bytes: int, where: str) -> Iterator[Buffer]:
    came = 0
    with closing(made_elsewhere(chunks)) as made:
        for chunk in made:
            came += memoryview(chunk).nbytes
            yield chunk
    if came != size_bytes:
        raise StoreError(f"{where}: {came} bytes came of {size_bytes}", kind="wrong_length")
