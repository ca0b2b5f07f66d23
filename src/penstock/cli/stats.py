"""penstock stats: what a mount has done, and what it holds."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, absolute, all_notes, find_note
from penstock.errors import PenstockError
from penstock.units import format_duration, format_size

# What `penstock stats` shows a person. Apart, because rich takes 28 ms to import.

_WATCH_INTERVAL_S = 1.0


def show_one(found: dict[str, Any]) -> None:
    Console().print(view(found))


def show_all(found: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("MOUNTPOINT", "SOURCE", "MODE", "FILES", "SIZE", "CACHED", "UPTIME", "PID"):
        right = name in ("FILES", "SIZE", "CACHED", "UPTIME", "PID")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for one in found:
        if one["state"] != "serving":
            table.add_row(one["mountpoint"], one["source"], one["state"], *["-"] * 5)
            continue
        table.add_row(
            one["mountpoint"],
            one["source"],
            one["mode"],
            f"{one['files']:,}",
            format_size(one["bytes"]),
            format_size(one["cached_bytes"]),
            format_duration(one["uptime_s"]),
            str(one["pid"]),
        )
    Console().print(table)


def watch(ask: Callable[[], dict[str, Any]]) -> None:
    before: dict[str, Any] | None = None
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            now = ask()
            live.update(view(now, before), refresh=True)
            before = now
            time.sleep(_WATCH_INTERVAL_S)


def view(now: dict[str, Any], before: dict[str, Any] | None = None) -> Group:
    """One mount for a person; with what was before, also how fast things go."""
    if now["state"] != "serving":
        return _view_of_a_mount_without_server(now)
    if before is not None and before["pid"] != now["pid"]:
        before = None  # another server, which counts anew
    seconds = now["uptime_s"] - before["uptime_s"] if before else 0.0

    def rate(key: str) -> str:
        if before is None or seconds <= 0:
            return ""
        return f"  ({format_size((now[key] - before[key]) / seconds)}/s)"

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    share = now["cached_bytes"] / now["bytes"] if now["bytes"] else 0.0
    hits = sum(now["hit_bytes"].values())
    rows = [
        ("source", f"{now['source']}  →  {now['mountpoint']}"),
        (
            "mode",
            f"{now['mode']}, up {format_duration(now['uptime_s'])}, pid {now['pid']}, "
            f"{format_size(now['memory_bytes'])} of memory",
        ),
        ("data set", f"{now['files']:,} files, {format_size(now['bytes'])}"),
        ("cached", f"{format_size(now['cached_bytes'])}  {_bar(share)} {share:.0%}"),
        *(
            (
                f"at {part['path'] or '/'}",
                f"{part['source']}: {part['files']:,} files, {format_size(part['bytes'])}, "
                f"{format_size(part['cached_bytes'])} cached"
                + ("" if part["listed_at_s"] else "; not listed yet"),
            )
            for part in (now["parts"] if len(now["parts"]) > 1 else ())
        ),
        *(
            (
                f"tier {tier['name']}",
                f"{format_size(tier['used_bytes'])} of {format_size(tier['quota_bytes'])}  "
                + ":".join(tier["paths"])
                + (f"  out: {tier['error']}" if tier["state"] == "out" else ""),
            )
            for tier in now["tiers"]
        ),
        (
            "from cache",
            format_size(hits)
            + "".join(f"  {name} {format_size(size)}" for name, size in now["hit_bytes"].items()),
        ),
        (
            "from store",
            f"{format_size(now['store_bytes'])} in {now['store_requests']:,} requests"
            + rate("store_bytes")
            + _over_read(now),
        ),
        (
            "requests",
            "  ".join(
                f"{name} {count:,}"
                for name, count in sorted(now["requests"].items(), key=lambda item: -item[1])[:8]
            ),
        ),
    ]
    if now["pushed_bytes"]:
        rows.append(
            (
                "pushed",
                f"{format_size(now['pushed_bytes'])} into the page cache" + rate("pushed_bytes"),
            )
        )
    rows += [(f"plan {plan['label'] or plan['pid']}", _plan(plan)) for plan in now["plans"]]
    if now["restarts"]:
        rows.append(("restarts", f"{now['restarts']:,}; last: {now['last_end']}"))
    if now["store_retries"] or now["hedges"]:
        named = "  ".join(
            f"{kind} {count:,}" for kind, count in now["store_retries_by_kind"].items()
        )
        rows.append(
            (
                "store trouble",
                f"{now['store_retries']:,} retries  {named}  "
                f"{now['hedges']:,} hedged, {now['hedges_won']:,} won",
            )
        )
    if now["errors"]:
        named = "  ".join(f"{name} {count}" for name, count in now["errors_by_name"].items())
        rows.append(("errors", f"{now['errors']:,}  {named}"))
    if now["hidden"]:
        rows.append(("hidden", f"{now['hidden']:,} objects (penstock doctor lists them)"))
    if damage := now.get("catalog_damage"):
        then = "made anew" if damage["healed"] else "it is being made anew from a listing"
        rows.append(("catalog", f"{damage['what']}; {then}"))
    if now["refresh_error"]:
        rows.append(("refresh", now["refresh_error"]))
    for name, text in rows:
        table.add_row(name, Text(text))
    return Group(table)


def _view_of_a_mount_without_server(now: dict[str, Any]) -> Group:
    what = {
        "restarting": "a new server is starting",
        "waiting": "its server ends again and again; it is started anew after a pause",
    }[now["state"]]
    rows = [
        f"{now['source']}  →  {now['mountpoint']}: {what}; readers wait",
        f"restarts: {now['restarts']:,}; last: {now['last_end']}",
        *([f"its log: {now['log']}"] if now["log"] else []),
    ]
    return Group(*map(Text, rows))


def _plan(plan: dict[str, Any]) -> str:
    """Where its readers are, and how far ahead of them the mount is."""
    share = plan["handed_out"] / plan["end"] if plan["end"] else 0.0
    lead = max(0, plan["ahead"] - plan["handed_out"])
    return (
        f"{plan['handed_out']:,} of {plan['end']:,} handed out  {_bar(share)}  "
        f"{lead:,} ahead ({format_size(plan['ahead_bytes'])})"
        + (f"  {plan['missing']:,} missing" if plan["missing"] else "")
        + (f"  {plan['failed']:,} failed" if plan["failed"] else "")
    )


def _over_read(now: dict[str, Any]) -> str:
    ratio = now["fetched_over_read"]
    return "" if ratio is None else f"  {ratio:.2f} times what was read or pushed"


def _bar(share: float, width: int = 20) -> str:
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)


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
    """
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
        # merged

        show_all(found)


def _show(found: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    else:
        # merged

        show_one(found)


def _watch(mountpoint: str, output: str) -> None:
    try:
        if output == "json":
            while True:
                click.echo(json.dumps(ask_stats(mountpoint)))
                time.sleep(1)
        # merged

        watch(lambda: ask_stats(mountpoint))
    except KeyboardInterrupt:
        return
