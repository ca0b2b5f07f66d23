"""penstock cache: look into a cache directory, check it, clear it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from penstock.cache.build import open_directory
from penstock.cache.directory import CacheDirectory
from penstock.cache.policy import Keep
from penstock.errors import CacheDirError
from penstock.metrics import Counters
from penstock.paths import default_cache_dir
from penstock.units import format_size


@click.group("cache", context_settings={"help_option_names": ["-h", "--help"]})
def cache() -> None:
    """Look into a cache directory, check it, clear it."""


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
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
@_common
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def ls(directories: tuple[Path, ...], source: str | None, output: str) -> None:
    """List what is cached: bytes cached, size, object, file.

    \b
    Example:
      penstock cache ls --cache-dir /nvme/cache
    """
    rows: list[dict[str, Any]] = []
    for directory in _open_all(directories):
        for entry in directory.index.entries():
            if _matches(entry.source, source):
                rows.append(
                    {
                        "source": entry.source,
                        "key": entry.key,
                        "version": entry.version,
                        "size_bytes": entry.size_bytes,
                        "cached_bytes": entry.cached_bytes,
                        "outdated": entry.used_s == 0,
                        "file": directory.file(entry.digest),
                    }
                )
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(
            f"{format_size(row['cached_bytes']):>11} of {format_size(row['size_bytes']):>11}  "
            f"{row['source']}/{row['key']}"
        )
    total = sum(row["cached_bytes"] for row in rows)
    click.echo(f"{len(rows):,} objects, {format_size(total)}", err=True)


@cache.command("clear")
@_common
def clear(directories: tuple[Path, ...], source: str | None) -> None:
    """Remove what is cached. Mounts that use it go on, and fetch again.

    \b
    Example:
      penstock cache clear --cache-dir /nvme/cache --source s3://old-bucket
    """
    freed = count = 0
    for directory in _open_all(directories):
        for entry in list(directory.index.entries()):
            if _matches(entry.source, source):
                directory.remove(entry)
                freed += entry.cached_bytes
                count += 1
        directory.sweep()
    click.echo(f"{count:,} objects removed, {format_size(freed)} freed", err=True)


@cache.command("verify")
@_common
def verify(directories: tuple[Path, ...], source: str | None) -> int:
    """Read everything back and compare checksums; what does not match is dropped.

    \b
    Example:
      penstock cache verify --cache-dir /nvme/cache
    """
    checked = bad = 0
    for directory in _open_all(directories):
        for entry in list(directory.index.entries()):
            if _matches(entry.source, source):
                checked += 1
                if wrong := directory.verify(entry.digest):
                    bad += 1
                    click.echo(f"{entry.source}/{entry.key}: {len(wrong)} blocks dropped")
        directory.sweep()
    click.echo(f"{checked:,} objects checked, {bad:,} were damaged", err=True)
    return 1 if bad else 0


def _matches(found: str, wanted: str | None) -> bool:
    """`s3://data` is all of that bucket, and nothing of `s3://data-2`."""
    if wanted is None:
        return True
    rest = found.removeprefix(wanted.rstrip("/"))
    return found.startswith(wanted.rstrip("/")) and rest[:1] in ("", "/", "?")


def _open_all(directories: tuple[Path, ...]) -> Iterator[CacheDirectory]:
    for path in directories or (default_cache_dir(),):
        with _open(path) as directory:
            yield directory


@contextmanager
def _open(path: Path) -> Iterator[CacheDirectory]:
    if not (path / "index.sqlite").exists():
        raise CacheDirError(f"{path} is not a Penstock cache", hint="give its --cache-dir")
    directory = open_directory(
        path, name="SSD", quota_bytes=1, high=1, low=1, policy=Keep(), counters=Counters()
    )
    try:
        yield directory
    finally:
        directory.close()
