"""Listings through obstore: everything below a prefix, or one level of it.

obstore strips slashes, and cannot express some keys at all: those end the listing with an error.
S3 is listed by penstock.store.s3listing, web servers by penstock.store.weblisting.

Threading: any thread, any number of listings at a time.
"""

import posixpath
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, InvalidPathError

from penstock.errors import ObjectNotFound, PenstockError, SourceError
from penstock.metrics import OK, Counters
from penstock.store import Level, ObjectInfo
from penstock.store.source import SourcePrefix
from penstock.store.translate import translate
from penstock.store.versions import version_of

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_PAGE_ENTRIES = 1000
# Empty objects held back in one listing: some 3 MB. A directory with more of them is not listed by
# level, which would be held in memory as a whole: there they are files.
MAX_HELD_BACK = 10_000


class ObstoreListing:
    def __init__(
        self, store: "ObjectStore", prefix: SourcePrefix, counters: Counters, *, ordered: bool
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._counters = counters
        self._ordered = ordered
        # Prefixes whose listing failed while empty objects were held back: these must be listed
        # from their start again.
        self._held_back: set[str] = set()

    def list_all(self, prefix: str, after: str) -> Iterator[list[ObjectInfo]]:
        source = self._prefix
        if not self._ordered or prefix in self._held_back:
            after = ""
        self._held_back.discard(prefix)
        below, start_after = source.full(prefix), source.full(after) if after else ""
        empty = EmptyObjects(self.list_level, ordered=self._ordered)
        try:
            for metas in self._pages(below, start_after):
                source.check_below(below, (meta["path"] for meta in metas))
                infos = list(map(self._info, metas))
                # An empty object may be the marker of a directory, whose slash was stripped.
                for info in infos:
                    if not info.size_bytes:
                        empty.add(info)
                yield [info for info in infos if info.size_bytes]
                yield from empty.resolve_before(infos[-1].key)
            yield from empty.resolve_all()
        except PenstockError:
            if empty:
                self._held_back.add(prefix)
            raise
        except InvalidPathError as error:
            raise SourceError(
                f"{source.identity}: a key that this client cannot express: "
                f"{str(error).splitlines()[0]}",
                hint="rename that object; only S3 listings can pass over such keys",
            ) from error

    def _pages(self, below: str, start_after: str) -> Iterator["list[ObjectMeta]"]:
        try:
            for metas in obstore.list(
                self._store, below or None, offset=start_after or None, chunk_size=_PAGE_ENTRIES
            ):
                self._counters.add("store_requests", label="list", outcome=OK)
                if metas:
                    yield list(metas)
        except InvalidPathError:
            raise
        except (BaseError, OSError) as error:
            raise self._translate(error) from error

    def list_level(self, prefix: str) -> Level | None:
        source = self._prefix
        below = source.full(prefix)
        try:
            listed = obstore.list_with_delimiter(self._store, below or None)
        except InvalidPathError:
            return None
        except (BaseError, OSError) as error:
            raise self._translate(error) from error
        self._counters.add("store_requests", label="list", outcome=OK)
        source.check_below(below, (meta["path"] for meta in listed["objects"]))
        source.check_below(below, listed["common_prefixes"])
        prefixes = [source.relative(name) for name in listed["common_prefixes"]]
        if not all(prefixes):
            return None  # keys with a leading slash, which only list_all can show
        return Level([self._info(meta) for meta in listed["objects"]], prefixes)

    def why_unreadable(self, key: str) -> str | None:
        return None

    def _translate(self, error: Exception) -> PenstockError:
        translated = translate(error, self._prefix.identity)
        if isinstance(translated, ObjectNotFound):
            return self._prefix.not_found()
        return translated

    def _info(self, meta: "ObjectMeta") -> ObjectInfo:
        modified_s = meta["last_modified"].timestamp()
        return ObjectInfo(
            self._prefix.relative(meta["path"]),
            meta["size"],
            int(modified_s) * 1_000_000_000,
            version_of(meta["e_tag"], modified_s, meta["size"]),
        )


class EmptyObjects:
    """Tells empty objects from directory markers, whose slash obstore strips.

    One listing by level of their parent decides for all siblings at once. So empty objects are held
    back until the listing has passed their parent, but never more than MAX_HELD_BACK of them. One
    thread, that of the listing.
    """

    def __init__(self, list_level: Callable[[str], Level | None], *, ordered: bool) -> None:
        self._list_level = list_level
        self._ordered = ordered
        self._by_parent: dict[str, list[ObjectInfo]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, info: ObjectInfo) -> None:
        self._by_parent.setdefault(posixpath.dirname(info.key), []).append(info)
        self._count += 1

    def resolve_before(self, key: str) -> Iterator[list[ObjectInfo]]:
        """Yield the objects that need not wait, now that the listing has reached this key."""
        if self._count >= MAX_HELD_BACK:
            yield from self.resolve_all()
        elif self._ordered:
            for parent in [name for name in self._by_parent if _lies_before(name, key)]:
                yield self._resolve(parent)

    def resolve_all(self) -> Iterator[list[ObjectInfo]]:
        for parent in list(self._by_parent):
            yield self._resolve(parent)

    def _resolve(self, parent: str) -> list[ObjectInfo]:
        infos = self._by_parent[parent]
        level = self._list_level(parent) if len(infos) < MAX_HELD_BACK else None
        del self._by_parent[parent]  # only now: after a failure they are still unresolved
        self._count -= len(infos)
        if level is None:
            return infos
        prefixes = set(level.prefixes)
        objects = {info.key for info in level.objects}
        return [info for info in infos if info.key in objects] + [
            info._replace(key=f"{info.key}/") for info in infos if info.key in prefixes
        ]


def _lies_before(parent: str, key: str) -> bool:
    """Return whether all keys below this parent come before `key`."""
    below = f"{parent}/"
    return bool(parent) and key > below and not key.startswith(below)
