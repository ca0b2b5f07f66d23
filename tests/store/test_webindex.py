"""Folders of web servers, by the pages that they write for people."""

import http.server
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.errors import PenstockError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.indexpage import IndexEntry, read_index
from penstock.store.retry import open_reliable_store
from penstock.store.source import parse_source
from tests.support.catalogs import nodes_of
from tests.support.liar import serve_liar

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

CADDY = """<!DOCTYPE html><html><head><title>set</title></head><body><h1><a href="">set</a></h1>
<table aria-describedby="summary"><thead><tr><th><a href="?sort=name&order=asc">Name</a></th></tr>
</thead><tbody>
<tr><td></td><td><a href="..">Go up</a></td><td>&mdash;</td></tr>
<tr class="file"><td></td><td><a href="./deep/"><span class="name">deep/</span></a></td>
<td data-order="-1">&mdash;</td><td><time datetime=" 2024-05-01T10:00:00Z">05/01</time></td></tr>
<tr class="file"><td></td><td><a href="./a.bin"><span class="name">a.bin</span></a></td>
<td data-order="12345">12 KiB</td><td><time datetime=" 2024-05-01T10:00:00Z">05/01</time></td></tr>
<tr class="file"><td></td><td><a href="./b.bin"><span class="name">b.bin</span></a></td>
<td class="size" data-size="0">0 B</td><td><time datetime="2024-05-01T12:00:00+02:00">x</time></td>
</tr></tbody></table></body></html>"""

