"""Object stores through obstore, and objects of S3 through a faster client of our own.

Threading: any thread; blocking calls release the interpreter lock. obstore's cost 169 us of CPU for
a GET of 110 KiB, its asyncio calls 380 (ADR 1), and those of `s3objects` 60 (ADR 13).
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from typing_extensions import Buffer

from penstock.errors import StoreError
from penstock.metrics import Counters
from penstock.store import Chunks, Level, ObjectInfo, Pending
from penstock.store.elsewhere import made_elsewhere
from penstock.store.inventory import Fallback, Inventory
from penstock.store.parts import PART_BYTES, part_bytes
from penstock.store.pending import WrappedPending
from penstock.store.s3objects import S3Objects
from penstock.store.translate import translate
from penstock.store.versions import BY_SIZE, BY_TIME, check_version, size_version, version_of

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

# Parts of one object that are on their way at once; each is held in memory.
_PARTS_AT_ONCE = 4


# What obstore says of a server that answers the question for a part with the whole: S3's, others'.
_NO_RANGES = ("non-partial response", "Range request not supported")


class RemoteStore:
    def __init__(
        self,
        store: "ObjectStore",
        *,
        identity: str,
        prefix: str,
        counters: Counters,
        fallback: Callable[[], Fallback] | None = None,
        manifest: Callable[[], Iterator[list[ObjectInfo]]] | None = None,
        ordered: bool = True,  # by key, so that a listing can go on behind one
        objects: S3Objects | None = None,  # gets objects faster, if not None
    ) -> None:
        self._store = store
        self.identity = identity
        self._counters = counters
        self._fallback = fallback
        self._objects = objects
        self._manifest = manifest
        self._inventory = Inventory(
            store,
            identity=identity,
            prefix=prefix,
            counters=counters,
            fallback=fallback,
            ordered=ordered,
        )
        self._full = self._inventory.full

    # -- listing ------------------------------------------------------------------------

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        if self._manifest is None:
            yield from self._inventory.list_all(prefix, after)
            return
        for page in self._manifest():
            yield [info._replace(version=info.version or size_version(info)) for info in page]

    def list_level(self, prefix: str) -> Level | None:
        return self._inventory.list_level(prefix) if self._manifest is None else None

    def head(self, key: str) -> ObjectInfo:
        """What a listing would say of it, for one that does not."""
        self._counters.add("store_requests", label="head")
        try:
            meta = obstore.head(self._store, self._full(key))
        except (BaseError, OSError) as error:
            raise translate(error, f"{self.identity}/{key}") from error
        mtime_ns = int(meta["last_modified"].timestamp()) * 1_000_000_000
        return ObjectInfo(key, meta["size"], mtime_ns, _version(meta))

    # -- data ---------------------------------------------------------------------------

    def get(self, key: str, version: str, start: int, length: int, size_bytes: int) -> Buffer:
        if self._objects is not None:
            where, full = f"{self.identity}/{key}", self._full(key)
            data = self._objects.get(where, full, version, start, length, size_bytes)
            if data is not None:
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
        in_parts = size_bytes > PART_BYTES
        try:
            # Whatever `chunks` raises ends the upload, and takes its parts away again.
            result = obstore.put(
                self._store, full, _counted_chunks(chunks, size_bytes, where),
                use_multipart=in_parts, chunk_size=part_bytes(size_bytes),
                max_concurrency=_PARTS_AT_ONCE,
            )  # fmt: skip
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
        try:
            obstore.delete(self._store, self._full(key))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise translate(error, f"{self.identity}/{key}") from error
        self._counters.add("store_requests", label="delete")

    def clear_partial(self, key: str) -> None:
        # Azure forgets blocks by itself; of the others only S3 is known to keep parts for ever.
        if self._fallback is not None:
            self._fallback().abort_uploads(self._full(key))

    def why_unreadable(self, key: str) -> str | None:
        try:
            # What object_store's Path refuses to hold can be listed but never asked for.
            key.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        if any(character < " " or character == "\x7f" for character in key):
            return "its name has a control character"
        return None


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
