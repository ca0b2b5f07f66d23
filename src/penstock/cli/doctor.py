"""penstock doctor: what a mount cannot do or show, and why."""

import json

import click

from penstock.daemon.control import ask
from penstock.daemon.registry import absolute, find_served


@click.command()
@click.argument("mountpoint")
@click.option("--limit", default=1000, show_default=True, help="How many hidden objects to list.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def doctor(mountpoint: str, limit: int, output: str) -> None:
    """List what a mount cannot do, and the objects it cannot show as files.

    \b
    Example:
      penstock doctor /mnt/imagenet
    """  # fmt: skip
    answer = ask(find_served(absolute(mountpoint)).socket_path, "doctor", limit=limit)
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
        return
    for note in answer["notes"]:
        click.echo(f"note: {note}")
    if answer["refresh_error"]:
        click.echo(f"the last refresh failed: {answer['refresh_error']}")
    total = sum(answer["hidden_counts"].values())
    if not total:
        if not answer["refresh_error"]:
            click.echo("every object of the bucket is shown as a file")
        return
    click.echo(f"{total:,} objects cannot be shown as files:")
    for reason, count in sorted(answer["hidden_counts"].items()):
        click.echo(f"  {count:,}  {reason}")
    for key, reason in answer["hidden"]:
        click.echo(f"{key!r}: {reason}")
    more = total - len(answer["hidden"])
    if more:
        # Of very many the catalog itself keeps only the first by name.
        why = "--limit" if len(answer["hidden"]) >= limit else "counted, not listed"
        click.echo(f"… and {more:,} more ({why})")
