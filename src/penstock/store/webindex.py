"""Folders of a web server that lists them as pages for people: walked, folder by folder.

A page rarely tells a version, and often no exact size: then each file is asked for its head. What
a page tells exactly is believed, and costs no request.

Threading: any thread; the requests of all listings share a few threads of their own.
"""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any
from urllib.parse import quote, urlsplit

from penstock.errors import AccessDenied, ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo
from penstock.store.credentials import IDLE_S
from penstock.store.indexpage import IndexEntry, read_index
from penstock.store.remote import RemoteStore
from penstock.store.secrets import redact
from penstock.store.versions import BY_SIZE

_THREADS = 16
_FOLDERS_AT_ONCE = 16
# A page has about 200 bytes for an entry: of a folder with more than this, nobody gets the page.
_PAGE_MOST_BYTES = 256 << 20
# A link to a folder above makes a tree without end; no data set is that deep.
_DEEPEST = 64
_PIECE_BYTES = 1 << 20
_HINT = "a web server that cannot list needs --manifest"

Head = Callable[[str], ObjectInfo]


class WebIndex:
    def __init__(
        self, address: str, identity: str, counters: Counters, *, head: Head, deadline_s: float
    ) -> None:
        """`address`: of the folder, without a slash at its end; `head`: asks for one file."""
        self._address = address
        self._identity = identity
        self._counters = counters
        self._head = head
        self._deadline_s = deadline_s
        self._pool = ThreadPoolExecutor(_THREADS, "index")
        self._open = urllib.request.build_opener(_StaysHere()).open
        # Where a listing that broke goes on: folders of which nothing has been told yet.
        self._unfinished: dict[str, list[str]] = {}

    def is_index(self) -> bool:
        """Is the folder itself listed by a page?"""
        return self._entries("") is not None

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        waiting = self._unfinished.pop(prefix, [prefix]) if after else [prefix]
        while waiting:
            some, waiting = waiting[:_FOLDERS_AT_ONCE], waiting[_FOLDERS_AT_ONCE:]
            try:
                levels = list(self._pool.map(self._folder, some))
                page = self._infos([file for files, _ in levels for file in files])
            except PenstockError:
                self._unfinished[prefix] = [*some, *waiting]
                raise
            deeper = [name for _, folders in levels for name in folders]
            waiting += deeper
            # An empty folder is shown, as a directory marker in a bucket is.
            yield page + [ObjectInfo(f"{name}/", 0, 0, "") for name in deeper]

    def list_level(self, prefix: str) -> Level:
        files, folders = self._folder(prefix)
        return Level(self._infos(files), folders)

    # -- one folder -----------------------------------------------------------------------

    def _folder(self, folder: str) -> "tuple[list[tuple[str, IndexEntry]], list[str]]":
        if folder.count("/") >= _DEEPEST:
            raise SourceError(
                f"{self._identity}: folders in folders, deeper than {_DEEPEST}: …/{folder[-80:]}",
                hint=_HINT,
            )
        entries = self._entries(folder)
        if entries is None:
            raise SourceError(
                f"{self._identity}/{folder}: a page that is no index of files", hint=_HINT
            )
        start = f"{folder}/" if folder else ""
        files = [(f"{start}{one.name}", one) for one in entries if one.name[-1] != "/"]
        return files, [f"{start}{one.name[:-1]}" for one in entries if one.name[-1] == "/"]

    def _entries(self, folder: str) -> list[IndexEntry] | None:
        address = f"{self._address}/{quote(folder, errors='surrogateescape')}".rstrip("/") + "/"
        self._counters.add("store_requests", label="list")
        try:
            page, kind = self._get(address)
        except ObjectNotFound:
            if folder:
                return []  # removed between two listings
            raise SourceError(f"{self._identity}: no such folder") from None
        return read_index(page, address) if "html" in kind else None

    def _infos(self, files: list[tuple[str, IndexEntry]]) -> list[ObjectInfo]:
        found = self._pool.map(self._info, files)
        return [info for info in found if info is not None]

    def _info(self, file: tuple[str, IndexEntry]) -> ObjectInfo | None:
        key, entry = file
        if entry.size_bytes is not None:
            # The minute of the index is no version that could be asked for; a file that was
            # written again has another one, all the same.
            version = f"{BY_SIZE}{entry.size_bytes}-{entry.mtime_ns // 1_000_000_000:x}"
            return ObjectInfo(key, entry.size_bytes, entry.mtime_ns, version)
        try:
            return self._head(key)
        except ObjectNotFound:
            return None  # removed since

    # -- requests -------------------------------------------------------------------------

    def _get(self, address: str) -> tuple[str, str]:
        """A page, and what kind it is."""
        until_s = time.monotonic() + self._deadline_s
        request = urllib.request.Request(address, headers={"Accept": "text/html"})
        try:
            with self._open(request, timeout=min(IDLE_S, self._deadline_s / 3)) as answer:
                kind: str = answer.headers.get("Content-Type", "")
                charset: str = answer.headers.get_content_charset("utf-8")
                body = bytearray()
                while piece := answer.read(_PIECE_BYTES):
                    body += piece
                    if len(body) > _PAGE_MOST_BYTES:
                        raise SourceError(f"{address}: an index without end", hint=_HINT)
                    if time.monotonic() > until_s:
                        raise StoreError(
                            f"{address}: not all of it came within {self._deadline_s:g} s",
                            kind="timeout",
                        )
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error, address) from error
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            kind = "timeout" if isinstance(why, TimeoutError) else "other"
            raise StoreError(
                redact(f"{address}: storage cannot be reached ({why})"), kind=kind,
                hint="check the address and the network",
            ) from error  # fmt: skip
        try:
            return body.decode(charset, "surrogateescape"), kind
        except LookupError:
            return body.decode("utf-8", "surrogateescape"), kind


