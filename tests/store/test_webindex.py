"""Folders of web servers, by the pages that they write for people."""

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import SourceError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.indexpage import IndexEntry, read_index
from penstock.store.reliable import open_reliable_store
from penstock.store.source import parse_source

HERE = "http://host/data/set/"
MAY = 1_714_557_600 * 10**9  # 2024-05-01 10:00 UTC

NGINX = """<html>
<head><title>Index of /data/set/</title></head>
<body>
<h1>Index of /data/set/</h1><hr><pre><a href="../">../</a>
<a href="deep/">deep/</a>                         01-May-2024 10:00                   -
<a href="a.bin">a.bin</a>                         01-May-2024 10:00               12345
<a href="long-name-that-is-cut.bin">long-name-that-is-c..&gt;</a> 01-May-2024 10:00      7
<a href="rounded.bin">rounded.bin</a>             01-May-2024 10:00                 12M
</pre><hr></body>
</html>"""

APACHE = """<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">
<html><head><title>Index of /data/set</title></head><body><h1>Index of /data/set</h1>
<table><tr><th valign="top"><img src="/icons/blank.gif" alt="[ICO]"></th>
<th><a href="?C=N;O=D">Name</a></th><th><a href="?C=M;O=A">Last modified</a></th>
<th><a href="?C=S;O=A">Size</a></th></tr>
<tr><td><a href="/data/">Parent Directory</a></td><td>&nbsp;</td><td align="right">  - </td></tr>
<tr><td><a href="deep/"><img src="/icons/folder.gif"></a></td><td><a href="deep/">deep/</a></td>
<td align="right">2024-05-01 10:00  </td><td align="right">  - </td><td>&nbsp;</td></tr>
<tr><td><a href="a.bin"><img src="/icons/unknown.gif"></a></td><td><a href="a.bin">a.bin</a></td>
<td align="right">2024-05-01 10:00  </td><td align="right">1.2K</td><td>&nbsp;</td></tr>
<tr><td><img src="/icons/unknown.gif"></td><td><a href="tiny">tiny</a></td>
<td align="right">2024-05-01 10:00  </td><td align="right">987 </td><td>&nbsp;</td></tr>
</table><address>Apache/2.4 Server at host Port 80</address></body></html>"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (NGINX, [("deep/", None, MAY), ("a.bin", 12345, MAY),
                 ("long-name-that-is-cut.bin", 7, MAY), ("rounded.bin", None, MAY)]),
        (APACHE, [("deep/", None, MAY), ("a.bin", None, MAY), ("tiny", 987, MAY)]),
    ],
)  # fmt: skip
def test_the_page_of_each_server_is_understood(
    page: str, expected: list[tuple[str, int | None, int]]
) -> None:
    assert read_index(page, HERE) == [IndexEntry(*one) for one in expected]
    assert read_index(page.replace("Index of", "Welcome to"), HERE) is None


@pytest.mark.parametrize(
    "href",
    ["/", "..", "../", "./", ".", "", "/data/", "/data/other/", "//elsewhere/data/set/a",
     "https://host/data/set/a", "http://elsewhere/data/set/a", "a?x=1", "?C=M;O=A", "#top",
     "a#b", "deep/er", "javascript:alert(1)", "mailto:a@b", "%2e%2e/", "a%2Fb", "http://[::1"],
)  # fmt: skip
def test_a_link_that_does_not_lie_directly_below_is_no_entry(href: str) -> None:
    page = f"<title>Index of /data/set/</title><a href='{href}'>x</a><a href='real'>real</a>"
    assert read_index(page, HERE) == [IndexEntry("real", None, 0)]


# -- servers ------------------------------------------------------------------------------

Answer = Callable[[str], tuple[int, str]]


@contextmanager
def web(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server without WebDAV, and what it was asked: HEADs and pages."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            status, text = answer(self.path)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("ETag", '"tag"')
            self.send_header("Content-Length", str(len(body)))
            if status == 302:
                self.send_header("Location", text)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def opened(address: str) -> Store:
    return open_store(parse_source(address), StoreOptions(deadline_s=60), Counters())


def keys_of(store: Store) -> dict[str, int]:
    return {info.key: info.size_bytes for page in store.list_all("") for info in page}


def index(*names: str) -> str:
    links = "".join(f"<a href='{name}'>{name}</a> 01-May-2024 10:00  4\n" for name in names)
    return f"<title>Index of /</title>{links}"


def test_only_what_a_page_does_not_tell_exactly_is_asked_for() -> None:
    page = index("a") + "<a href='b'>b</a> 01-May-2024 10:00  4K"
    with web(lambda path: (200, page if path[-1] == "/" else "data!")) as (at, asked):
        found = {info.key: info for page in opened(f"{at}/set").list_all("") for info in page}
        assert {key: info.size_bytes for key, info in found.items()} == {"a": 4, "b": 5}
        assert found["b"].version == "tag"
        assert [one for one in asked if one.startswith("HEAD")] == ["HEAD /set/b"]


def test_folders_without_end_are_given_up() -> None:
    with web(lambda _path: (200, index("loop/"))) as (at, asked):
        with pytest.raises(SourceError, match="deeper than 64"):
            keys_of(opened(at))
        assert len(asked) < 80


def test_a_page_that_somebody_wrote_is_not_taken_for_an_empty_folder() -> None:
    pages = {"/": index("a", "sub/"), "/sub/": "<title>Hello</title><a href='a'>a</a>"}
    with web(lambda path: (200, pages.get(path, "data"))) as (at, _):
        with pytest.raises(SourceError, match="/sub: a page that is no index"):
            keys_of(opened(at))
        with pytest.raises(SourceError) as refused:
            keys_of(opened(f"{at}/sub"))
        assert "--manifest" in str(refused.value.hint)


def test_nobody_is_followed_to_another_server() -> None:
    with web(lambda _path: (200, index("secret"))) as (elsewhere, asked):
        with web(lambda _path: (302, f"{elsewhere}/")) as (at, _), pytest.raises(SourceError):
            keys_of(opened(at))
        assert asked == []


def test_a_listing_that_breaks_goes_on_where_it_was() -> None:
    tries: list[str] = []

    def answer(path: str) -> tuple[int, str]:
        if path == "/bad/":
            tries.append(path)
            return (503, "busy") if len(tries) == 1 else (200, index("y"))
        return 200, index("bad/", "x") if path == "/" else "data"

    with web(answer) as (at, asked):
        store = open_reliable_store(parse_source(at), StoreOptions(deadline_s=60), Counters())
        assert keys_of(store) == {"x": 4, "bad/": 0, "bad/y": 4}
        assert asked.count("GET /") == 2  # to see that it is an index, and to list it
        assert len(tries) == 2
