"""Chromium of Debian, driven by Playwright: pages that must have no error in their console."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as Tab

DESKTOP, PHONE = (1280, 900), (390, 844)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(
    browser: Browser, size: tuple[int, int] = DESKTOP, *, scheme: str = "light", quiet: bool = True
) -> Iterator[Tab]:
    """A tab with cookies of its own. At the end its console must be empty, if it is to be `quiet`,
    and nothing may have been asked of another machine."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    said: list[str] = []
    asked: list[str] = []
    context.on("console", lambda message: said.append(f"{message.location}: {message.text}"))
    context.on("weberror", lambda error: said.append(str(error.error)))
    context.on("request", lambda request: asked.append(request.url))
    try:
        yield context.new_page()
        assert said == [] or not quiet, said
        here = re.compile(r"http://(127\.0\.0\.1|localhost):|file://")
        assert [url for url in asked if not here.match(url)] == [], asked
    finally:
        context.close()


def overflow(shown: Tab) -> int:
    """By how many pixels the page is wider than the window."""
    return shown.evaluate("document.documentElement.scrollWidth - window.innerWidth")
