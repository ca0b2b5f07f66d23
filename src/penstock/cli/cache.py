"""penstock cache: list, clear and verify a cache directory."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import output_option
from penstock.cli.output import notify
from penstock.units import counted, format_size


@click.group("cache", context_settings={"help_option_names": ["-h", "--help"]})
def cache() -> None:
    """List, clear and verify a cache directory.

    \b
    Example:
      penstock cache ls
      penstock cache clear --source s3://old-bucket
    """


def _cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--source", metavar="TEXT", help="Only objects whose source starts so, like s3://bucket."
    )(command)
    return click.option(
        "--cache-dir",
        "directories",
        multiple=True,
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Which cache. [the default one]",
    )(command)


@cache.command("ls")
@_cache_options
@output_option
def ls(directories: tuple[Path, ...], source: str | None, output: str) -> None:
    """List what is cached: bytes cached, size, object, file.

    \b
    Example:
      penstock cache ls --cache-dir /nvme/cache
    """
    from penstock.api import caches

    found = list(caches.cached_objects(directories, source=source))
    if output == "json":
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        click.echo(
            f"{format_size(one.cached_bytes):>11} of {format_size(one.size_bytes):>11}  "
            f"{one.source}/{one.key}"
        )
    notify(
        f"{counted(len(found), 'object')}, {format_size(sum(one.cached_bytes for one in found))}"
    )


@cache.command("clear")
@_cache_options
def clear(directories: tuple[Path, ...], source: str | None) -> None:
    """Remove what is cached. Mounts that use the directory continue, and fetch it again.

    \b
    Example:
      penstock cache clear --cache-dir /nvme/cache --source s3://old-bucket
    """
    from penstock.api import caches

    count, freed_bytes = caches.clear(directories, source=source)
    notify(f"{counted(count, 'object')} removed, {format_size(freed_bytes)} freed")


@cache.command("verify")
@_cache_options
def verify(directories: tuple[Path, ...], source: str | None) -> int:
    """Read everything, compare checksums, and drop what does not match.

    \b
    Example:
      penstock cache verify --cache-dir /nvme/cache
    """
    from penstock.api import caches

    checked = damaged = 0
    for one in caches.verify(directories, source=source):
        checked += 1
        if one.damaged_blocks:
            damaged += 1
            click.echo(f"{one.source}/{one.key}: {one.damaged_blocks} blocks dropped")
    notify(f"{counted(checked, 'object')} checked, {damaged:,} were damaged")
    return 1 if damaged else 0
