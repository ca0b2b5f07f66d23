"""Folders of a web server, walked folder by folder: by WebDAV where it speaks that, and by the
pages that it writes for people where it does not.

A page rarely tells a version, and often no exact size: then each file is asked for its head. What
is told exactly is believed, and costs no request.

Nobody is followed to another server. If the folder that was asked for leads there, that is an
error; if one below it does, that one is shown empty. It is listed among what cannot be shown, and
so is a file that leads elsewhere.

Threading: any thread; the requests of all listings share a few threads of their own, and what they
hold has one bound for all of them.
"""

import codecs
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from penstock.errors import AccessDenied, ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo
from penstock.store.http import BodyTooLong, ProtocolError, Response
from penstock.store.inventory import Names
from penstock.store.s3objects import RedirectRefused, S3Objects, failure
from penstock.store.versions import BY_SIZE, parse_date, parse_size, version_of
from penstock.store.xmlbody import Child, read_xml

# The page with which a web server lists a folder, taken apart. Pure.
#
# Python's http.server, nginx (autoindex) and Apache (mod_autoindex) write such pages, each in its
# own way; what they share is a title, and a link for each entry with what is told of it behind
# it.

_TITLE = re.compile(r"\s*(index of|directory listing)\b", re.IGNORECASE)
_DATES = (
    (re.compile(r"\d{2}-[A-Z][a-z]{2}-\d{4} \d{2}:\d{2}"), "%d-%b-%Y %H:%M"),  # nginx
    (re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}"), "%Y-%m-%d %H:%M"),  # Apache
)
# Bytes are told as a bare number. `1.2K` and `12M` are not exact, and `-` is a folder's.
_SPACES = re.compile(r"\s+")
_EXACT = re.compile(r"(\d{1,19})(?=\s|$)")


# The longest line that Apache and nginx take as a request: what is longer cannot be asked for.
_LONGEST_HREF = 8 << 10
_LONGEST_TAG = 256 << 10  # html.parser holds a tag, a comment or a script until it ends
_MOST_TEXT = 200  # of the title, and of what is told behind a link


class IndexEntry(NamedTuple):
    name: str  # of a folder with its slash
    size_bytes: int | None  # None: not told, or not exactly
    mtime_ns: int  # 0: not told


def read_index(
    pieces: Iterable[str], address: str, admit: Callable[[str], None] = lambda _: None
) -> list[IndexEntry] | None:
    """What lies directly in the folder at `address`, which ends in a slash; None if the page is
    none that lists a folder. Each name is shown to `admit` when it comes first. Raises ValueError
    for a tag or a link without end, and what `admit` does."""
    index = _Index(address, admit)
    try:
        for piece in pieces:
            index.feed(piece)
            if len(index.rawdata) > _LONGEST_TAG:
                raise ValueError("a tag without end")
    except AssertionError:  # html.parser's word for `<![` and the like that is no HTML
        return None
    # Not closed: what is left is a tag without end, which html.parser would look at from every
    # character on.
    return index.entries() if _TITLE.match(index.title.text) else None


def name_of(href: str, address: str) -> str | None:
    """None for all that is not directly below: the folder above, other orders, other places.
    Raises ValueError for a link that is too long."""
    if len(href) > _LONGEST_HREF:
        raise ValueError("a link that is too long")
    try:
        target, here = urlsplit(urljoin(address, href)), urlsplit(address)
    except ValueError:
        return None
    if target[:2] != here[:2] or target.query or target.fragment or "?" in href:
        return None
    if not target.path.startswith(here.path):
        # The page may spell what it is asked for otherwise: `%7E` is `~`.
        if not unquote(target.path).startswith(unquote(here.path)):
            return None
        below = target.path.split("/", here.path.count("/"))[-1]
    else:
        below = target.path[len(here.path) :]
    name, slash, rest = below.partition("/")
    if not name or rest:
        return None
    name = unquote(name, errors="surrogateescape")
    return None if "/" in name or name in (".", "..") else f"{name}{slash}"


def _told(text: str) -> tuple[int | None, int]:
    for pattern, form in _DATES:
        if (date := pattern.search(text)) is None:
            continue
        try:
            when = datetime.strptime(date[0], form).replace(tzinfo=UTC)
        except ValueError:
            break
        size = _EXACT.match(text[date.end() :].lstrip())
        return (int(size[1]) if size else None), int(when.timestamp()) * 1_000_000_000
    return None, 0


