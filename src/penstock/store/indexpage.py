"""The page with which a web server lists a folder, taken apart. Pure.

Python's http.server, nginx (autoindex) and Apache (mod_autoindex) write such pages, each in its
own way; what they share is a title, and a link for each entry with what is told of it behind it.
"""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

_TITLE = re.compile(r"\s*(index of|directory listing)\b", re.IGNORECASE)
_DATES = (
    (re.compile(r"\d{2}-[A-Z][a-z]{2}-\d{4} \d{2}:\d{2}"), "%d-%b-%Y %H:%M"),  # nginx
    (re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}"), "%Y-%m-%d %H:%M"),  # Apache
)
# Bytes are told as a bare number. `1.2K` and `12M` are not exact, and `-` is a folder's.
_EXACT = re.compile(r"(\d{1,19})(?=\s|$)")


class IndexEntry(NamedTuple):
    name: str  # of a folder with its slash
    size_bytes: int | None  # None: not told, or not exactly
    mtime_ns: int  # 0: not told


def read_index(page: str, address: str) -> list[IndexEntry] | None:
    """What lies directly in the folder at `address`, which ends in a slash; None if the page is
    none that lists a folder."""
    links = _Links()
    links.feed(page)
    links.close()
    if not _TITLE.match(links.title):
        return None
    found: dict[str, IndexEntry] = {}
    for href, told in links.found:
        name = _name_of(href, address)
        if name is None:
            continue
        entry = IndexEntry(name, *_told(told))
        # A picture before the name may be a link too, and has nothing behind it.
        if name not in found or entry[1:] != (None, 0):
            found[name] = entry
    return list(found.values())


def _name_of(href: str, address: str) -> str | None:
    """None for all that is not directly below: the folder above, other orders, other places."""
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


class _Links(HTMLParser):
    """Every link with the text behind it, up to the next."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str]] = []
        self.title = ""
        self._in_title = False
        self._in_link = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("title", "h1") and not self.title:
            self._in_title = True
        elif tag == "a":
            href = dict(attrs).get("href")
            self._in_link = href is not None
            if href is not None:
                self.found.append((href, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("title", "h1"):
            self._in_title = False
        elif tag == "a":
            self._in_link = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif self.found and not self._in_link and data.strip():
            href, told = self.found[-1]
            self.found[-1] = href, f"{told} {data.strip()}"
