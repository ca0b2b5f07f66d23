"""What lies in a store that obstore lists: everything below a prefix, or one level of it.

obstore strips slashes, and cannot express some keys at all: those end the listing with an error.
S3 is listed by penstock.store.s3listing.

Threading: any thread, any number of listings at a time.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, InvalidPathError

from penstock.errors import ObjectNotFound, PenstockError, SourceError
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo
from penstock.store.translate import translate
from penstock.store.versions import version_of

# Tells empty objects from the markers of directories, where the client strips their slash.
#
# One listing by level of their parent tells, for all siblings at once. So they are kept back
# until the listing has passed their parent, and never more than so many of them.
#
# Threading: one thread, that of its listing.

# Kept back in one listing: some 3 MB. A directory with more empty objects than this is not asked
# for its level, which would be held in memory as a whole: there they are files.
MOST_UNCLEAR = 10_000


class Unclear:
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

    def told_by(self, key: str) -> Iterator[list[ObjectInfo]]:
        """Those that need not wait, now that the listing has come to this key."""
        if self._count >= MOST_UNCLEAR:
            yield from self.told()
        elif self._ordered:
            for parent in [name for name in self._by_parent if _lies_before(name, key)]:
                yield self._tell(parent)

    def told(self) -> Iterator[list[ObjectInfo]]:
        for parent in list(self._by_parent):
            yield self._tell(parent)

    def _tell(self, parent: str) -> list[ObjectInfo]:
        infos = self._by_parent[parent]
        level = self._list_level(parent) if len(infos) < MOST_UNCLEAR else None
        del self._by_parent[parent]  # only now: what could not be told is still unclear
        self._count -= len(infos)
        if level is None:
            return infos
        prefixes = set(level.prefixes)
        objects = {info.key for info in level.objects}
        return [info for info in infos if info.key in objects] + [
            info._replace(key=f"{info.key}/") for info in infos if info.key in prefixes
        ]


def _lies_before(parent: str, key: str) -> bool:
    """Do all keys below this parent come before this one?"""
    below = f"{parent}/"
    return bool(parent) and key > below and not key.startswith(below)


if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_PAGE_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Names:
    """Keys as the store has them, and below the prefix of a source."""

    identity: str
    prefix: str  # without a slash at its ends

    def full(self, key: str) -> str:
        return f"{self.prefix}/{key}".rstrip("/") if self.prefix else key

    def relative(self, key: str) -> str:
        return key.removeprefix(self.prefix).removeprefix("/") if self.prefix else key

    def check_below(self, below: str, keys: Iterable[str]) -> None:
        """Names from elsewhere would stand for the bytes of other objects."""
        if not below:
            return
        start = f"{below}/"
        for key in keys:
            if not key.startswith(start) and key != below:
                raise SourceError(
                    f"{self.identity}: asked for what lies below {start[-100:]!r}, the endpoint "
                    f"lists {key[:100]!r} too",
                    hint="check --endpoint: it must be the address of the storage itself, and "
                    "list by prefix",
                )


# Names that obstore refuses to express, or strips.
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\ud800-\udfff]")


def is_odd(name: str) -> bool:
    return _ODD.search(name) is not None


class Inventory:
    def __init__(
        self, store: "ObjectStore", names: Names, counters: Counters, *, ordered: bool
    ) -> None:
        self._store = store
        self._names = names
        self._counters = counters
        self._ordered = ordered
        self._withheld: set[str] = set()  # prefixes that must be listed from their start again

    def list_all(self, prefix: str, after: str) -> Iterator[list[ObjectInfo]]:
        names = self._names
        if not self._ordered or prefix in self._withheld:
            after = ""
        self._withheld.discard(prefix)
        below, behind = names.full(prefix), names.full(after) if after else ""
        unclear = Unclear(self.list_level, ordered=self._ordered)
        try:
            for metas in self._pages(below, behind):
                names.check_below(below, (meta["path"] for meta in metas))
                infos = list(map(self._info, metas))
                # An empty object may be the marker of a directory, whose slash was stripped.
                for info in infos:
                    if not info.size_bytes:
                        unclear.add(info)
                yield [info for info in infos if info.size_bytes]
                yield from unclear.told_by(infos[-1].key)
            yield from unclear.told()
        except PenstockError:
            if unclear:
                self._withheld.add(prefix)
            raise
        except InvalidPathError as error:
            raise SourceError(
                f"{names.identity}: a key that this client cannot express: "
                f"{str(error).splitlines()[0]}",
                hint="rename that object; only S3 listings can pass over such keys",
            ) from error

    def _pages(self, below: str, behind: str) -> Iterator["list[ObjectMeta]"]:
        try:
            for metas in obstore.list(
                self._store, below or None, offset=behind or None, chunk_size=_PAGE_ENTRIES
            ):
                self._counters.add("store_requests", label="list")
                if metas:
                    yield list(metas)
        except InvalidPathError:
            raise
        except (BaseError, OSError) as error:
            raise self._translate(error) from error

    def list_level(self, prefix: str) -> Level | None:
        self._counters.add("store_requests", label="list")
        names = self._names
        below = names.full(prefix)
        try:
            listed = obstore.list_with_delimiter(self._store, below or None)
        except InvalidPathError:
            return None
        except (BaseError, OSError) as error:
            raise self._translate(error) from error
        names.check_below(below, (meta["path"] for meta in listed["objects"]))
        names.check_below(below, listed["common_prefixes"])
        prefixes = [names.relative(name) for name in listed["common_prefixes"]]
        if not all(prefixes):
            return None  # keys with a leading slash, which only list_all can show
        return Level([self._info(meta) for meta in listed["objects"]], prefixes)

    def _translate(self, error: Exception) -> PenstockError:
        ours = translate(error, self._names.identity)
        if isinstance(ours, ObjectNotFound):
            return SourceError(
                f"{self._names.identity}: no such bucket, container or folder",
                hint="check its name, and --endpoint and --region",
            )
        return ours

    def _info(self, meta: "ObjectMeta") -> ObjectInfo:
        modified_s = meta["last_modified"].timestamp()
        return ObjectInfo(
            self._names.relative(meta["path"]),
            meta["size"],
            int(modified_s) * 1_000_000_000,
            version_of(meta["e_tag"], modified_s, meta["size"]),
        )
