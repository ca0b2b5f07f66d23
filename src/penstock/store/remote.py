"""Object stores through obstore: every request leaves the machine here.

Threading: any thread; obstore's blocking calls release the interpreter lock. They cost
169 us of CPU for a GET of 110 KiB, its asyncio calls 380, so threads it is (ADR 1).
"""

import posixpath
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import obstore
from obstore.exceptions import BaseError, InvalidPathError
from typing_extensions import Buffer

from penstock.errors import (
    ObjectChanged,
    ObjectNotFound,
    PenstockError,
    SourceError,
    StoreError,
)
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo
from penstock.store.translate import translate

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

_PAGE_ENTRIES = 1000
# Versions of stores that give no ETag. What begins otherwise is an ETag, without its quotes:
# some servers (rclone's) quote it in an answer and not in a listing.
_BY_TIME = "mtime-"
_BY_SIZE = "size-"


class Fallback(Protocol):
    """What obstore cannot do of S3: see penstock.store.fallback."""

    def has_leading_slash(self) -> bool: ...

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]: ...

    def get_range(
        self, key: str, version: str, start: int, length: int, size_bytes: int
    ) -> bytes: ...


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
        ordered: bool = True,
    ) -> None:
        self._store = store
        self.identity = identity
        self._prefix = prefix
        self._counters = counters
        self._fallback = fallback
        self._answers_ranges_with_200 = False
        self._manifest = manifest
        self._ordered = ordered  # by key, so that a listing can go on behind one
        self._withheld: set[str] = set()  # prefixes that must be listed from their start again

    # -- listing ------------------------------------------------------------------------

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        if not self._ordered or prefix in self._withheld:
            after = ""
        self._withheld.discard(prefix)
        if self._manifest is not None:
            for page in self._manifest():
                yield [info._replace(version=info.version or _size_version(info)) for info in page]
            return
        try:
            pages = self._list_normalised(prefix, after)
            first = next(pages, list[ObjectInfo]())
            # Only at the bucket's root does obstore strip a leading slash without a word.
            if self._fallback is not None and not self._full(prefix):
                fallback = self._fallback()
                if fallback.has_leading_slash():
                    yield from self._list_exactly(fallback, prefix, after)
                    return
            yield first
            yield from pages
        except InvalidPathError as error:
            if self._fallback is None:
                raise SourceError(
                    f"{self.identity}: a key that this client cannot express: "
                    f"{str(error).splitlines()[0]}",
                    hint="rename that object; only S3 listings can pass over such keys",
                ) from error
            # Starts this prefix again: the catalog takes an entry that comes twice as one.
            yield from self._list_exactly(self._fallback(), prefix)

    def _list_exactly(
        self, exact: Fallback, prefix: str, after: str = ""
    ) -> Iterator[list[ObjectInfo]]:
        for page in exact.list_all(self._full(prefix), self._full(after) if after else ""):
            self._counters.add("store_requests", label="list")
            yield [info._replace(key=self._relative(info.key)) for info in page]

    def _list_normalised(self, prefix: str, after: str) -> Iterator[list[ObjectInfo]]:
        # obstore strips a trailing slash, so an empty object may be a file or the marker of a
        # directory. One listing by level of its parent tells, for all its siblings at once.
        unclear: dict[str, list[ObjectInfo]] = {}
        try:
            pages = obstore.list(
                self._store,
                self._full(prefix) or None,
                offset=self._full(after) if after else None,
                chunk_size=_PAGE_ENTRIES,
            )
            for metas in pages:
                self._counters.add("store_requests", label="list")
                page: list[ObjectInfo] = []
                for info in map(self._info, metas):
                    if info.size_bytes:
                        page.append(info)
                    else:
                        unclear.setdefault(posixpath.dirname(info.key), []).append(info)
                yield page
        except InvalidPathError:
            raise
        except (BaseError, OSError) as error:
            if unclear:
                self._withheld.add(prefix)
            raise self._translate_listing(error) from error
        for parent, infos in unclear.items():
            try:
                level = self.list_level(parent)
            except PenstockError:
                self._withheld.add(prefix)
                raise
            if level is None:
                yield infos
                continue
            prefixes = set(level.prefixes)
            objects = {info.key for info in level.objects}
            yield [info for info in infos if info.key in objects] + [
                info._replace(key=f"{info.key}/") for info in infos if info.key in prefixes
            ]

    def list_level(self, prefix: str) -> Level | None:
        if self._manifest is not None:
            return None
        self._counters.add("store_requests", label="list")
        try:
            listed = obstore.list_with_delimiter(self._store, self._full(prefix) or None)
        except InvalidPathError:
            return None
        except (BaseError, OSError) as error:
            raise self._translate_listing(error) from error
        prefixes = [self._relative(name) for name in listed["common_prefixes"]]
        if not all(prefixes):
            return None  # keys with a leading slash, which only list_all can show
        return Level([self._info(meta) for meta in listed["objects"]], prefixes)

    def _translate_listing(self, error: Exception) -> PenstockError:
        ours = translate(error, self.identity)
        if isinstance(ours, ObjectNotFound):
            return SourceError(
                f"{self.identity}: no such bucket, container or folder",
                hint="check its name, and --endpoint and --region",
            )
        return ours

    def _info(self, meta: "ObjectMeta") -> ObjectInfo:
        modified = meta["last_modified"].timestamp()
        return ObjectInfo(
            self._relative(meta["path"]),
            meta["size"],
            int(modified) * 1_000_000_000,
            _version(meta),
        )

    # -- data ---------------------------------------------------------------------------

    def get(self, key: str, version: str, start: int, length: int, size_bytes: int) -> Buffer:
        if self._answers_ranges_with_200 and length != size_bytes:
            return self._get_range_by_fallback(key, version, start, length, size_bytes)
        options: GetOptions = {}
        if length != size_bytes:
            options["range"] = (start, start + length)
        if not version.startswith((_BY_TIME, _BY_SIZE, "W/")):
            options["if_match"] = f'"{version}"'
        try:
            result = obstore.get(self._store, self._full(key), options=options)
            # Not every server honours If-Match: what came back is checked too.
            self._check_version(key, version, size_bytes, result.meta)
            data = result.bytes()
        except (BaseError, OSError) as error:
            if self._fallback is not None and "non-partial response" in str(error):
                self._answers_ranges_with_200 = True
                return self._get_range_by_fallback(key, version, start, length, size_bytes)
            raise translate(error, f"{self.identity}/{key}") from error
        return self._counted(key, data, length)

    def _check_version(self, key: str, version: str, size_bytes: int, meta: "ObjectMeta") -> None:
        if version.startswith(_BY_SIZE):
            changed = meta["size"] != size_bytes
        else:
            changed = _version(meta) != version
        if changed:
            raise ObjectChanged(f"{self.identity}/{key}: rewritten while it was read")
        if meta["size"] != size_bytes:
            # The same ETag, so the same object: this answer is wrong, the next may be right.
            raise StoreError(
                f"{self.identity}/{key}: {meta['size']} bytes were announced of {size_bytes}",
                kind="wrong_length",
            )

    def _get_range_by_fallback(
        self, key: str, version: str, start: int, length: int, size_bytes: int
    ) -> Buffer:
        assert self._fallback is not None
        full = self._full(key)
        data = self._fallback().get_range(full, version, start, length, size_bytes)
        return self._counted(key, data, length)

    def _counted(self, key: str, data: Buffer, length: int) -> Buffer:
        came = memoryview(data).nbytes
        self._counters.add("store_requests", label="get")
        self._counters.add("store_bytes", came)
        if came != length:
            raise StoreError(
                f"{self.identity}/{key}: {came} bytes came of {length}", kind="wrong_length"
            )
        return data

    def why_unreadable(self, key: str) -> str | None:
        try:
            # What object_store's Path refuses to hold can be listed but never asked for.
            key.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        if any(character < " " or character == "\x7f" for character in key):
            return "its name has a control character"
        return None

    # -- names --------------------------------------------------------------------------

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}".rstrip("/") if self._prefix else key

    def _relative(self, key: str) -> str:
        return key.removeprefix(self._prefix).removeprefix("/") if self._prefix else key


def _version(meta: "ObjectMeta") -> str:
    if meta["e_tag"]:
        return meta["e_tag"].replace('"', "")
    return f"{_BY_TIME}{int(meta['last_modified'].timestamp()):x}-{meta['size']:x}"


def _size_version(info: ObjectInfo) -> str:
    return f"{_BY_SIZE}{info.size_bytes}"
