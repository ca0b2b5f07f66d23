"""The page of `penstock ui` in a real browser, with real data sets, mounts, jobs and reports."""

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as Tab

from penstock.api import resources as api
from penstock.bench.reporting.page import write
from penstock.cli.ui import link_to
from tests.support.browser import DESKTOP, PHONE, chromium, overflow, tab
from tests.support.datasets import dataset, fill, mount, ours, secret
from tests.support.jobs import Jobs
from tests.support.mounts import Mounter
from tests.support.pages import Page, serving
from tests.support.report_samples import make_run
from tests.support.s3 import S3

pytestmark = pytest.mark.slow  # a browser, which `make test` does not install

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture
def page() -> Iterator[Page]:
    with serving() as one:
        yield one


def enter(shown: Tab, page: Page) -> None:
    shown.goto(page.server.address)
    expect(shown.locator("#state")).to_have_text("Live")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_an_empty_machine_is_told_what_to_try(
    size: tuple[int, int], browser: Browser, page: Page
) -> None:
    with tab(browser, size) as shown:
        enter(shown, page)
        for words in (
            "No data set is declared. Declare one with penstock apply",
            "Nothing is mounted. Mount a bucket with penstock mount",
            "No job has been submitted. Submit one with penstock submit",
            "Load a data set into its cache with penstock load NAME",
            "No benchmark has run.",
        ):
            expect(shown.get_by_text(words)).to_be_visible()
        assert shown.locator("table:visible").count() == 0
        assert overflow(shown) == 0


def test_the_address_loses_its_token_and_scripts_cannot_read_the_cookie(
    browser: Browser, page: Page
) -> None:
    with tab(browser) as shown:
        enter(shown, page)
        assert shown.url == f"http://127.0.0.1:{page.port}{page.server.home}"
        assert shown.evaluate("document.cookie") == ""
        assert page.server.token not in shown.evaluate("JSON.stringify(performance.getEntries())")
        shown.reload()  # by the cookie
        expect(shown.locator("#state")).to_have_text("Live")
    with tab(browser, quiet=False) as shown:  # which gets a report of the violation
        enter(shown, page)
        write_html = "() => { try { document.body.innerHTML = 'x' } catch (e) { return e.name } }"
        assert shown.evaluate(write_html) == "TypeError"


