"""Who may see the page of `penstock ui`: the token, the cookie, the Host, and what is answered to
anybody else."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounts import fail
from tests.support.pages import Page, serving
from tests.support.waiting import wait_until

PATHS = ("", "page.js", "page.css", "overview", "log", "runs/0123456789ab/report.html")


@pytest.fixture
def page() -> Iterator[Page]:
    with serving() as one:
        yield one


def test_the_token_becomes_a_cookie_and_leaves_the_address(page: Page) -> None:
    entered = page.ask(f"/?token={page.server.token}", Cookie="")
    assert entered.status == 303
    assert entered.headers["Location"] == page.server.home
    assert page.server.token not in entered.headers["Location"]
    cookie = entered.headers["Set-Cookie"]
    assert cookie.split("; ") == [
        page.cookie,
        f"Path={page.server.home}",  # servers on other ports of this host are not sent it
        "HttpOnly",
        "SameSite=Strict",
    ]
    assert page.ask(entered.headers["Location"], Cookie=page.cookie).status == 200


def test_without_the_token_or_with_a_wrong_one_nothing_is_shown(page: Page) -> None:
    wrong = [f"/?token={token}" for token in ("", "wrong", page.server.token[:-1], "%ff%00ä")]
    cookies = ("", "penstock=", "penstock=wrong", f"other={page.server.token}", "=;;,\x01")
    assert page.ask("/", Cookie="").status == 403
    for answer in [
        *(page.ask(path.replace("ä", "%C3%A4"), Cookie="") for path in wrong),
        *(page.get(path, Cookie=cookie) for path in PATHS for cookie in cookies),
    ]:
        assert answer.status == 403
        assert answer.body.startswith("This page needs its token")
        assert page.server.token not in answer.body
        assert "Set-Cookie" not in answer.headers
    assert page.ask("/other/overview").status == 404  # nor is anything outside of the page's path


def test_a_page_of_another_name_cannot_ask(page: Page) -> None:
    """DNS rebinding: a foreign name that leads to this machine."""
    for host in (
        "evil.example",
        f"evil.example:{page.port}",
        "",
        "127.0.0.1.evil.example",
        "[",
        "@",
    ):
        for path in (f"/?token={page.server.token}", page.server.home):
            answer = page.ask(path, Host=host)
            assert (answer.status, "Set-Cookie" in answer.headers) == (403, False), host
    # A tunnel has another port at its own end.
    for host in ("localhost", f"localhost:{page.port}", "127.0.0.1:9999", "[::1]:80", "LOCALHOST"):
        assert page.get(Host=host).status == 200, host


def test_only_get_is_answered(page: Page) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD"):
        answer = page.get("overview", method=method, Origin="http://evil.example")
        assert (answer.status, answer.headers["Allow"]) == (405, "GET"), method
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert page.get("overview", method="BREW").status == 501
    # A body is not taken for the next request on its connection.
    answer = page.ask(page.server.home, body=b"GET / HTTP/1.1\r\n\r\n")
    assert (answer.status, answer.headers["Connection"]) == (200, "close")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"403"),
        (b"GET http://[x/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"400"),
        (b"GET //[x/?token=y HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", b"403"),
    ],
)
def test_malformed_requests_are_refused(request_: bytes, status: bytes, page: Page) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=60) as line:
        line.sendall(request_)
        answer = line.recv(65536)
    assert answer.split(b" ", 2)[1] == status
    assert b"Content-Security-Policy: default-src 'none'; script-src 'self'" in answer


def test_every_answer_forbids_what_the_page_does_not_need(page: Page) -> None:
    answers = [
        page.get(),
        page.get("page.js"),
        page.get("overview"),
        page.get("nothing"),
        page.get("overview", method="POST"),
        page.ask("/?token=wrong"),
        page.ask("/", method="BREW"),
    ]
    for answer in answers:
        headers = answer.headers
        assert headers["Content-Security-Policy"].startswith(
            "default-src 'none'; script-src 'self'"
        )
        assert "require-trusted-types-for 'script'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Server"] == "penstock"
        assert "Access-Control-Allow-Origin" not in headers


def test_the_page_asks_for_nothing_from_elsewhere(page: Page) -> None:
    found = {name: page.get(name) for name in ("", "page.css", "page.js", "icon.svg")}
    assert [answer.status for answer in found.values()] == [200] * 4
    addresses = re.compile(r"https?://[^\s\"'`<]+")
    named = {one for answer in found.values() for one in addresses.findall(answer.body)}
    assert named == {"http://www.w3.org/2000/svg"}  # the name of a vocabulary; nobody asks for it
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(", found["page.js"].body)
    assert "style=" not in found[""].body


def test_a_link_on_another_site_leads_to_the_page(page: Page) -> None:
    """The browser sends the cookie only once the page itself asks: it is asked to do so."""
    answer = page.get(Cookie="", Sec_Fetch_Site="cross-site")
    assert answer.status == 200
    assert '<meta http-equiv="refresh" content="0">' in answer.body
    assert page.get(Cookie="", Sec_Fetch_Site="same-origin").status == 403
    assert page.get("overview", Cookie="", Sec_Fetch_Site="cross-site").status == 403


def test_the_page_listens_on_this_machine_only(page: Page) -> None:
    assert page.server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_the_users_mistake_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fail("ui", "--no-open", "--port", str(port))
    assert said.splitlines() == [
        f"penstock: port {port} of 127.0.0.1 cannot be used: Address already in use",
        "hint: penstock ui --port 0 takes any port that is free",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_address_is_printed_and_ctrl_c_ends_the_page(number: int) -> None:
    with started("--no-open") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/\?token=[\w-]{32}\n", address)
        assert process.stderr.readline() == "Open this address in a browser; Ctrl-C ends the page\n"
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0


def test_a_browser_is_opened_without_the_token_in_its_command_line(tmp_path: Path) -> None:
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.new; mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    desktop = {"DISPLAY": ":0", "BROWSER": str(browser), "TMPDIR": str(tmp_path / "tmp")}
    with started(**desktop) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        wait_until(seen.exists)
        opened = seen.read_text().strip()
        assert opened.startswith(f"file://{tmp_path}/tmp/penstock-ui-")
        link = Path(opened.removeprefix("file://"))
        assert f'content="0;url={address}"' in link.read_text()
        assert link.parent.stat().st_mode & 0o777 == 0o700
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_without_a_desktop_no_browser_is_opened(tmp_path: Path) -> None:
    with started(DISPLAY="", WAYLAND_DISPLAY="", BROWSER=f"touch {tmp_path}/opened") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Open this address")
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def started(*options: str, **environment: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "penstock", "ui", "--port", "0", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()
