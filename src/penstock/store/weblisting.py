"""Lists the folders of a web server, folder by folder: by WebDAV where the server speaks it, else
from the index pages that it writes for people, or from a file that the user wrote (`--manifest`).

A page rarely states a version, and often no exact size: then each file costs a HEAD request.
What is exact in a page is believed, and costs no request.

Links to other servers are not followed. If the source's own folder leads to another server, that is
an error; a folder below it is shown empty. Such a folder is listed among the hidden objects, and so
is a file that leads to another server.

Threading: any thread. The requests of all listings share a small pool of threads, and what all
listings hold in memory has one bound.
"""

import codecs
import gzip
import json
import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

from penstock.errors import (
    AccessDenied,
    ObjectNotFound,
    OptionError,
    PenstockError,
    SourceError,
    StoreError,
)
from penstock.metrics import OK, Counters
from penstock.store import Level, ObjectInfo
from penstock.store.http import BodyTooLong, ProtocolError, Response
from penstock.store.indexpage import IndexEntry, name_of, read_index
from penstock.store.s3objects import RedirectRefused, S3Objects, failure
from penstock.store.source import SourcePrefix
from penstock.store.versions import BY_SIZE, parse_date, parse_size, version_of
from penstock.store.xmlbody import Child, read_xml

log = logging.getLogger(__name__)

_THREADS = 16
_FOLDERS_AT_ONCE = 16
# Both are parsed while they arrive. A page has about 200 bytes for an entry, and takes up to a
# second of CPU for a megabyte; this is enough for 160,000 entries in a folder.
_MAX_PAGE_BYTES = 32 << 20
_MAX_DAV_BYTES = 512 << 20  # up to 1 KiB for an entry
# Of all folders that are listed at once, or of one alone. An entry takes 600 bytes beside its
# name.
_MAX_ENTRIES = 250_000
_MAX_NAME_BYTES = 32 << 20
# A level is listed only where it may be small: a longer one is not needed as a whole.
_LEVEL_ENTRIES = 10_000
_LEVEL_NAME_BYTES = 2 << 20
_CAPACITY_WAIT_S = 120.0  # other listings hold their folders until these are written to disk
_HEADS_AT_ONCE = 1000  # waiting for a thread; each takes 1.5 KB meanwhile
# A link to a folder above makes a tree without end; no data set is that deep.
_MAX_DEPTH = 64
# Objects on other servers that are remembered; with more of them the source itself is wrong.
_MAX_ELSEWHERE = 10_000
_HINT = "a web server that cannot list needs --manifest"
_ELSEWHERE = "it leads to another server"


class _Entry(NamedTuple):
    """An entry of a folder; `info` is set for a file whose version is known."""

    entry: IndexEntry
    info: ObjectInfo | None = None


Admit = Callable[[str], None]  # called with each key; raises _CapacityExceeded


class _CapacityExceeded(Exception):
    """The listings hold as many keys as they may."""


class _Capacity:
    """Bounds how many keys all listings hold together. Any thread.

    Folders that do not fit beside others are listed again, each when nothing else is held.
    """

    def __init__(self, where: str, max_entries: int, max_bytes: int) -> None:
        self._where = where
        self._changed = threading.Condition()
        self._free_entries, self._free_bytes = max_entries, max_bytes
        self._batches = 0
        self._is_reserved = False  # for one folder alone

    @contextmanager
    def batch(self, *, alone: bool = False) -> Iterator[Admit]:
        """Wait for capacity, and release it at the end.

        A thread has one batch at a time. Raises StoreError where others hold the capacity for too
        long.
        """
        entries = size = 0
        is_open = True

        def admit(key: str) -> None:
            nonlocal entries, size
            with self._changed:
                if not is_open or not self._free_entries or self._free_bytes < key.__sizeof__():
                    raise _CapacityExceeded
                entries, size = entries + 1, size + key.__sizeof__()
                self._free_entries -= 1
                self._free_bytes -= key.__sizeof__()

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
                is_open = False  # for threads that still list some of the batch
                self._free_entries += entries
                self._free_bytes += size
                self._batches -= 1
                self._is_reserved = self._is_reserved and not alone
                self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, _CAPACITY_WAIT_S):
            raise StoreError(
                f"{self._where}: other listings of this server hold as many names as may be held",
                hint=_HINT,
            )


