"""penstock ui: a page that shows what Penstock does on this machine."""

import html
import os
import signal
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import click

from penstock.cli.output import notify

_PORT = 8790
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="Port of 127.0.0.1; 0 takes any that is free.",
)
@click.option("--no-open", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "--results",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also list the benchmark results in this folder; repeatable. Those of `penstock bench "
    "run` on this machine are listed anyway.",
)
def ui(port: int, no_open: bool, results: tuple[Path, ...]) -> None:
    """Show data sets, mounts, jobs and benchmark reports in a browser.

    Serves one page on this machine only, until Ctrl-C. It changes nothing, and needs the token that
    is in the printed address. On another machine: ssh -tL 8790:127.0.0.1:8790 HOST penstock ui

    \b
    Example:
      penstock ui
      penstock ui --port 0 --no-open
    """
    from penstock.ui.results import Results
    from penstock.ui.server import PageServer, serve

    server = PageServer(port, Results(results))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with ExitStack() as exits:

            def opened() -> None:
                click.echo(server.address)
                notify("Open this address in a browser; Ctrl-C ends the page")
                # Without a desktop a browser of the terminal would take its place.
                if not no_open and any(os.environ.get(name) for name in _DISPLAYS):
                    webbrowser.open(exits.enter_context(link_to(server.address)).as_uri())

            serve(server, opened)
    except KeyboardInterrupt:
        return


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def link_to(address: str) -> Iterator[Path]:
    """A private file that leads to the address: other users see the command line of a browser, and
    must not see the token."""
    with tempfile.TemporaryDirectory(prefix="penstock-ui-") as folder:
        path = Path(folder) / "open.html"
        where = html.escape(address)
        path.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={where}">')
        yield path