def test_a_link_elsewhere_leads_to_the_page(browser: Browser, page: Page) -> None:
    class Elsewhere(http.server.BaseHTTPRequestHandler):
        """Another site: `localhost` is one, for a browser at 127.0.0.1."""

        def do_GET(self) -> None:
            body = f'<a href="{page.server.address}">link</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tab(browser, quiet=False) as shown:  # it has no icon
            shown.goto(f"http://localhost:{server.server_port}/")
            shown.get_by_text("link").click()
            expect(shown.locator("#state")).to_have_text("Live")
        server.shutdown()
    # The file that `penstock ui` opens, so that no command line has the token.
    with link_to(page.server.address) as link, tab(browser) as shown:
        assert os.stat(link.parent).st_mode & 0o777 == 0o700
        shown.goto(link.as_uri())
        expect(shown.locator("#state")).to_have_text("Live")


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read a file of the mount again and again, from the store."""
    ended = threading.Event()

    def read() -> None:
        number = 0
        while not ended.is_set():
            (folder / f"{number % 64}").read_bytes()
            number += 1
            ended.wait(0.05)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_mount_that_is_read_shows_its_rates(
    browser: Browser, page: Page, s3: S3, mounter: Mounter
) -> None:
    fill(s3, "ui-read", {f"{number}": b"x" * 50_000 for number in range(64)})
    one = mounter("s3://ui-read", "--endpoint", s3.endpoint)
    with tab(browser) as shown:
        enter(shown, page)
        card = shown.get_by_role("article")
        expect(card).to_contain_text(f"{one.path}page cache")
        rates = card.get_by_role("row", name="From store")
        with reading(one.path):
            expect(rates).to_contain_text(re.compile(r"[1-9][0-9.]* [KM]iB/s"), timeout=30_000)
            cached = card.get_by_role("meter")
            expect(cached).to_have_attribute("aria-valuenow", "100.0", timeout=30_000)
        # The curve keeps the rate that has been.
        curve = rates.get_by_role("img")
        expect(curve).to_have_attribute(
            "aria-label", re.compile("at most [1-9][0-9.]* [KM]iB a second")
        )
        points = curve.locator("polyline").get_attribute("points")
        assert points is not None
        assert len({place.split(",")[1] for place in points.split()}) > 1
        assert overflow(shown) == 0


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_data_sets_and_jobs_are_shown_with_their_logs(
    size: tuple[int, int], browser: Browser, page: Page, server: S3, jobs: Jobs, tmp_path: Path
) -> None:
    fill(server, "ui-jobs", {"a": b"alpha"})
    root = mount(server, "ui-jobs", path="/")
    api.apply([secret(), dataset("imagenet", server, root), ours("imagenet", tmp_path / "cache")])
    go_on = tmp_path / "go-on"
    command = (
        f"echo '{MARKUP}'; for i in $(seq 100); do echo line $i; done; "
        f"while test ! -e {go_on}; do sleep 0.1; done; echo last; exit 3"
    )
    data = [{"dataset": "imagenet", "mountPath": "/ui-data"}]
    jobs.submit("net", command, data=data)
    jobs.running("net")
    with tab(browser, size) as shown:
        enter(shown, page)
        imagenet = shown.locator("#datasets").get_by_role("row", name="imagenet")
        expect(imagenet).to_contain_text("Bound")
        expect(imagenet).to_contain_text("of 5 B")
        net = shown.locator("#jobs").get_by_role("row", name="net")
        expect(net).to_contain_text("RUNNING")
        # By keyboard: Enter shows the log and moves the focus there, Escape brings it back.
        button = net.get_by_role("button")
        button.focus()
        shown.keyboard.press("Enter")
        expect(shown.locator("#log-title")).to_be_focused()
        text = shown.get_by_label("Output of the job")
        expect(text).to_contain_text(f"{MARKUP}\nline 1\n")
        expect(text).to_contain_text("line 100")
        assert text.evaluate("one => one.scrollTop + one.clientHeight >= one.scrollHeight - 2")
        go_on.touch()
        expect(text).to_contain_text("line 100\nlast\n", timeout=20_000)
        expect(net).to_contain_text("FAILED", timeout=20_000)
        expect(net).to_contain_text("exit code 3")
        assert shown.locator("img[src=x]").count() == 0
        assert overflow(shown) == 0
        shown.keyboard.press("Escape")
        expect(text).to_be_hidden()
        expect(button).to_be_focused()


def test_a_report_opens_with_its_files_and_runs_no_script(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "results" / "first-look", arms=("native", "rclone"), repeats=1)
    write(run)
    report = run / "report.html"
    script = "<script>document.title = 'hostile'; fetch('../../overview')</script></body>"
    report.write_text(report.read_text().replace("</body>", script))
    with serving([tmp_path / "results"]) as page, tab(browser, quiet=False) as shown:
        enter(shown, page)
        expect(shown.locator("#runs").get_by_role("row", name="first-look")).to_contain_text(
            "2 of 2"
        )
        shown.get_by_role("link", name="first-look").click()
        expect(shown.get_by_role("heading", name="Results", exact=True)).to_be_visible()
        assert "Penstock benchmark" in shown.title()
        link = shown.locator("a[href$='result.json']").first
        for around in link.locator("xpath=ancestor::details").all():
            around.locator("> summary").click()
        link.click()
        shown.wait_for_url("**/result.json")
        assert '"schema": 2' in shown.inner_text("body")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_labelled_and_nothing_is_cut_off(
    size: tuple[int, int], scheme: str, browser: Browser, tmp_path: Path, mounter: Mounter
) -> None:
    name = "a-run-with-a-very-long-name-" * 6
    write(make_run(tmp_path / "results" / name, arms=("native", "rclone"), repeats=1))
    folder = tmp_path / ("long-" * 20 + MARKUP.replace("/", ""))
    folder.mkdir()
    (folder / "file").write_bytes(b"bytes")
    one = mounter(f"file://{folder}")
    with serving([tmp_path / "results"]) as page, tab(browser, size, scheme=scheme) as shown:
        enter(shown, page)
        assert overflow(shown) == 0
        expect(shown.get_by_role("article")).to_contain_text(MARKUP)
        table = shown.get_by_role("table", name=f"Rates of {one.path}")
        expect(table.get_by_role("rowheader")).to_have_count(4)
        runs = shown.locator("#runs")
        expect(runs.get_by_role("columnheader")).to_have_count(5)
        expect(runs.get_by_role("rowheader")).to_have_count(1)
        expect(shown.get_by_role("navigation", name="Sections")).to_be_visible()
        expect(shown.get_by_role("region")).to_have_count(5)
        shown.keyboard.press("Tab")
        expect(shown.get_by_text("Skip to the data sets")).to_be_focused()


def test_a_page_whose_server_is_gone_says_so(browser: Browser) -> None:
    command = [sys.executable, "-m", "penstock", "ui", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            with tab(browser, quiet=False) as shown:
                shown.goto(server.stdout.readline().strip())
                state = shown.locator("#state")
                expect(state).to_have_text("Live")
                server.kill()
                expect(state).to_contain_text("is penstock ui still running?", timeout=20_000)
                expect(state).to_have_class("lost")
        finally:
            server.kill()