RCLONE = """<!DOCTYPE html><html><head><title>/data/set</title></head><body>
<h1><a href="../">/</a><a href="">set</a>/<a href="?download=zip">zip</a></h1>
<table aria-describedby="summary"><thead><tr><th><a href="?sort=size&order=asc">Size</a></th></tr>
</thead><tbody>
<tr class="file"><td></td><td><span class="name"><a href="deep/">deep/</a></span>
<a class="zip" href="deep/?download=zip">zip</a></td><td data-order="-1">&mdash;</td>
<td><time datetime="2024-05-01 10:00:00 &#43;0000 UTC">2024-05-01</time></td></tr>
<tr class="file"><td></td><td><span class="name"><a href="a.bin">a.bin</a></span></td>
<td data-order="12345"><size>12345</size></td>
<td><time datetime="2024-05-01 10:00:00.123456789 &#43;0000 UTC">2024</time></td></tr>
</tbody></table></body></html>"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (CADDY, [("deep/", None, MAY), ("a.bin", 12345, MAY), ("b.bin", 0, MAY)]),
        (RCLONE, [("deep/", None, 0), ("a.bin", 12345, MAY + 123_456_789)]),
        (
            NGINX,
            [
                ("deep/", None, MAY),
                ("a.bin", 12345, MAY),
                ("long-name-that-is-cut.bin", 7, MAY),
                ("rounded.bin", None, MAY),
            ],
        ),
        (APACHE, [("deep/", None, MAY), ("a.bin", None, MAY), ("tiny", 987, MAY)]),
    ],
)
def test_the_index_page_of_each_server_is_parsed(
    page: str, expected: list[tuple[str, int | None, int]]
) -> None:
    assert read_index([page], HERE) == [IndexEntry(*one) for one in expected]
    other = page.replace("Index of", "Welcome to").replace("summary", "prices")
    assert read_index([other], HERE) is None


@pytest.mark.parametrize(
    "href",
    [
        "/",
        "..",
        "../",
        "./",
        ".",
        "",
        "/data/",
        "/data/other/",
        "//elsewhere/data/set/a",
        "https://host/data/set/a",
        "http://elsewhere/data/set/a",
        "a?x=1",
        "?C=M;O=A",
        "#top",
        "a#b",
        "deep/er",
        "javascript:alert(1)",
        "mailto:a@b",
        "%2e%2e/",
        "a%2Fb",
        "http://[::1",
    ],
)
def test_a_link_not_directly_below_the_folder_is_no_entry(href: str) -> None:
    page = f"<title>Index of /data/set/</title><a href='{href}'>x</a><a href='real'>real</a>"
    assert read_index([page], HERE) == [IndexEntry("real", None, 0)]


@pytest.mark.parametrize("cut", [1, 7, 100])
@pytest.mark.parametrize("page", [NGINX, APACHE, CADDY, RCLONE])
def test_a_page_may_arrive_in_any_pieces(page: str, cut: int) -> None:
    pieces = [page[start : start + cut] for start in range(0, len(page), cut)]
    assert read_index(pieces, HERE) == read_index([page], HERE)


TITLE = "<title>Index of /data/set/</title>"


@pytest.mark.parametrize(
    "page",
    [
        f"{TITLE}<a href='a'>a</a>" + f"<b>{'x' * 40}" * 150_000,
        "<title>Index of /" + f"<b>{'x' * 40}" * 150_000,
    ],
)
def test_a_page_is_parsed_in_linear_time(page: str) -> None:
    """With every piece of text put behind the last, 6 MiB took 50 s."""
    pieces = [page[start : start + 65536] for start in range(0, len(page), 65536)]
    began_s = time.process_time()
    found = read_index(pieces, HERE)
    assert time.process_time() - began_s < 4
    assert found == ([IndexEntry("a", None, 0)] if page.startswith(TITLE) else [])


@pytest.mark.parametrize(
    "rest", ["<a href='" + "x" * 300_000, "<!--" + "-" * 300_000, "<script>" + "x" * 300_000]
)
def test_a_page_with_an_endless_tag_is_rejected(rest: str) -> None:
    pieces = itertools.chain([TITLE], itertools.repeat(rest))
    with pytest.raises(ValueError, match="without end"):
        read_index(pieces, HERE)


def test_a_link_that_no_server_would_serve_is_rejected() -> None:
    assert read_index([f"{TITLE}<a href='{'x' * 8000}'>x</a>"], HERE)
    with pytest.raises(ValueError, match="too long"):
        read_index([f"{TITLE}<a href='{'x' * 9000}'>x</a>"], HERE)


# -- servers ------------------------------------------------------------------------------

Answer = Callable[[str], tuple[int, str]]


@contextmanager
def web(answer: Answer, refusal: int = 501) -> Iterator[tuple[str, list[str]]]:
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
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def do_PROPFIND(self) -> None:
            if answer(self.path)[0] == 207:
                self.do_GET()
            else:
                self.send_error(refusal)

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


def test_only_inexact_sizes_and_dates_are_requested_separately() -> None:
    page = index("a") + "<a href='b'>b</a> 01-May-2024 10:00  4K"
    with web(lambda path: (200, page if path[-1] == "/" else "data!")) as (at, asked):
        found = {info.key: info for page in opened(f"{at}/set").list_all("") for info in page}
        assert {key: info.size_bytes for key, info in found.items()} == {"a": 4, "b": 5}
        assert found["b"].version == "tag"
        assert [one for one in asked if one.startswith("HEAD")] == ["HEAD /set/b"]


@pytest.mark.parametrize("refusal", [400, 401, 403, 404, 405, 411, 413, 415, 421, 422, 451, 501])
def test_a_server_that_rejects_webdav_in_any_way_is_listed_by_its_pages(refusal: int) -> None:
    with web(lambda _path: (200, index("a")), refusal) as (at, _):
        store = open_reliable_store(parse_source(at), StoreOptions(deadline_s=60), Counters())
        assert keys_of(store) == {"a": 4}


def test_a_webdav_request_declares_that_it_has_no_body() -> None:
    with serve_liar() as liar:
        with suppress(PenstockError):
            keys_of(opened(f"{liar.endpoint}/set"))
        assert liar.requests[0].method == "PROPFIND"
        assert liar.requests[0].headers["content-length"] == "0"


@pytest.mark.parametrize("name", ["my%20data", "my data", "100%25", "caf%C3%A9"])
def test_a_source_may_be_written_as_a_url(name: str) -> None:
    asked_for = quote(unquote(name))
    pages = {f"/{asked_for}/": index("a", "b%20c/"), f"/{asked_for}/b%20c/": index("d%25")}
    with web(lambda path: (200, pages[path]) if path in pages else (404, "")) as (at, _):
        store = opened(f"{at}/{name}")
        assert keys_of(store) == {"a": 4, "b c/": 0, "b c/d%": 4}
        assert parse_source(str(parse_source(f"{at}/{name}"))) == parse_source(f"{at}/{name}")
        with web(lambda _path: (503, "")) as (down, _), pytest.raises(StoreError) as raised:
            keys_of(opened(f"{down}/{name}"))
        assert str(raised.value).startswith(f"{down}/{asked_for}")
        assert str(raised.value).count(asked_for) == 1


def test_endless_folders_are_given_up() -> None:
    with web(lambda _path: (200, index("loop/"))) as (at, asked):
        with pytest.raises(SourceError, match="deeper than 64"):
            keys_of(opened(at))
        assert len(asked) < 80


def test_a_handwritten_page_is_not_taken_for_an_empty_folder() -> None:
    pages = {"/": index("a", "sub/"), "/sub/": "<title>Hello</title><a href='a'>a</a>"}
    with web(lambda path: (200, pages.get(path, "data"))) as (at, _):
        with pytest.raises(SourceError, match="/sub: a page that is no index"):
            keys_of(opened(at))
        with pytest.raises(SourceError) as refused:
            keys_of(opened(f"{at}/sub"))
        assert "--manifest" in str(refused.value.hint)


def test_no_link_is_followed_to_another_server() -> None:
    with web(lambda _path: (200, index("secret"))) as (elsewhere, asked):
        with web(lambda _path: (302, f"{elsewhere}/")) as (at, _), pytest.raises(SourceError):
            keys_of(opened(at))
        assert asked == []


def test_links_that_lead_elsewhere_are_hidden_with_their_reason(
    tmp_path: Path,
) -> None:
    with web(lambda _path: (200, index("secret"))) as (elsewhere, asked_there):
        answers = {
            "/set/": (200, index("a", "sub/", "moved/") + "<a href='file'>file</a>"),
            "/set/file": (302, f"{elsewhere}/file"),
            "/set/sub/": (302, f"{elsewhere}/set/sub/"),
            "/set/moved/": (302, "/other/"),
            "/other/": (200, index("b").replace("href='b'", "href='/set/moved/b'")),
        }
        tree = Tree(tmp_path / "catalog.sqlite")
        with web(lambda path: answers.get(path, (404, ""))) as (at, _), closing(tree):
            summary = refresh(tree, [Mounted("", opened(f"{at}/set"))], lambda *_: None)
            assert set(nodes_of(tree)) == {"a", "sub/", "moved/", "moved/b"}
            reason = "it leads to another server"
            assert dict(tree.hidden(10)) == {"sub": reason, "file": reason}
            assert summary.hidden == 2
        assert asked_there == []


def test_an_endless_page_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.weblisting._MAX_PAGE_BYTES", 10_000)
    with web(lambda _path: (200, index(*map(str, range(1000))))) as (at, _):
        with pytest.raises(SourceError, match="an index without end") as refused:
            keys_of(opened(at))
        assert "--manifest" in str(refused.value.hint)


# -- bounds -------------------------------------------------------------------------------


def test_folders_that_do_not_fit_in_memory_together_are_listed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.store.weblisting._MAX_ENTRIES", 100)
    names = [f"{number:02}" for number in range(60)]
    pages = {
        "/": index("x/", "y/", "z/"),
        "/x/": index(*names),
        "/y/": index(*names),
        "/z/": index("a"),
    }
    with web(lambda path: (200, pages[path])) as (at, asked):
        found = keys_of(opened(at))
        assert set(found) == {"x/", "y/", "z/", "z/a", *(f"{d}/{n}" for d in "xy" for n in names)}
        assert len([one for one in asked if one == "GET /z/"]) <= 2


def test_a_folder_waits_for_memory_held_by_others_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.store.weblisting._MAX_ENTRIES", 100)
    monkeypatch.setattr("penstock.store.weblisting._CAPACITY_WAIT_S", 0.2)
    names = [f"{number:02}" for number in range(60)]
    with web(lambda _path: (200, index(*names))) as (at, _):
        store = opened(f"{at}/set")
        first = store.list_all("")
        assert len(next(first)) == 60
        with pytest.raises(StoreError, match="other listings"):
            keys_of(store)
        assert list(first) == []
        assert len(keys_of(store)) == 60


@pytest.mark.parametrize("what", ["_MAX_ENTRIES", "_MAX_NAME_BYTES"])
@pytest.mark.parametrize("speaks", ["dav", "html"])
def test_a_folder_too_large_for_memory_is_rejected(
    monkeypatch: pytest.MonkeyPatch, what: str, speaks: str
) -> None:
    monkeypatch.setattr(f"penstock.store.weblisting.{what}", 100 if "ENTRIES" in what else 10_000)
    names = [f"{number:04}" for number in range(200)]
    files = DAV.format("".join(DAV_FILE.format(name) for name in names))
    answer = (207, files) if speaks == "dav" else (200, index(*names))
    with web(lambda _path: answer) as (at, _):
        store = opened(f"{at}/set")
        for _ in range(2):
            with pytest.raises(SourceError, match="a folder of more than") as refused:
                keys_of(store)
            assert "--manifest" in str(refused.value.hint)


def test_a_level_of_very_many_names_is_left_to_the_full_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with web(lambda _path: (200, index(*map(str, range(200))))) as (at, _):
        level = opened(at).list_level("")
        assert level is not None
        assert len(level.objects) == 200
        monkeypatch.setattr("penstock.store.weblisting._LEVEL_ENTRIES", 100)
        assert opened(at).list_level("") is None


DAV = """<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">
<D:response><D:href>/set/</D:href><D:propstat><D:prop><D:resourcetype><D:collection/>
</D:resourcetype></D:prop></D:propstat></D:response>{}</D:multistatus>"""
DAV_FILE = """<D:response><D:href>/set/{}</D:href><D:propstat><D:prop><D:resourcetype/>
<D:getcontentlength>4</D:getcontentlength><D:getetag>"tag"</D:getetag></D:prop></D:propstat>
</D:response>"""


def test_webdav_lists_only_direct_children_without_other_requests() -> None:
    names = ["a", "b%20c", "/etc/passwd", "../up", "http://elsewhere/x", "deep/er"]
    body = DAV.format("".join(DAV_FILE.format(name) for name in names))
    body = body.replace("/set/http", "http").replace("/set//etc", "/etc")
    with web(lambda _path: (207, body)) as (at, asked):
        assert keys_of(opened(f"{at}/set")) == {"a": 4, "b c": 4}
        assert asked == ["PROPFIND /set/"]


def test_a_broken_web_listing_resumes_where_it_broke() -> None:
    tries: list[str] = []

    def answer(path: str) -> tuple[int, str]:
        if path == "/bad/":
            tries.append(path)
            return (503, "busy") if len(tries) == 1 else (200, index("y"))
        return 200, index("bad/", "x") if path == "/" else "data"

    with web(answer) as (at, asked):
        store = open_reliable_store(parse_source(at), StoreOptions(deadline_s=60), Counters())
        assert keys_of(store) == {"x": 4, "bad/": 0, "bad/y": 4}
        assert asked.count("GET /") == 1
        assert len(tries) == 2
