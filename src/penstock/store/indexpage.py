"""Parses the page with which a web server lists a folder. Pure.

Python's http.server, nginx (autoindex) and Apache (mod_autoindex) write such pages, each in its own
way. All have a title, and for each entry a link with the entry's date and size behind it. Caddy
(file_server browse) and `rclone serve http` write a table instead, whose title is only a path; what
it shows rounded is exact in the attributes of its cells.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

_TITLE = re.compile(r"\s*(index of|directory listing)\b", re.IGNORECASE)
_DATES = (
    (re.compile(r"\d{2}-[A-Z][a-z]{2}-\d{4} \d{2}:\d{2}"), "%d-%b-%Y %H:%M"),  # nginx
    (re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}"), "%Y-%m-%d %H:%M"),  # Apache
)
_TABLE = "summary"  # what the table of Caddy and rclone is described by
# 2024-05-01T10:00:00Z of Caddy, 2024-05-01 10:00:00.123456789 +0000 UTC of rclone
_CELL_DATE = re.compile(
    r"\s*(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))? ?(Z|[+-]\d{2}:?\d{2})"
)
_CELL_SIZE = re.compile(r"\d{1,19}")
_SPACES = re.compile(r"\s+")
# A bare number is a size in bytes. `1.2K` and `12M` are not exact, and `-` is a folder's.
_EXACT_SIZE = re.compile(r"(\d{1,19})(?=\s|$)")
# The longest line that Apache and nginx take as a request: nothing longer can be requested.
_MAX_HREF = 8 << 10
_MAX_TAG = 256 << 10  # html.parser holds a tag, a comment or a script until it ends
_MAX_TEXT = 200  # of the title, and of the text behind a link


class IndexEntry(NamedTuple):
    name: str  # of a folder with its slash
    size_bytes: int | None  # None: missing, or not exact
    mtime_ns: int  # 0: missing


def read_index(
    pieces: Iterable[str], address: str, admit: Callable[[str], None] = lambda _: None
) -> list[IndexEntry] | None:
    """Return what lies directly in the folder at `address`, which ends in a slash; None if the page
    does not list a folder.

    Calls `admit` with each new name. Raises ValueError for a tag or a link without end, and what
    `admit` raises.
    """
    page = _IndexPage(address, admit)
    try:
        for piece in pieces:
            page.feed(piece)
            if len(page.rawdata) > _MAX_TAG:
                raise ValueError("a tag without end")
    except AssertionError:  # html.parser raises it for `<![` and the like that is no HTML
        return None
    # The parser is not closed: what is left is a tag without end, which html.parser would scan
    # again from every character on.
    return page.entries() if page.is_table or _TITLE.match(page.title.text) else None


def name_of(href: str, address: str) -> str | None:
    """Return the name that a link leads to; None unless it is directly below `address`.

    Other links lead to the folder above, other sort orders or other places. Raises ValueError for a
    link that is too long.
    """
    if len(href) > _MAX_HREF:
        raise ValueError("a link that is too long")
    try:
        target, here = urlsplit(urljoin(address, href)), urlsplit(address)
    except ValueError:
        return None
    if target[:2] != here[:2] or target.query or target.fragment or "?" in href:
        return None
    if not target.path.startswith(here.path):
        # The page may spell its own address in another way: `%7E` is `~`.
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


class _IndexPage(HTMLParser):
    """Collects every link to what lies directly below, with the text up to the next link."""

    def __init__(self, address: str, admit: Callable[[str], None]) -> None:
        super().__init__(convert_charrefs=True)
        self.title = _BoundedText()
        self._address = address
        self._admit = admit
        self._found: dict[str, IndexEntry] = {}
        self._name: str | None = None  # of the last link, if that is an entry
        self._description = _BoundedText()  # the text behind that link
        self._size: int | None = None  # of the last entry, as the cell of a table has it
        self._mtime_ns = 0
        self._in_title = False
        self._in_link = False
        self.is_table = False

    def entries(self) -> list[IndexEntry]:
        self._end_entry()
        return list(self._found.values())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_data(" ")  # a tag separates words; the end of a piece does not
        if tag in ("title", "h1") and not self.title.text:
            self._in_title = True
        elif tag == "a":
            href = dict(attrs).get("href")
            self._in_link = href is not None
            if href is not None:
                self._end_entry()
                self._name = name_of(href, self._address)
        elif tag == "table":
            self.is_table |= dict(attrs).get("aria-describedby") == _TABLE
        elif tag == "td" and self._name is not None:
            cell = dict(attrs)
            size = cell.get("data-order") or cell.get("data-size") or ""
            if _CELL_SIZE.fullmatch(size):
                self._size = int(size)
        elif tag == "time" and self._name is not None:
            self._mtime_ns = _parse_cell_date(dict(attrs).get("datetime") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("title", "h1"):
            self._in_title = False
        elif tag == "a":
            self._in_link = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.add(data)
        elif self._name is not None and not self._in_link:
            self._description.add(data)

    def _end_entry(self) -> None:
        name, description = self._name, self._description
        if name is None:
            return
        self._name, self._description = None, _BoundedText()
        size, mtime_ns = self._size, self._mtime_ns
        self._size, self._mtime_ns = None, 0
        if not self.is_table:
            size, mtime_ns = _parse_description(description.text)
        entry = IndexEntry(name, size, mtime_ns)
        if name not in self._found:
            self._admit(name)
        # A picture before the name may be a link too, and has nothing behind it.
        elif entry[1:] == (None, 0):
            return
        self._found[name] = entry


class _BoundedText:
    """The first characters of a text that comes in pieces, with single spaces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._left = _MAX_TEXT

    def add(self, text: str) -> None:
        if self._left > 0:
            text = _SPACES.sub(" ", text)
            self._pieces.append(text[: self._left])
            self._left -= len(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)


def _parse_description(text: str) -> tuple[int | None, int]:
    """Return the size and the time of an entry, as in IndexEntry."""
    for pattern, form in _DATES:
        if (date := pattern.search(text)) is None:
            continue
        try:
            when = datetime.strptime(date[0], form).replace(tzinfo=UTC)
        except ValueError:
            break
        size = _EXACT_SIZE.match(text[date.end() :].lstrip())
        return (int(size[1]) if size else None), int(when.timestamp()) * 1_000_000_000
    return None, 0


def _parse_cell_date(text: str) -> int:
    """Return the time that the cell of a table names, in nanoseconds; 0 if it names none."""
    if (date := _CELL_DATE.match(text)) is None:
        return 0
    try:
        when = datetime.fromisoformat(f"{date[1]}T{date[2]}{date[4].replace('Z', '+00:00')}")
        return int(when.timestamp()) * 1_000_000_000 + int((date[3] or "").ljust(9, "0"))
    except (ValueError, OverflowError):
        return 0
