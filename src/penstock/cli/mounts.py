"""penstock stats, refresh and umount: the commands for a mount that is in use.

rich is imported for a live view: it takes 28 ms, which a script need not wait for.
"""

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from penstock.api import mounts
from penstock.api.tables import aligned
from penstock.cli.options import output_option
from penstock.cli.output import notify, print_error
from penstock.errors import OptionError
from penstock.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from rich.table import Table

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
            f"{counted(answer['files'], 'file')}, {format_size(answer['bytes'])}; "
            f"{counted(answer['changed'], 'name')} changed"
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
@click.option("--prometheus", is_flag=True, help="Print all metrics in the format of Prometheus.")
def stats(mountpoint: str | None, output: str, watch: bool, prometheus: bool) -> None:
    """Show what a mount has done, or list all mounts.

    \b
    Example:
      penstock stats /mnt/imagenet --watch
    """
    if prometheus:
        if watch or output == "json":
            raise OptionError("--prometheus excludes --watch and -o json", hint="give one of them")
        click.echo(mounts.prometheus(mountpoint), nl=False)
    elif mountpoint is None:
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
            for line in _lines(_rows(found)):
                click.echo(line)


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
    titles = ["MOUNTPOINT", "SOURCE", "MODE", "FILES", "SIZE", "CACHED", "UPTIME", "PID"]
    rows = [titles]
    for one in found:
        if one["state"] != "serving":
            rows.append([one["mountpoint"], one["source"], one["state"], *["-"] * 5])
            continue
        rows.append(
            [
                one["mountpoint"],
                one["source"],
                one["mode"],
                f"{one['files']:,}",
                format_size(one["bytes"]),
                format_size(one["cached_bytes"]),
                format_duration(one["uptime_s"]),
                str(one["pid"]),
            ]
        )
    for line in aligned(rows):  # a terminal may wrap a line; a path stays whole for who copies it
        click.echo(line)


def _lines(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{click.style(name.ljust(width), bold=True)}  {text}".rstrip() for name, text in rows]


def _view(now: Json, before: Json | None = None) -> "Table":
    """One mount in a live view."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in _rows(now, before):
        table.add_row(name, Text(text))
    return table


def _rows(now: Json, before: Json | None = None) -> list[tuple[str, str]]:
    """One mount for people; with an earlier sample, also rates."""
    if now["state"] != "serving":
        return _rows_without_server(now)
    if before is not None and before["pid"] != now["pid"]:
        before = None  # another server, whose counts begin at zero
    seconds = now["uptime_s"] - before["uptime_s"] if before else 0.0

    def rate(key: str) -> str:
        if before is None or seconds <= 0:
            return ""
        return f"  ({format_size((now[key] - before[key]) / seconds)}/s)"

    share = now["cached_bytes"] / now["bytes"] if now["bytes"] else 0.0
    hits = sum(now["hit_bytes"].values())
    rows = [
        ("source", f"{now['source']}  →  {now['mountpoint']}"),
        (
            "mode",
            f"{now['mode']}, up {format_duration(now['uptime_s'])}, pid {now['pid']}, "
            f"{format_size(now['memory_bytes'])} of memory",
        ),
        ("data set", f"{counted(now['files'], 'file')}, {format_size(now['bytes'])}"),
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
        *(_shared_rows(now["shared"]) if now.get("shared") else ()),
        (
            "from cache",
            format_size(hits)
            + "".join(f"  {name} {format_size(size)}" for name, size in now["hit_bytes"].items()),
        ),
        (
            "from store",
            f"{format_size(now['store_bytes'])} in {counted(now['store_requests'], 'request')}"
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
    if now["loaded_regions"]:
        rows.append(
            ("random", f"{counted(now['loaded_regions'], 'region')} loaded into the page cache")
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
        rows.append(("hidden", f"{counted(now['hidden'], 'object')} (penstock doctor lists them)"))
    if damage := now.get("catalog_damage"):
        then = "rebuilt" if damage["healed"] else "it is being rebuilt from a listing"
        rows.append(("catalog", f"{damage['what']}; {then}"))
    if now["refresh_error"]:
        rows.append(("refresh", now["refresh_error"]))
    return rows


def _shared_rows(shared: Json) -> list[tuple[str, str]]:
    rows = [
        (
            "shared",
            f"{format_size(shared['cached_bytes'])} of this data set, room for "
            f"{format_size(shared['capacity_bytes'])} in all"
            + (
                f"; {shared['fills_dropped']:,} blocks not written"
                if shared["fills_dropped"]
                else ""
            )
            + (f"; {shared['problem']}" if shared["problem"] else ""),
        )
    ]
    for one in shared["members"]:
        took = "" if one["hit_ms"] is None else f" in {one['hit_ms']:g} ms"
        damaged = f", {one['damaged']:,} damaged" if one["damaged"] else ""
        rows.append(
            (
                f"  {one['member']}",
                f"{one['hits']:,} hits{took}, {one['misses']:,} misses{damaged}, "
                f"{format_size(one['filled_bytes'])} written"
                + (f"; out: {one['out']}" if one["out"] else ""),
            )
        )
    return rows


def _rows_without_server(now: Json) -> list[tuple[str, str]]:
    what = {
        "restarting": "a new server is starting",
        "waiting": "its server keeps crashing; the next start follows after a pause",
    }[now["state"]]
    return [
        ("source", f"{now['source']}  →  {now['mountpoint']}"),
        ("state", f"{what}; readers wait"),
        ("restarts", f"{now['restarts']:,}; last: {now['last_end']}"),
        *([("its log", now["log"])] if now["log"] else []),
    ]


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