class WebListing:
    def __init__(self, objects: S3Objects, prefix: SourcePrefix, counters: Counters) -> None:
        self._objects = objects
        self._prefix = prefix
        self._identity = prefix.identity
        self._counters = counters
        self._pool = ThreadPoolExecutor(_THREADS, "index")
        self._speaks_dav: bool | None = None  # None: not known yet
        # Where a listing that broke continues: folders that were not yielded yet.
        self._unfinished: dict[str, list[str]] = {}
        self._elsewhere: set[str] = set()
        self._capacity = _Capacity(prefix.identity, _MAX_ENTRIES, _MAX_NAME_BYTES)

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        queue = deque(self._unfinished.pop(prefix, [prefix]) if after else [prefix])
        alone = 0  # how many folders at the head of the queue did not fit beside each other
        while queue:
            count = 1 if alone else min(len(queue), _FOLDERS_AT_ONCE)
            folders = [queue.popleft() for _ in range(count)]
            try:
                with self._capacity.batch(alone=alone > 0) as admit:
                    levels = list(self._pool.map(partial(self._folder, admit=admit), folders))
                    page = self._infos([file for files, _ in levels for file in files])
                    deeper = [name for _, inner in levels for name in inner]
                    del levels
                    queue += deeper
                    alone = max(0, alone - 1)
                    # An empty folder is shown, as a directory marker in a bucket is.
                    yield page + [ObjectInfo(f"{name}/", 0, 0, "") for name in deeper]
            except _CapacityExceeded:
                if alone:
                    raise self._too_large(folders[0]) from None
                alone = len(folders)
                queue.extendleft(reversed(folders))
            except PenstockError:
                self._unfinished[prefix] = [*folders, *queue]
                raise

    def list_level(self, prefix: str) -> Level | None:
        """Return None for a large folder: it would be held as a whole, without waiting for
        capacity."""
        try:
            capacity = _Capacity(self._identity, _LEVEL_ENTRIES, _LEVEL_NAME_BYTES)
            with capacity.batch() as admit:
                files, folders = self._folder(prefix, admit)
                return Level(self._infos(files), folders)
        except _CapacityExceeded:
            return None

    def why_unreadable(self, key: str) -> str | None:
        return _ELSEWHERE if key in self._elsewhere else None

    # -- one folder -----------------------------------------------------------------------

    def _folder(self, folder: str, admit: Admit) -> "tuple[list[tuple[str, _Entry]], list[str]]":
        """Return the files of a folder by key, and the keys of its folders."""
        if folder.count("/") >= _MAX_DEPTH:
            raise SourceError(
                f"{self._identity}: folders are nested deeper than {_MAX_DEPTH}: …/{folder[-80:]}",
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
            f"{self._identity}/{folder[-80:]}: a folder of more than {_MAX_ENTRIES:,} names, or "
            f"of more than {_MAX_NAME_BYTES >> 20} MiB of names",
            hint=_HINT,
        )

    def _entries(self, folder: str, admit: Admit) -> list[_Entry]:
        full = self._prefix.full(folder)
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
            # The minute in the index is no version that a GET could ask for, but it differs once
            # the file is written again.
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
        """Return a file that cannot be read, so that it is counted and listed with the reason."""
        if len(self._elsewhere) >= _MAX_ELSEWHERE:
            raise error
        log.warning("%s", error)
        self._elsewhere.add(key)
        return ObjectInfo(key, 0, 0, "elsewhere")

    # -- requests -------------------------------------------------------------------------

    def _head(self, key: str) -> ObjectInfo:
        where = f"{self._identity}/{key}"
        try:
            path = self._objects.path(self._prefix.full(key))
            with self._objects.ask(where, path, method="HEAD") as response:
                headers = response.headers
        except (ProtocolError, OSError) as error:
            raise failure(error, where) from error
        self._counters.add("store_requests", label="head", outcome=OK)
        try:
            size = parse_size(headers.get("content-length", ""))
        except ValueError as error:
            raise StoreError(f"{where}: {error}", kind="wrong_length") from None
        modified_s = _seconds(headers.get("last-modified", ""))
        version = version_of(headers.get("etag"), modified_s, size)
        return ObjectInfo(key, size, int(modified_s) * 1_000_000_000, version)

    def _dav_entries(self, path: str, admit: Admit) -> list[_Entry] | None:
        """Return the entries of a folder; None if this server does not speak WebDAV."""
        entries: list[_Entry] = []
        try:
            with self._ask(path, "Depth: 1\r\n", "PROPFIND") as response:
                if response.status != 207:
                    raise SourceError(f"{self._identity}: the answer is not WebDAV", hint=_HINT)
                self._speaks_dav = True
                for child in read_xml(response.pieces(_MAX_DAV_BYTES)):
                    if (entry := _dav_entry(child, f"http://host{path}")) is not None:
                        admit(entry.entry.name)
                        entries.append(entry)
        except (RedirectRefused, _CapacityExceeded):
            raise
        except (SourceError, AccessDenied, ObjectNotFound):
            if self._speaks_dav is None:
                self._speaks_dav = False
                return None
            raise
        except OSError as error:  # before ValueError: an untrusted certificate is both
            raise failure(error, self._identity) from error
        except (ValueError, BodyTooLong) as error:
            raise SourceError(f"{self._identity}{path}: {error}", hint=_HINT) from error
        except ProtocolError as error:
            raise failure(error, self._identity) from error
        return entries

    def _page_entries(self, path: str, where: str, admit: Admit) -> list[_Entry]:
        entries = None
        # Whatever the encoding of the page: of names that are not percent-encoded, the bytes stay.
        decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        try:
            with self._ask(path, "Accept: text/html\r\n", "GET") as response:
                if "html" in response.headers.get("content-type", "").lower():
                    pieces = map(decode, response.pieces(_MAX_PAGE_BYTES))
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
        where = "/".join(self._identity.split("/", 3)[:3]) + path
        response = self._objects.ask(where, path, headers=headers, method=method)
        self._counters.add("store_requests", label="list", outcome=OK)
        return response


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


