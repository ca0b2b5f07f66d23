"""penstock stats, refresh and umount: the commands for a mount that is in use.

rich is imported when a table is drawn: it takes 28 ms, which a script need not wait for.
"""

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from penstock.api import mounts
from penstock.cli.options import output_option
from penstock.cli.output import notify, print_error
from penstock.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Group

Json = dict[str, Any]

_WATCH_INTERVAL_S = 1.0


@click.command()
@click.argument("mountpoint")
@click.option("--lazy", is_flag=True, help="Detach now; the server ends with the last reader.")
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount, and wait until the server has ended.

    \b
    Example:
      penstock umount /mnt/imagenet
    """
    mounts.umount(mountpoint, lazy=lazy)


@click.command()
@click.argument("mountpoint")
@output_option
def refresh(mountpoint: str, output: str) -> None:
    """List the bucket now; readers see changes at once.

    If one of several sources of a mount cannot be listed, its files stay as they were.

    \b
    Example:
      penstock refresh /mnt/imagenet
    """
    answer = mounts.refresh(mountpoint)
    if output == "json":
        click.echo(json.dumps(answer))
    else:
        click.echo(
            f"{answer['files']:,} files, {format_size(answer['bytes'])}; "
            f"{answer['changed']:,} names changed"
        )
    for failure in answer["failed"]:
        what = f"{failure['path']}: {failure['error']}" if failure["path"] else failure["error"]
        print_error(what, failure["hint"], failure["exit_code"])
    if answer["failed"]:
        sys.exit(answer["failed"][0]["exit_code"])


@click.command()
@click.argument("mountpoint", required=False)
@output_option
@click.option("-w", "--watch", is_flag=True, help="A live view; Ctrl-C ends it.")
def stats(mountpoint: str | None, output: str, watch: bool) -> None:
    """Show what a mount has done, or list all mounts.

    \b
    Example:
      penstock stats /mnt/imagenet --watch
    """
    if mountpoint is None:
        found = mounts.all_stats(failed=lambda path, error: notify(f"penstock: {path}: {error}"))
        if output == "json":
            click.echo(json.dumps(found, indent=2))
        elif not found:
            notify("nothing is mounted")
        else:
            _print_table(found)
    elif watch:
        try:
            _watch(mountpoint, output)
        except KeyboardInterrupt:
            return
    else:
        found = mounts.stats(mountpoint)
        if output == "json":
            click.echo(json.dumps(found, indent=2))
        else:
            from rich.console import Console

            Console().print(_view(found))


def _watch(mountpoint: str, output: str) -> None:
    if output == "json":
        while True:
            click.echo(json.dumps(mounts.stats(mountpoint)))
            time.sleep(_WATCH_INTERVAL_S)
    from rich.console import Console
    from rich.live import Live

    before: Json | None = None
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            now = mounts.stats(mountpoint)
            live.update(_view(now, before), refresh=True)
            before = now
            time.sleep(_WATCH_INTERVAL_S)


def _print_table(found: list[Json]) -> None:
    from rich.console import Console
    from rich.table import Table

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


def _view(now: Json, before: Json | None = None) -> "Group":
    """One mount for people; with an earlier sample, also rates."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if now["state"] != "serving":
        return _view_without_server(now)
    if before is not None and before["pid"] != now["pid"]:
        before = None  # another server, whose counts begin at zero
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
        then = "rebuilt" if damage["healed"] else "it is being rebuilt from a listing"
        rows.append(("catalog", f"{damage['what']}; {then}"))
    if now["refresh_error"]:
        rows.append(("refresh", now["refresh_error"]))
    for name, text in rows:
        table.add_row(name, Text(text))
    return Group(table)


def _view_without_server(now: Json) -> "Group":
    from rich.console import Group
    from rich.text import Text

    what = {
        "restarting": "a new server is starting",
        "waiting": "its server keeps crashing; the next start follows after a pause",
    }[now["state"]]
    rows = [
        f"{now['source']}  →  {now['mountpoint']}: {what}; readers wait",
        f"restarts: {now['restarts']:,}; last: {now['last_end']}",
        *([f"its log: {now['log']}"] if now["log"] else []),
    ]
    return Group(*map(Text, rows))


def _plan(plan: Json) -> str:
    """Where its readers are, and how far ahead of them the mount is."""
    share = plan["handed_out"] / plan["end"] if plan["end"] else 0.0
    lead = max(0, plan["ahead"] - plan["handed_out"])
    return (
        f"{plan['handed_out']:,} of {plan['end']:,} handed out  {_bar(share)}  "
        f"{lead:,} ahead ({format_size(plan['ahead_bytes'])})"
        + (f"  {plan['missing']:,} missing" if plan["missing"] else "")
        + (f"  {plan['failed']:,} failed" if plan["failed"] else "")
    )


def _over_read(now: Json) -> str:
    ratio = now["fetched_over_read"]
    return "" if ratio is None else f"  {ratio:.2f} times what was read or pushed"


def _bar(share: float, width: int = 20) -> str:
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)
