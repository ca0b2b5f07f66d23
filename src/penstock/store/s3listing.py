"""Lists S3 buckets (ListObjectsV2) over our own client: every key unchanged, page by page.

obstore strips slashes, ends a whole listing at a key such as `a//b`, takes any document for an
empty page, reads bodies without a bound and follows redirects with the caller's token. botocore
returns keys unchanged, at 55 us of CPU each; this takes 7.

The answers of a server are checked: each page must belong to a listing and say whether more
follows, its keys must lie below the requested prefix, no token may repeat, and empty pages in a row
are limited. A page is bounded, and only one page of each listing is held.

Threading: any thread, any number of listings at a time.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, pairwise
from time import time
from typing import NamedTuple
from urllib.parse import unquote

from penstock.errors import ObjectNotFound, PenstockError, SourceError
from penstock.metrics import OK, Counters
from penstock.store import Level, ObjectInfo
from penstock.store.http import BodyTooLong, ProtocolError
from penstock.store.s3objects import S3Objects, failure
from penstock.store.sigv4 import canonical_query
from penstock.store.source import SourcePrefix
from penstock.store.translate import translate_status
from penstock.store.versions import parse_size, version_of
from penstock.store.xmlbody import Child, read_xml

_PAGE_ENTRIES = 1000
# A thousand keys of 1,024 bytes, each byte as `%41`, are 3 MiB; their other fields 0.3.
MAX_PAGE_BYTES = 8 << 20
# A level is held in memory as a whole; a longer one is not needed.
_LEVEL_PAGES = 20
# After mass deletions stores answer with empty pages, but not with so many.
_MAX_EMPTY_PAGES = 1000
# Hashes of tokens that are kept: for 100 million keys, in 8 MB.
_MAX_TOKENS = 100_000
# S3 refuses requests of a machine whose clock differs by more.
_CLOCK_SKEW_S = 900
_HINT = "check --endpoint: it must be the address of the storage itself, not of its console"
REPEATS_HINT = (
    "the endpoint does not go on from page to page as an object store does; check --endpoint, and "
    "any proxy before it"
)


# Prefixes that obstore refuses to express, or strips.
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\ud800-\udfff]")


def is_odd(name: str) -> bool:
    return _ODD.search(name) is not None


# What is read of a page beside its entries.
_FACTS = ("EncodingType", "IsTruncated", "NextContinuationToken")


class Page(NamedTuple):
    objects: list[ObjectInfo]
    prefixes: list[str]  # with their trailing slash
    token: str | None  # None: this is the last page


class S3Listing:
    def __init__(
        self,
        objects: S3Objects,
        prefix: SourcePrefix,
        counters: Counters,
        *,
        in_order: bool = False,
    ) -> None:
        """`in_order`: the server guarantees keys in the order of their bytes, as AWS does. Others
        have another order (SeaweedFS, rclone)."""
        self._objects = objects
        self._prefix = prefix
        self._counters = counters
        self._in_order = in_order

    # -- everything ---------------------------------------------------------------------

    def list_all(self, prefix: str, after: str) -> Iterator[list[ObjectInfo]]:
        if self._is_prefix_too(after):
            after = ""
        names = self._prefix
        below, behind = names.full(prefix), names.full(after) if after else ""
        began_s, greatest = time(), behind
        while True:
            last, count, before = behind, 0, greatest
            for page in self._pages(below, behind):
                yield self._relative(page.objects)
                if page.objects:
                    count += len(page.objects)
                    last = page.objects[-1].key
                    greatest = max(greatest, *(info.key for info in page.objects))
            # A listing of one page is complete: it came as one answer.
            if not behind and count < _PAGE_ENTRIES:
                return
            more = self._some_behind(below, last, greatest)
            if not more:
                return
            # Keys that may have been written during the listing are listed too, without an error.
            added_since_ns = int((began_s - _CLOCK_SKEW_S) * 1e9)
            if greatest == before or any(info.mtime_ns < added_since_ns for info in more):
                raise SourceError(
                    f"{self._where}: its listing stopped at {last[-100:]!r}, and more lies behind",
                    hint="`penstock refresh` lists again; if it stops again, check --endpoint: the "
                    "server, or a proxy before it, loses pages",
                )
            behind = last

    def _is_prefix_too(self, key: str) -> bool:
        """Return whether keys exist below this key.

        SeaweedFS 4.48 takes "behind a" for "behind all of a/": a listing that continues behind such
        a key would lose the keys below it.
        """
        if not key or key.endswith("/"):
            return False
        return bool(self._some(self._prefix.full(key), "", 1).objects)

    def _some_behind(self, below: str, last: str, greatest: str) -> list[ObjectInfo]:
        """Return the first keys behind the end of a listing; none if it is complete.

        Keys up to the greatest one do not count: they come from a server that ignores start-after
        or has another order.
        """
        return [info for info in self._some(below, last, 2).objects if info.key > greatest]

    def _relative(self, infos: list[ObjectInfo]) -> list[ObjectInfo]:
        relative = self._prefix.relative
        return [info._replace(key=relative(info.key)) for info in infos]

    # -- one level ----------------------------------------------------------------------

    def list_level(self, prefix: str) -> Level | None:
        """Return None also for odd keys, or if the end was lost: list_all handles both."""
        level, below = Level([], []), self._prefix.full(prefix)
        start = f"{below}/" if below else ""
        number, count, last, greatest = 0, 0, "", ""
        for number, page in enumerate(self._pages(below, "", delimiter="/"), 1):
            if number > _LEVEL_PAGES:
                return None
            keys = [info.key for info in page.objects]
            count += len(keys) + len(page.prefixes)
            last = max(keys[-1:] + page.prefixes[-1:], default=last)
            greatest = max([greatest, *keys, *page.prefixes])
            objects = [info for info in page.objects if info.key != start]
            prefixes = [name.removesuffix("/") for name in page.prefixes]
            if any(is_odd(key[len(start) :]) for key in (*(o.key for o in objects), *prefixes)):
                return None
            level.objects.extend(self._relative(objects))
            level.prefixes.extend(map(self._prefix.relative, prefixes))
        # As in a whole listing. Two keys, since the last prefix has keys behind itself.
        if number > 1 or count >= _PAGE_ENTRIES:
            behind = self._some(below, last, 2, delimiter="/")
            names = (*(info.key for info in behind.objects), *behind.prefixes)
            if any(name > greatest for name in names):
                return None
        return level

    def why_unreadable(self, key: str) -> str | None:
        return None

    # -- pages ----------------------------------------------------------------------------

    def _some(self, below: str, behind: str, most: int, delimiter: str = "") -> Page:
        """Return the first keys behind this one. One request."""
        return self._page(_query(below, behind, delimiter) | {"max-keys": str(most)}, below)

    def _pages(self, below: str, behind: str, delimiter: str = "") -> Iterator[Page]:
        query = _query(below, behind, delimiter)
        seen: set[int] = set()
        last, empty = "", 0
        while True:
            page = self._page(query, below)
            if self._in_order:
                last = self._check_order(last, page)
            yield page
            if page.token is None:
                return
            empty = 0 if page.objects or page.prefixes else empty + 1
            if hash(page.token) in seen or empty > _MAX_EMPTY_PAGES:
                what = "a token came twice" if empty <= 1 else f"{empty} empty pages"
                raise SourceError(
                    f"{self._where}: its listing repeats itself: {what}", hint=REPEATS_HINT
                )
            if len(seen) >= _MAX_TOKENS:
                seen.clear()
            seen.add(hash(page.token))
            query["continuation-token"] = page.token

    def _page(self, query: dict[str, str], below: str) -> Page:
        try:
            page = self._read(query)
        except ObjectNotFound as error:
            raise self._prefix.not_found() from error
        self._counters.add("store_requests", label="list", outcome=OK)
        self._prefix.check_below(below, chain((o.key for o in page.objects), page.prefixes))
        return page

    def _read(self, query: dict[str, str]) -> Page:
        where, objects = self._where, self._objects
        try:
            with objects.ask(where, objects.root or "/", canonical_query(query)) as response:
                return read_page(response.pieces(MAX_PAGE_BYTES), where)
        except BodyTooLong as error:
            what = f"{where}: a page of its listing is too long ({error})"
            raise SourceError(what, hint=_HINT) from error
        except (ProtocolError, OSError) as error:
            raise failure(error, where) from error

    def _check_order(self, last: str, page: Page) -> str:
        """Check the order of the keys, and of the prefixes; return the last key."""
        for names in ([last, *(info.key for info in page.objects)], page.prefixes):
            for one, other in pairwise(_as_bytes(names)):
                if one >= other:
                    raise SourceError(
                        f"{self._where}: its listing is not in order: {other[:100]!r} came after "
                        f"{one[:100]!r}",
                        hint=REPEATS_HINT,
                    )
        return page.objects[-1].key if page.objects else last

    @property
    def _where(self) -> str:
        return self._prefix.identity


def _query(below: str, behind: str, delimiter: str) -> dict[str, str]:
    query = {"list-type": "2", "encoding-type": "url", "prefix": f"{below}/" if below else ""}
    if delimiter:
        query["delimiter"] = delimiter
    return query | {"start-after": behind} if behind else query


def _as_bytes(names: list[str]) -> list[bytes]:
    return [name.encode("utf-8", "surrogateescape") for name in names if name]


# -- pure ---------------------------------------------------------------------------------


def read_page(pieces: Iterable[bytes], where: str) -> Page:
    """Take a page of a listing apart. Raises ours for what is none."""
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    facts: dict[str, str] = {}
    try:
        for child in children_of(pieces, where, "ListBucketResult"):
            if child.name == "Contents":
                objects.append(_info(child.fields))
            elif child.name == "CommonPrefixes":
                prefixes.append(child.fields["Prefix"])
            elif child.name in _FACTS and facts.setdefault(child.name, child.text) != child.text:
                raise ValueError(f"two values of {child.name}")
    except (ValueError, KeyError, OverflowError) as error:
        raise _not_s3(where, f"{type(error).__name__}: {str(error)[:100]}") from error
    is_truncated = facts.get("IsTruncated", "").strip().lower()
    if is_truncated not in ("true", "false"):
        raise _not_s3(where, "a page without IsTruncated")
    if facts.get("EncodingType") == "url":  # some servers ignore the request for it
        objects = [info._replace(key=_decoded(info.key)) for info in objects]
        prefixes = list(map(_decoded, prefixes))
    if is_truncated == "false":
        return Page(objects, prefixes, None)
    if not (token := facts.get("NextContinuationToken")):
        raise SourceError(
            f"{where}: the listing cannot be parsed: a page is truncated, and has no continuation "
            "token",
            hint=_HINT,
        )
    return Page(objects, prefixes, token)


def children_of(pieces: Iterable[bytes], where: str, name: str) -> Iterator[Child]:
    """Yield the children of an S3 document with this root; raise PenstockErrors."""
    children = read_xml(pieces)
    try:
        root = next(children).name
        if root == "Error":  # some servers report errors with status 200
            code = next((child.text for child in children if child.name == "Code"), "")
            raise translate_status(500, code, where, f"an error instead of a listing: {code[:40]}")
        if root != name:
            raise _not_s3(where, f"a document {root[:40]!r}")
        yield from children
    except (ValueError, StopIteration) as error:
        raise _not_s3(where, str(error)) from error


def _not_s3(where: str, why: str) -> PenstockError:
    return SourceError(
        f"{where}: the endpoint does not answer as an object store does ({why})", hint=_HINT
    )


def _info(found: dict[str, str]) -> ObjectInfo:
    size = parse_size(found["Size"].strip())
    when = datetime.fromisoformat(found["LastModified"].strip())
    modified_s = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return ObjectInfo(
        found["Key"],
        size,
        int(modified_s) * 1_000_000_000,
        version_of(found.get("ETag"), modified_s, size),
    )


def _decoded(name: str) -> str:
    return unquote(name.replace("+", " "), errors="surrogateescape")
