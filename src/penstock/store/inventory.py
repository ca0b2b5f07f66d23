"""What lies in a remote store: everything below a prefix, or one level of it.

obstore lists ten times as fast as botocore, and takes whatever parses for the truth: it strips
slashes, and a page that is none for the end. So what it says is checked, for S3 with a few
requests through botocore (penstock.store.fallback), and what it cannot say is listed there.

Threading: any thread, any number of listings at a time.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import obstore
from obstore.exceptions import BaseError, InvalidPathError

from penstock.errors import ObjectNotFound, PenstockError, SourceError
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo
from penstock.store.markers import Unclear
from penstock.store.translate import translate
from penstock.store.versions import version_of

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_PAGE_ENTRIES = 1000
# A level is held in memory as a whole; of one that is longer, nobody needs to know it all.
_LEVEL_PAGES = 20
# Keys asked for beyond those that are needed: some may be new, or come in both spellings.
_SPARE_KEYS = 10
# S3 refuses requests of a machine whose clock differs by more.
_CLOCK_SKEW_S = 900


class Fallback(Protocol):
    """What obstore cannot do of S3: see penstock.store.fallback."""

    def has_leading_slash(self) -> bool: ...

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]: ...

    def list_some(self, prefix: str, after: str, most: int) -> list[ObjectInfo]: ...

    def list_level(self, prefix: str) -> Iterator[Level]: ...

    def abort_uploads(self, key: str) -> None: ...


class Inventory:
    def __init__(
        self,
        store: "ObjectStore",
        *,
        identity: str,
        prefix: str,
        counters: Counters,
        fallback: Callable[[], Fallback] | None,
        ordered: bool,
    ) -> None:
        self._store = store
        self._identity = identity
        self._prefix = prefix
        self._counters = counters
        self._fallback = fallback
        self._ordered = ordered
        self._withheld: set[str] = set()  # prefixes that must be listed from their start again

    # -- everything ---------------------------------------------------------------------

    def list_all(self, prefix: str, after: str) -> Iterator[list[ObjectInfo]]:
        if not self._ordered or prefix in self._withheld or self._is_prefix_too(after):
            after = ""
        self._withheld.discard(prefix)
        below, behind = self.full(prefix), self.full(after) if after else ""
        try:
            pages = self._list_normalised(prefix, below, behind)
            first = next(pages, list[ObjectInfo]())
            # Only at the bucket's root does obstore strip a leading slash without a word.
            if self._fallback is not None and not below:
                fallback = self._fallback()
                if fallback.has_leading_slash():
                    yield from self._list_exactly(fallback, below, behind)
                    return
            yield first
            yield from pages
        except InvalidPathError as error:
            if self._fallback is None:
                raise SourceError(
                    f"{self._identity}: a key that this client cannot express: "
                    f"{str(error).splitlines()[0]}",
                    hint="rename that object; only S3 listings can pass over such keys",
                ) from error
            # Starts this prefix again: the catalog takes an entry that comes twice as one.
            yield from self._list_exactly(self._fallback(), below, "")

    def _is_prefix_too(self, key: str) -> bool:
        """SeaweedFS 4.48 takes "behind a" for "behind all of a/": a listing that goes on behind
        such a key would lose what lies below it."""
        if not key or key.endswith("/") or self._fallback is None:
            return False
        return bool(self._some_exactly(self.full(key), "", 1))

    def _list_exactly(self, exact: Fallback, below: str, behind: str) -> Iterator[list[ObjectInfo]]:
        for page in exact.list_all(below, behind):
            self._counters.add("store_requests", label="list")
            self._check_asked_for(below, (info.key for info in page))
            yield [info._replace(key=self._relative(info.key)) for info in page]

    def _list_normalised(self, prefix: str, below: str, behind: str) -> Iterator[list[ObjectInfo]]:
        began_s = time.time()
        unclear = Unclear(self.list_level, ordered=self._ordered)
        last = greatest = behind
        count = 0
        try:
            for metas in self._pages(below, behind):
                paths = [meta["path"] for meta in metas]
                self._check_asked_for(below, paths)
                page = self._told_apart(below, last, list(map(self._info, metas)), unclear)
                yield page
                yield from unclear.told_by(self._relative(paths[-1]))
                count += len(paths)
                greatest = max(greatest, *paths)
                last = paths[-1]
                if page and page[-1].key == f"{self._relative(last)}/":
                    last = f"{last}/"
            yield from unclear.told()
        except PenstockError:
            if unclear:
                self._withheld.add(prefix)
            raise
        # A listing of one page came as one answer, so it needs no second one; an empty one does,
        # for any page of the web parses as an empty listing.
        if self._has_exact_keys and (not count or behind or count >= _PAGE_ENTRIES):
            yield from self._list_behind(below, last, greatest, began_s)

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

    def _list_behind(
        self, below: str, last: str, greatest: str, began_s: float
    ) -> Iterator[list[ObjectInfo]]:
        """Is it over? Keys up to the greatest are those of a server that passes over start-after
        or has an order of its own, and prove nothing."""
        found = self._some_exactly(below, last, 2)
        more = [info for info in found if info.key.rstrip("/") > greatest]
        if not more:
            return
        added_since_ns = int((began_s - _CLOCK_SKEW_S) * 1e9)
        if any(info.mtime_ns < added_since_ns for info in more):
            raise SourceError(
                f"{self._identity}: its listing stopped at {last[-100:]!r}, and more lies behind",
                hint="`penstock refresh` lists again; if it stops again, check --endpoint: the "
                "server, or a proxy before it, loses pages",
            )
        # Written while we listed, perhaps: no reason to refuse, and none to pass it over.
        assert self._fallback is not None
        yield from self._list_exactly(self._fallback(), below, last)

    # -- empty objects ------------------------------------------------------------------

    def _told_apart(
        self, below: str, last: str, infos: list[ObjectInfo], unclear: Unclear
    ) -> list[ObjectInfo]:
        """The page, its empty objects with their slashes where they have one. Those that cannot
        be told at once are kept back."""
        empty = [index for index, info in enumerate(infos) if not info.size_bytes]
        if not empty:
            return infos
        exact: dict[str, ObjectInfo] = {}
        if self._has_exact_keys:
            start, most = empty[0], empty[-1] - empty[0] + 1 + _SPARE_KEYS
            before = self.full(infos[start - 1].key) if start else last
            some = self._some_exactly(below, before, min(most, _PAGE_ENTRIES))
            exact = {info.key: info._replace(key=self._relative(info.key)) for info in some}
        page: list[ObjectInfo] = []
        for info in infos:
            if info.size_bytes:
                page.append(info)
                continue
            full = self.full(info.key)
            told = [exact[key] for key in (full, f"{full}/") if key in exact]
            page.extend(told)
            if not told:
                unclear.add(info)
        return page

    @property
    def _has_exact_keys(self) -> bool:
        return self._fallback is not None and self._ordered

    def _some_exactly(self, below: str, behind: str, most: int) -> list[ObjectInfo]:
        assert self._fallback is not None
        self._counters.add("store_requests", label="list")
        found = self._fallback().list_some(below, behind, most)
        self._check_asked_for(below, (info.key for info in found))
        return found

    # -- one level ----------------------------------------------------------------------

    def list_level(self, prefix: str) -> Level | None:
        if self._fallback is not None:
            return self._level_exactly(self._fallback(), self.full(prefix))
        self._counters.add("store_requests", label="list")
        below = self.full(prefix)
        try:
            listed = obstore.list_with_delimiter(self._store, below or None)
        except InvalidPathError:
            return None
        except (BaseError, OSError) as error:
            raise self._translate(error) from error
        self._check_asked_for(below, (meta["path"] for meta in listed["objects"]))
        self._check_asked_for(below, listed["common_prefixes"])
        prefixes = [self._relative(name) for name in listed["common_prefixes"]]
        if not all(prefixes):
            return None  # keys with a leading slash, which only list_all can show
        return Level([self._info(meta) for meta in listed["objects"]], prefixes)

    def _level_exactly(self, exact: Fallback, below: str) -> Level | None:
        """None where a key is odd, too: list_all has an answer to each of them."""
        level = Level([], [])
        start = f"{below}/" if below else ""
        for number, page in enumerate(exact.list_level(below), 1):
            self._counters.add("store_requests", label="list")
            if number > _LEVEL_PAGES:
                return None
            self._check_asked_for(below, (info.key for info in page.objects))
            self._check_asked_for(below, page.prefixes)
            objects = [info for info in page.objects if info.key != start]
            prefixes = [name.removesuffix("/") for name in page.prefixes]
            if any(_is_odd(info.key[len(start) :]) for info in objects):
                return None
            if any(_is_odd(name[len(start) :]) for name in prefixes):
                return None
            level.objects.extend(info._replace(key=self._relative(info.key)) for info in objects)
            level.prefixes.extend(map(self._relative, prefixes))
        return level

    # -- inside -------------------------------------------------------------------------

    def _check_asked_for(self, below: str, keys: Iterable[str]) -> None:
        """Names from elsewhere would stand for the bytes of other objects."""
        if not below:
            return
        start = f"{below}/"
        for key in keys:
            if not key.startswith(start) and key != below:
                raise SourceError(
                    f"{self._identity}: asked for what lies below {start[-100:]!r}, the endpoint "
                    f"lists {key[:100]!r} too",
                    hint="check --endpoint: it must be the address of the storage itself, and "
                    "list by prefix",
                )

    def _translate(self, error: Exception) -> PenstockError:
        ours = translate(error, self._identity)
        if isinstance(ours, ObjectNotFound):
            return SourceError(
                f"{self._identity}: no such bucket, container or folder",
                hint="check its name, and --endpoint and --region",
            )
        return ours

    def _info(self, meta: "ObjectMeta") -> ObjectInfo:
        modified_s = meta["last_modified"].timestamp()
        return ObjectInfo(
            self._relative(meta["path"]),
            meta["size"],
            int(modified_s) * 1_000_000_000,
            version_of(meta["e_tag"], modified_s, meta["size"]),
        )

    def full(self, key: str) -> str:
        return f"{self._prefix}/{key}".rstrip("/") if self._prefix else key

    def _relative(self, key: str) -> str:
        return key.removeprefix(self._prefix).removeprefix("/") if self._prefix else key


# Names that obstore refuses to express, or strips.
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\ud800-\udfff]")


def _is_odd(name: str) -> bool:
    return _ODD.search(name) is not None
