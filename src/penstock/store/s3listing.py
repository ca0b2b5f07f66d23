"""Listings of S3 (ListObjectsV2) over our own client: every key as it is, page by page.

obstore strips slashes, ends a whole listing at a key such as `a//b`, takes any document for an
empty page, reads bodies without a bound and follows redirects with the caller's token. botocore
gives keys as they are, at 55 us of CPU each; this takes 7.

What a server says is checked: each page must be one of a listing and say how it goes on, its keys
must lie where they were asked for, no token comes twice, and so many empty pages in a row are the
end. A page is bounded, and only one of each listing is held.

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
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo
from penstock.store.http import BodyTooLong, ProtocolError
from penstock.store.s3objects import S3Objects, failure
from penstock.store.sigv4 import canonical_query
from penstock.store.source import SourcePrefix
from penstock.store.translate import translate_status
from penstock.store.versions import parse_size, version_of
from penstock.store.xmlbody import Child, read_xml

_PAGE_ENTRIES = 1000
# A thousand keys of 1,024 bytes, each byte as `%41`, are 3 MiB and what else is said of them 0.3.
PAGE_MOST_BYTES = 8 << 20
# A level is held in memory as a whole; of one that is longer, nobody needs to know it all.
_LEVEL_PAGES = 20
# Stores whose objects are deleted in masses answer with empty pages; not with so many.
_MOST_EMPTY_PAGES = 1000
# Tokens that are remembered, by their hashes: those of 100 million keys, in 8 MB.
_TOKENS_REMEMBERED = 100_000
# S3 refuses requests of a machine whose clock differs by more.
_CLOCK_SKEW_S = 900
_HINT = "check --endpoint: it must be the address of the storage itself, not of its console"
REPEATS_HINT = (
    "the endpoint does not go on from page to page as an object store does; check --endpoint, and "
    "any proxy before it"
)


# SourcePrefix that obstore refuses to express, or strips.
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\ud800-\udfff]")


def is_odd(name: str) -> bool:
    return _ODD.search(name) is not None


# What is read of a page, beside its entries.
_FACTS = ("EncodingType", "IsTruncated", "NextContinuationToken")


class Page(NamedTuple):
    objects: list[ObjectInfo]
    prefixes: list[str]  # each ends in the slash that makes it such
    token: str | None  # None: this is the last


class S3Listing:
    def __init__(
        self,
        objects: S3Objects,
        prefix: SourcePrefix,
        counters: Counters,
        *,
        in_order: bool = False,
    ) -> None:
        """`in_order`: the server promises keys in the order of their bytes, as AWS does. Others
        have an order of their own (SeaweedFS, rclone)."""
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
                yield self._shown(page.objects)
                if page.objects:
                    count += len(page.objects)
                    last = page.objects[-1].key
                    greatest = max(greatest, *(info.key for info in page.objects))
            # A listing of one page came as one answer, so it needs no second one.
            if not behind and count < _PAGE_ENTRIES:
                return
            more = self._some_behind(below, last, greatest)
            if not more:
                return
            # Written while we listed, perhaps: no reason to refuse, and none to pass it over.
            added_since_ns = int((began_s - _CLOCK_SKEW_S) * 1e9)
            if greatest == before or any(info.mtime_ns < added_since_ns for info in more):
                raise SourceError(
                    f"{self._where}: its listing stopped at {last[-100:]!r}, and more lies behind",
                    hint="`penstock refresh` lists again; if it stops again, check --endpoint: the "
                    "server, or a proxy before it, loses pages",
                )
            behind = last

    def _is_prefix_too(self, key: str) -> bool:
        """SeaweedFS 4.48 takes "behind a" for "behind all of a/": a listing that goes on behind
        such a key would lose what lies below it."""
        if not key or key.endswith("/"):
            return False
        return bool(self._some(self._prefix.full(key), "", 1).objects)

    def _some_behind(self, below: str, last: str, greatest: str) -> list[ObjectInfo]:
        """Is it over? Keys up to the greatest are those of a server that passes over start-after
        or has an order of its own, and prove nothing."""
        return [info for info in self._some(below, last, 2).objects if info.key > greatest]

    def _shown(self, infos: list[ObjectInfo]) -> list[ObjectInfo]:
        relative = self._prefix.relative
        return [info._replace(key=relative(info.key)) for info in infos]

    # -- one level ----------------------------------------------------------------------

    def list_level(self, prefix: str) -> Level | None:
        """None where a key is odd, too, or the end was lost: list_all has an answer to each."""
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
            level.objects.extend(self._shown(objects))
            level.prefixes.extend(map(self._prefix.relative, prefixes))
        # As of a whole listing; of two, since the last prefix has keys behind itself.
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
        """The first keys behind this one. One request."""
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
            if hash(page.token) in seen or empty > _MOST_EMPTY_PAGES:
                what = "the token of a page came before" if empty <= 1 else f"{empty} empty pages"
                raise SourceError(
                    f"{self._where}: its listing repeats itself: {what}", hint=REPEATS_HINT
                )
            if len(seen) >= _TOKENS_REMEMBERED:
                seen.clear()
            seen.add(hash(page.token))
            query["continuation-token"] = page.token

    def _page(self, query: dict[str, str], below: str) -> Page:
        self._counters.add("store_requests", label="list")
        try:
            page = self._read(query)
        except ObjectNotFound as error:
            raise self._prefix.not_found() from error
        self._prefix.check_below(below, chain((o.key for o in page.objects), page.prefixes))
        return page

    def _read(self, query: dict[str, str]) -> Page:
        where, objects = self._where, self._objects
        try:
            with objects.ask(where, objects.root or "/", canonical_query(query)) as response:
                return read_page(response.pieces(PAGE_MOST_BYTES), where)
        except BodyTooLong as error:
            what = f"{where}: a page of its listing does not end ({error})"
            raise SourceError(what, hint=_HINT) from error
        except (ProtocolError, OSError) as error:
            raise failure(error, where) from error

    def _check_order(self, last: str, page: Page) -> str:
        """By keys and prefixes, each in an order of their own; return the last key."""
        for names in ([last, *(info.key for info in page.objects)], page.prefixes):
            for one, other in pairwise(_as_bytes(names)):
                if one >= other:
                    raise SourceError(
                        f"{self._where}: its listing is not in order: {other[:100]!r} came behind "
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
                raise ValueError(f"two words for {child.name}")
    except (ValueError, KeyError, OverflowError) as error:
        raise _not_s3(where, f"{type(error).__name__}: {str(error)[:100]}") from error
    is_truncated = facts.get("IsTruncated", "").strip().lower()
    if is_truncated not in ("true", "false"):
        raise _not_s3(where, "a page that does not say whether it is the last")
    if facts.get("EncodingType") == "url":  # some servers ignore that they were asked for it
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
    """What a document of S3 holds, if that is its name. Raises ours."""
    children = read_xml(pieces)
    try:
        root = next(children).name
        if root == "Error":  # some say with status 200 that it went wrong
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