class _Beginning:
    """The first characters of a text that comes in pieces, with single spaces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._left = _MOST_TEXT

    def add(self, text: str) -> None:
        if self._left > 0:
            text = _SPACES.sub(" ", text)
            self._pieces.append(text[: self._left])
            self._left -= len(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)


class _Index(HTMLParser):
    """Every link to what lies directly below, with the text behind it, up to the next."""

    def __init__(self, address: str, admit: Callable[[str], None]) -> None:
        super().__init__(convert_charrefs=True)
        self.title = _Beginning()
        self._address = address
        self._admit = admit
        self._found: dict[str, IndexEntry] = {}
        self._name: str | None = None  # of the last link, if that is an entry
        self._told = _Beginning()
        self._in_title = False
        self._in_link = False

    def entries(self) -> list[IndexEntry]:
        self._end_entry()
        return list(self._found.values())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_data(" ")  # a tag parts words; the end of a piece does not
        if tag in ("title", "h1") and not self.title.text:
            self._in_title = True
        elif tag == "a":
            href = dict(attrs).get("href")
            self._in_link = href is not None
            if href is not None:
                self._end_entry()
                self._name = name_of(href, self._address)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("title", "h1"):
            self._in_title = False
        elif tag == "a":
            self._in_link = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.add(data)
        elif self._name is not None and not self._in_link:
            self._told.add(data)

    def _end_entry(self) -> None:
        name, told = self._name, self._told
        if name is None:
            return
        self._name, self._told = None, _Beginning()
        entry = IndexEntry(name, *_told(told.text))
        if name not in self._found:
            self._admit(name)
        # A picture before the name may be a link too, and has nothing behind it.
        elif entry[1:] == (None, 0):
            return
        self._found[name] = entry


log = logging.getLogger(__name__)

_THREADS = 16
_FOLDERS_AT_ONCE = 16
# Both are read while they come. A page has about 200 bytes for an entry, and takes up to a second
# of CPU for a megabyte: of a folder with more than 160,000 entries nobody gets it.
_PAGE_MOST_BYTES = 32 << 20
_DAV_MOST_BYTES = 512 << 20  # up to 1 KiB for an entry
# Of all folders that are listed at once, or of one alone. An entry takes 600 bytes beside its
# name.
_MOST_ENTRIES = 250_000
_MOST_NAME_BYTES = 32 << 20
# A level is asked for where it may be small; of one that is longer, nobody needs to know it all.
_LEVEL_ENTRIES = 10_000
_LEVEL_NAME_BYTES = 2 << 20
_ROOM_WAIT_S = 120.0  # others hold their folders until these are written down
_HEADS_AT_ONCE = 1000  # that wait for a thread: each takes 1.5 KB meanwhile
# A link to a folder above makes a tree without end; no data set is that deep.
_DEEPEST = 64
# What leads elsewhere, and is remembered for that; of more, the source itself is wrong.
_MOST_ELSEWHERE = 10_000
_HINT = "a web server that cannot list needs --manifest"
_ELSEWHERE = "it leads to another server"


class _Entry(NamedTuple):
    """What is told of one name; of a file with what is known of its version."""

    entry: IndexEntry
    info: ObjectInfo | None = None


Admit = Callable[[str], None]  # called with each key; raises _NoRoom


class _NoRoom(Exception):
    """What is held of folders has reached its bound."""


class _Room:
    """Bounds what listings hold of the keys of folders, all of them together. Any thread.

    Folders that do not fit beside others are listed again, each when nothing else is held.
    """

    def __init__(self, where: str, most_entries: int, most_bytes: int) -> None:
        self._where = where
        self._changed = threading.Condition()
        self._entries, self._bytes = most_entries, most_bytes  # that are left
        self._batches = 0
        self._is_reserved = False  # for one folder alone

    @contextmanager
    def batch(self, *, alone: bool = False) -> Iterator[Admit]:
        """Wait for room; it is given back at the end. One thread has one batch at a time. Raises
        StoreError where others hold it for too long."""
        entries = size = 0
        is_open = True

        def admit(key: str) -> None:
            nonlocal entries, size
            with self._changed:
                if not is_open or not self._entries or self._bytes < key.__sizeof__():
                    raise _NoRoom
                entries, size = entries + 1, size + key.__sizeof__()
                self._entries, self._bytes = self._entries - 1, self._bytes - key.__sizeof__()

        with self._changed:
            self._wait_until(lambda: not self._is_reserved)
            if alone:
                self._is_reserved = True
                try:
                    self._wait_until(lambda: not self._batches)
                except StoreError:
                    self._is_reserved = False
                    self._changed.notify_all()
                    raise
            self._batches += 1
        try:
            yield admit
        finally:
            with self._changed:
                is_open = False  # for threads that still list some of it
                self._entries, self._bytes = self._entries + entries, self._bytes + size
                self._batches -= 1
                self._is_reserved = self._is_reserved and not alone
                self._changed.notify_all()

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        if not self._changed.wait_for(is_so, _ROOM_WAIT_S):
            raise StoreError(
                f"{self._where}: other listings of this server hold all that may be held",
                hint=_HINT,
            )


class WebIndex:
    def __init__(self, objects: S3Objects, names: Names, counters: Counters) -> None:
        self._objects = objects
        self._names = names
        self._counters = counters
        self._pool = ThreadPoolExecutor(_THREADS, "index")
        self._speaks_dav: bool | None = None  # None: not asked yet
        # Where a listing that broke goes on: folders of which nothing has been told yet.
        self._unfinished: dict[str, list[str]] = {}
        self._elsewhere: set[str] = set()
        self._room = _Room(names.identity, _MOST_ENTRIES, _MOST_NAME_BYTES)

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        waiting = deque(self._unfinished.pop(prefix, [prefix]) if after else [prefix])
        alone = 0  # so many of the first did not fit beside each other
        while waiting:
            count = 1 if alone else min(len(waiting), _FOLDERS_AT_ONCE)
            some = [waiting.popleft() for _ in range(count)]
            try:
                with self._room.batch(alone=alone > 0) as admit:
                    levels = list(self._pool.map(partial(self._folder, admit=admit), some))
                    page = self._infos([file for files, _ in levels for file in files])
                    deeper = [name for _, folders in levels for name in folders]
                    del levels
                    waiting += deeper
                    alone = max(0, alone - 1)
                    # An empty folder is shown, as a directory marker in a bucket is.
                    yield page + [ObjectInfo(f"{name}/", 0, 0, "") for name in deeper]
            except _NoRoom:
                if alone:
                    raise self._too_large(some[0]) from None
                alone = len(some)
                waiting.extendleft(reversed(some))
            except PenstockError:
                self._unfinished[prefix] = [*some, *waiting]
                raise

    def list_level(self, prefix: str) -> Level | None:
        """None of a large one: it is held as a whole, and nobody waits for room for it."""
        try:
            room = _Room(self._identity, _LEVEL_ENTRIES, _LEVEL_NAME_BYTES)
            with room.batch() as admit:
                files, folders = self._folder(prefix, admit)
                return Level(self._infos(files), folders)
        except _NoRoom:
            return None

    def why_unreadable(self, key: str) -> str | None:
        return _ELSEWHERE if key in self._elsewhere else None

    # -- one folder -----------------------------------------------------------------------

    def _folder(self, folder: str, admit: Admit) -> "tuple[list[tuple[str, _Entry]], list[str]]":
        if folder.count("/") >= _DEEPEST:
            raise SourceError(
                f"{self._identity}: folders in folders, deeper than {_DEEPEST}: …/{folder[-80:]}",
                hint=_HINT,
            )
        try:
            entries = self._entries(folder, lambda name: admit(f"{folder}/{name}"))
        except RedirectRefused as error:
            if not folder:
                raise
            return [(folder, _Entry(IndexEntry(folder, 0, 0), self._hidden(folder, error)))], []
        self._elsewhere.discard(folder)
        start = f"{folder}/" if folder else ""
        named = [(f"{start}{one.entry.name}", one) for one in entries]
        files = [(key, one) for key, one in named if key[-1] != "/"]
        return files, [key[:-1] for key, _ in named if key[-1] == "/"]

    def _too_large(self, folder: str) -> SourceError:
        return SourceError(
            f"{self._identity}/{folder[-80:]}: a folder of more than {_MOST_ENTRIES:,} names, or "
            f"of more than {_MOST_NAME_BYTES >> 20} MiB of names",
            hint=_HINT,
        )

    def _entries(self, folder: str, admit: Admit) -> list[_Entry]:
        full = self._names.full(folder)
        path = f"{self._objects.path(full)}/" if full else "/"
        try:
            found = None if self._speaks_dav is False else self._dav_entries(path, admit)
            if found is None:
                found = self._page_entries(path, f"{self._identity}/{folder}", admit)
            return found
        except ObjectNotFound:
            if folder:
                return []  # removed between two listings
            raise SourceError(f"{self._identity}: no such folder") from None

    def _infos(self, files: "list[tuple[str, _Entry]]") -> list[ObjectInfo]:
        return [
            info
            for start in range(0, len(files), _HEADS_AT_ONCE)
            for info in self._pool.map(self._info, files[start : start + _HEADS_AT_ONCE])
            if info is not None
        ]

    def _info(self, file: "tuple[str, _Entry]") -> ObjectInfo | None:
        key, (entry, info) = file
        if info is not None:
            return info._replace(key=key)
        if entry.size_bytes is not None:
            # The minute of the index is no version that could be asked for; a file that was
            # written again has another one, all the same.
            version = f"{BY_SIZE}{entry.size_bytes}-{entry.mtime_ns // 1_000_000_000:x}"
            return ObjectInfo(key, entry.size_bytes, entry.mtime_ns, version)
        try:
            found = self._head(key)
        except ObjectNotFound:
            return None  # removed since
        except RedirectRefused as error:
            return self._hidden(key, error)
        self._elsewhere.discard(key)
        return found

    def _hidden(self, key: str, error: RedirectRefused) -> ObjectInfo:
        """As a file that cannot be read: it is counted, and listed with the reason."""
        if len(self._elsewhere) >= _MOST_ELSEWHERE:
            raise error
        log.warning("%s", error)
        self._elsewhere.add(key)
        return ObjectInfo(key, 0, 0, "elsewhere")

    # -- requests -------------------------------------------------------------------------

    def _head(self, key: str) -> ObjectInfo:
        where = f"{self._identity}/{key}"
        self._counters.add("store_requests", label="head")
        try:
            path = self._objects.path(self._names.full(key))
            with self._objects.ask(where, path, method="HEAD") as response:
                headers = response.headers
        except (ProtocolError, OSError) as error:
            raise failure(error, where) from error
        try:
            size = parse_size(headers.get("content-length", ""))
        except ValueError as error:
            raise StoreError(f"{where}: {error}", kind="wrong_length") from None
        modified_s = _seconds(headers.get("last-modified", ""))
        version = version_of(headers.get("etag"), modified_s, size)
        return ObjectInfo(key, size, int(modified_s) * 1_000_000_000, version)

    def _dav_entries(self, path: str, admit: Admit) -> list[_Entry] | None:
        """None if this server does not speak WebDAV."""
        entries: list[_Entry] = []
        try:
            with self._ask(path, "Depth: 1\r\n", "PROPFIND") as response:
                if response.status != 207:
                    raise SourceError(f"{self._identity}: no answer of WebDAV", hint=_HINT)
                self._speaks_dav = True
                for child in read_xml(response.pieces(_DAV_MOST_BYTES)):
                    if (entry := _dav_entry(child, f"http://host{path}")) is not None:
                        admit(entry.entry.name)
                        entries.append(entry)
        except (RedirectRefused, _NoRoom):
            raise
        except (SourceError, AccessDenied, ObjectNotFound):
            if self._speaks_dav is None:
                self._speaks_dav = False
                return None
            raise
        except OSError as error:  # first: a certificate that is not trusted is a ValueError, too
            raise failure(error, self._identity) from error
        except (ValueError, BodyTooLong) as error:
            raise SourceError(f"{self._identity}{path}: {error}", hint=_HINT) from error
        except ProtocolError as error:
            raise failure(error, self._identity) from error
        return entries

    def _page_entries(self, path: str, where: str, admit: Admit) -> list[_Entry]:
        entries = None
        # In whatever encoding a page is: of names that are not percent-encoded, the bytes stay.
        decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        try:
            with self._ask(path, "Accept: text/html\r\n", "GET") as response:
                if "html" in response.headers.get("content-type", "").lower():
                    pieces = map(decode, response.pieces(_PAGE_MOST_BYTES))
                    entries = read_index(pieces, f"http://host{path}", admit)
        except OSError as error:  # first, as above
            raise failure(error, where) from error
        except (ValueError, BodyTooLong) as error:
            raise SourceError(f"{where}: an index without end ({error})", hint=_HINT) from error
        except ProtocolError as error:
            raise failure(error, where) from error
        if entries is None:
            raise SourceError(f"{where}: a page that is no index of files", hint=_HINT)
        return list(map(_Entry, entries))

    def _ask(self, path: str, headers: str, method: str) -> Response:
        self._counters.add("store_requests", label="list")
        where = "/".join(self._identity.split("/", 3)[:3]) + path
        return self._objects.ask(where, path, headers=headers, method=method)

    @property
    def _identity(self) -> str:
        return self._names.identity


def _dav_entry(child: Child, address: str) -> _Entry | None:
    name = name_of(child.fields.get("href", "").strip(), address)
    if name is None:
        return None  # the folder itself
    if "collection" in child.fields:
        return _Entry(IndexEntry(f"{name.rstrip('/')}/", None, 0))
    try:
        size = parse_size(child.fields.get("getcontentlength", "").strip())
    except ValueError:
        return _Entry(IndexEntry(name.rstrip("/"), None, 0))
    modified_s = _seconds(child.fields.get("getlastmodified", ""))
    version = version_of(child.fields.get("getetag", "").strip(), modified_s, size)
    info = ObjectInfo(name, size, int(modified_s) * 1_000_000_000, version)
    return _Entry(IndexEntry(name.rstrip("/"), size, info.mtime_ns), info)


def _seconds(date: str) -> float:
    try:
        return parse_date(date)
    except ValueError:
        return 0.0
