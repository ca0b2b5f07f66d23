"""penstock shared: the members of a shared tier that run on this machine."""

import json
import time
from typing import Any

import click

from penstock.api import shared as api
from penstock.api.tables import age, aligned
from penstock.cli.options import output_option
from penstock.cli.output import notify
from penstock.units import format_size

Json = dict[str, Any]

_PORT = click.IntRange(1, 65535)


@click.group("shared", context_settings={"help_option_names": ["-h", "--help"]})
def shared() -> None:
    """Run this machine's part of a cache that several machines share.

    Each part, a member, is a memcached. Mounts of all machines name the same members.

    \b
    Example:
      penstock shared start --memory 8GiB
      penstock shared status
    """


@shared.command("start")
@click.option("--memory", required=True, metavar="SIZE", help="For cached data, like 8GiB.")
@click.option(
    "--flash",
    metavar="FOLDER:SIZE",
    help="Keep data in a file there, like /nvme:200GiB; memory is then its buffer and index.",
)
@click.option(
    "--listen",
    default=api.LOOPBACK,
    show_default=True,
    metavar="ADDRESS",
    help="The address at which other machines reach this one; 0.0.0.0 for all addresses.",
)
@click.option("--port", type=_PORT, default=api.DEFAULT_PORT, show_default=True)
@click.option(
    "--threads", type=click.IntRange(1, 128), help="[default: one for each core, 2 to 16]"
)
@click.option("--foreground", is_flag=True, help="Serve in this process, until a signal ends it.")
def start(
    memory: str, flash: str | None, listen: str, port: int, threads: int | None, foreground: bool
) -> None:
    """Start a member on this machine, and say which address mounts reach it by.

    It needs memcached (apt-get install memcached), which is started again if it dies. What it holds
    is lost whenever it ends; mounts then fetch from object storage again.

    memcached lets everyone who reaches its port read and change what it holds: without --listen
    only this machine reaches it; with it, give mounts a --shared-key.

    \b
    Example:
      penstock shared start --memory 8GiB --flash /nvme:200GiB --listen 10.0.0.5
      penstock mount s3://bucket/data /mnt/data --shared memcached://10.0.0.5:11211
    """
    begin = api.serve if foreground else api.start
    started = begin(memory, flash=flash, listen=listen, port=port, threads=threads)
    what = "a member of the shared tier serves" if started.fresh else "it runs already:"
    notify(f"{what} {started.address}")
    for line in started.advice:
        notify(line)


@shared.command("status")
@click.option("--port", type=_PORT, help="Only the member on this port.")
@output_option
def status(port: int | None, output: str) -> None:
    """Show the members that run on this machine, and what they hold.

    \b
    Example:
      penstock shared status -o json
    """
    found = api.status(port)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        notify("no member of a shared tier runs here")
        return
    titles = ["MEMBER", "STATE", "MEMORY", "FLASH", "ITEMS", "EVICTED", "CONNECTIONS", "AGE"]
    for line in aligned([titles, *map(_row, found)]):
        click.echo(line)
    for member in found:
        for line in _remarks(member):
            notify(line)


def _row(member: Json) -> list[str]:
    stats = member["stats"]
    if stats is None:
        return [member["address"], member["state"], *["–"] * 6]
    flash = f"{format_size(stats['flash_bytes'])} of {format_size(stats['flash_limit_bytes'])}"
    return [
        member["address"],
        member["state"],
        f"{format_size(member['memory_bytes'])} of {format_size(stats['limit_bytes'])}",
        flash if stats["flash_limit_bytes"] else "–",
        f"{stats['items']:,}",
        f"{stats['evictions'] + stats['flash_evictions']:,}",
        f"{stats['connections']:,} of {stats['connection_limit']:,}",
        age(time.time() - member["started_s"]),
    ]


def _remarks(member: Json) -> list[str]:
    address, lines = member["address"], list[str]()
    if member["state"] == "gone":
        lines.append(
            f"{address}: its supervisor was killed; `penstock shared stop --port {member['port']}` "
            "clears it away, and `penstock shared start` starts it again"
        )
    elif member["restarts"]:
        lines.append(f"{address}: started again {member['restarts']}×; last: {member['last_end']}")
    if member["error"]:
        lines.append(f"{address}: {member['error']}")
    if member["owner"]:
        lines.append(f"{address}: started for {member['owner']}")
    return lines


@shared.command("stop")
@click.option("--port", type=_PORT, help="Which member, if several run here.")
def stop(port: int | None) -> None:
    """Stop a member, and wait until it has ended. What it holds is lost.

    Mounts that use it continue, and fetch from object storage.

    \b
    Example:
      penstock shared stop
    """
    address = api.stop(port)
    if address is None:
        where = "here" if port is None else f"on port {port}"
        notify(f"no member of a shared tier runs {where}")
    else:
        notify(f"{address} has ended")
