"""penstock load: a data set, or some of it, into its cache."""

import click

from penstock.cli.declared import Progress, namespace_option
from penstock.cli.output import notify
from penstock.units import format_size


@click.command()
@click.argument("dataset")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="A file or folder of it. [/]")
@click.option("--page-cache", is_flag=True, help="Into the kernel's page cache as well.")
@namespace_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when it is done.")
def load(
    dataset: str, paths: tuple[str, ...], page_cache: bool, namespace: str | None, wait: bool
) -> None:
    """Fetch a data set, or paths of it, into its cache.

    Makes a DataLoad, and shows how far it is. Ctrl-C stops showing, and the load goes on:
    `penstock delete dataload NAME` stops it.

    \b
    Example:
      penstock load imagenet --path /imagenet/train
    """
    from penstock.api import resources as api

    operation = api.load(dataset, *paths, namespace=namespace or "default", page_cache=page_cache)
    click.echo(f"dataload.penstock.dev/{operation.name} created")
    if not wait:
        return
    try:
        with Progress() as progress:
            operation.wait(tell=lambda now: progress.draw(_line(now.name, now.progress)))
    except KeyboardInterrupt:
        notify(f"it goes on without you; `penstock get dataload {operation.name} -w` shows it")
        raise click.exceptions.Abort from None
    notify(f"{_amounts(operation.progress)} in {operation.status.get('duration', '')}")
    if operation.progress.get("bytes", 0) < operation.progress.get("ofBytes", 0):
        notify("the rest does not fit: the cache is too small")


def _line(name: str, progress: dict[str, int]) -> str:
    return f"{name}: {_amounts(progress)}" if progress else f"{name}: waiting"


def _amounts(progress: dict[str, int]) -> str:
    return (
        f"{progress.get('files', 0):,} files, {format_size(progress.get('bytes', 0))} of "
        f"{format_size(progress.get('ofBytes', 0))}"
    )