# -- manifests ----------------------------------------------------------------------------

_MANIFEST_PAGE = 1000
# The longest path that a file can have (4,095 bytes) fits twice, even with every byte escaped.
_MAX_LINE = 65_536
_LINE_HINT = "one object a line: `SIZE PATH`, or JSON with path, size and perhaps etag"


class ManifestListing:
    """Lists what a file names (`--manifest FILE`), for web servers that cannot list."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def list_all(self, prefix: str, after: str) -> Iterator[list[ObjectInfo]]:
        for page in read_manifest(self._path):
            yield [
                info._replace(version=info.version or f"{BY_SIZE}{info.size_bytes}")
                for info in page
            ]

    def list_level(self, prefix: str) -> Level | None:
        return None

    def why_unreadable(self, key: str) -> str | None:
        return None


def read_manifest(path: Path) -> Iterator[list[ObjectInfo]]:
    """Yield the objects that a manifest names, page by page.

    A line is one object: `SIZE PATH`, or JSON `{"path": …, "size": …, "etag": …}`. Empty lines and
    lines that start with # are skipped. A file that ends in .gz is decompressed.
    """
    page: list[ObjectInfo] = []
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="surrogateescape") as lines:
            for number in count(1):
                line = lines.readline(_MAX_LINE + 1)
                if not line:
                    break
                if len(line) > _MAX_LINE:
                    raise OptionError(
                        f"{path}:{number}: a line of more than {_MAX_LINE:,} characters",
                        hint=_LINE_HINT,
                    )
                if not line.strip() or line.startswith("#"):
                    continue
                page.append(_parse_line(line.rstrip("\n"), f"{path}:{number}"))
                if len(page) >= _MANIFEST_PAGE:
                    yield page
                    page = []
    except (OSError, EOFError, zlib.error) as error:  # the last two: a broken gzip file
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"--manifest {path}: {why}") from error
    yield page


def _parse_line(line: str, where: str) -> ObjectInfo:
    if line.startswith("{"):
        try:
            fields = cast(dict[str, Any], json.loads(line))
            etag = str(fields.get("etag", ""))
            path, size = str(fields["path"]), int(fields["size"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise OptionError(f"{where}: not an object line: {error}", hint=_LINE_HINT) from error
    else:
        number, _, path = line.partition(" ")
        etag = ""
        # 20 digits are more bytes than any store holds; Python refuses thousands of digits.
        if not (number.isascii() and number.isdigit() and len(number) <= 20 and path):
            raise OptionError(f"{where}: not an object line: {line[:80]!r}", hint=_LINE_HINT)
        size = int(number)
    if size < 0:
        raise OptionError(f"{where}: a size below zero", hint=_LINE_HINT)
    return ObjectInfo(path, size, 0, etag.replace('"', ""))
