"""penstock refresh: list the bucket now."""

import json
import sys

import click

from penstock.cli.output import print_error
from penstock.daemon.control import ask
from penstock.daemon.registry import absolute, find_served
from penstock.units import format_size

_LISTING_TAKES_AT_MOST_S = 3600


@click.command()
@click.argument("mountpoint")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def refresh(mountpoint: str, output: str) -> None:
    """List the bucket now; what changed is seen at once.

    Of a mount of several sources, one that cannot be listed stays as it was.

    \b
    Example:
      penstock refresh /mnt/imagenet
    """
    socket_path = find_served(absolute(mountpoint)).socket_path
    answer = ask(socket_path, "refresh", timeout_s=_LISTING_TAKES_AT_MOST_S)
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
