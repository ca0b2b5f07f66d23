"""penstock stats: what a mount has done, and what it holds."""

import json
import time
from dataclasses import asdict
from typing import Any

import click

from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, absolute, all_notes, find_note
from penstock.errors import PenstockError


@click.command()
@click.argument("mountpoint", required=False)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option("-w", "--watch", is_flag=True, help="A live view; Ctrl-C ends it.")
def stats(mountpoint: str | None, output: str, watch: bool) -> None:
    """Show what a mount has done; without a mount point, all of yours.

    \b
    Example:
      penstock stats /mnt/imagenet --watch
    """  # fmt: skip
    if mountpoint is None:
        _show_all(output)
    elif watch:
        _watch(mountpoint, output)
    else:
        _show(ask_stats(mountpoint), output)


def ask_stats(mountpoint: str) -> dict[str, Any]:
    return _stats_of(find_note(absolute(mountpoint)))


def _stats_of(note: MountNote) -> dict[str, Any]:
    if note.state == "serving":
        return ask(note.socket_path, "stats")
    # Between two servers, and while it waits to start another: what the supervisor knows.
    return {**asdict(note), "pid": note.server_pid, "supervisor_pid": note.pid}


def _show_all(output: str) -> None:
    found: list[dict[str, Any]] = []
    for note in all_notes():
        if note.alive:
            try:
                found.append(_stats_of(note))
            except PenstockError as error:
                click.echo(f"penstock: {note.mountpoint}: {error}", err=True)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    elif not found:
        click.echo("nothing is mounted", err=True)
    else:
        from penstock.cli.stats_view import show_all

        show_all(found)


def _show(found: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    else:
        from penstock.cli.stats_view import show_one

        show_one(found)


def _watch(mountpoint: str, output: str) -> None:
    try:
        if output == "json":
            while True:
                click.echo(json.dumps(ask_stats(mountpoint)))
                time.sleep(1)
        from penstock.cli.stats_view import watch

        watch(lambda: ask_stats(mountpoint))
    except KeyboardInterrupt:
        return