def _refused(error: urllib.error.HTTPError, address: str) -> PenstockError:
    what = f"{address}: {error.code} {error.reason}"
    if error.code in (404, 410):
        return ObjectNotFound(what)
    if error.code in (401, 403):
        return AccessDenied(what, hint="this server does not let everybody list this folder")
    if error.code in (408, 429) or error.code >= 500:
        return StoreError(what, kind="slow_down" if error.code in (429, 503) else "server_error")
    return SourceError(what, hint=_HINT)


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """Follows where a server sends us only on that server."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class WebStore:
    """A web server: listed by WebDAV where it speaks that, and by its pages where it does not."""

    def __init__(self, store: RemoteStore, index: WebIndex) -> None:
        self._store = store
        self._index = index
        self._speaks_dav: bool | None = None  # None: not asked yet
        self.identity = store.identity
        self.get = store.get
        self.begin = store.begin
        self.why_unreadable = store.why_unreadable
        self.put_file = store.put_file
        self.delete = store.delete
        self.clear_partial = store.clear_partial

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        if self._speaks_dav is not False:
            pages = self._store.list_all(prefix, after)
            try:
                first = next(pages, list[ObjectInfo]())
            except (SourceError, AccessDenied):
                if not self._has_pages():
                    raise
            else:
                self._speaks_dav = True
                yield first
                yield from pages
                return
        yield from self._index.list_all(prefix, after)

    def list_level(self, prefix: str) -> Level | None:
        if self._speaks_dav is not False:
            try:
                level = self._store.list_level(prefix)
            except (SourceError, AccessDenied):
                if not self._has_pages():
                    raise
            else:
                self._speaks_dav = True
                return level
        return self._index.list_level(prefix)

    def _has_pages(self) -> bool:
        """For one that was refused: can it be listed the other way?"""
        if self._speaks_dav:
            return False
        try:
            found = self._index.is_index()
        except (SourceError, AccessDenied):
            return False
        if found:
            self._speaks_dav = False
        return found
