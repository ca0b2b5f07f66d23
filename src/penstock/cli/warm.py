"""penstock warm: fetch before it is asked for; look at what is cached; let go of it."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from penstock.cli.talk import say
from penstock.cli.warm_view import Bar, show
from penstock.daemon.control import Answer
from penstock.daemon.registry import absolute
from penstock.daemon.warming import Warming, Wish
from penstock.errors import NoSuchPath, OptionError, StoreError
from penstock.units import format_size, parse_rate

_INTERRUPTED = 130


@click.command()
@click.argument("mountpoint")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--files-from", metavar="LIST",
    help="Also the files and folders that this file names, one a line (or ended by NUL); - is "
    "stdin.",
)  # fmt: skip
@click.option("--page-cache", is_flag=True, help="Into the kernel's page cache as well.")
@click.option(
    "--order", type=click.Choice(["name", "newest", "largest"]), default="name", show_default=True,
    help="What comes first.",
)  # fmt: skip
@click.option("--rate", metavar="RATE", help="Fetch no faster than this: 200MiB/s, 10Gbit.")
@click.option(
    "--concurrency", type=click.IntRange(1, 256), metavar="N",
    help="Blocks in flight at most. [as many as help]",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Fetch nothing; report what is cached, and where.")
@click.option(
    "--verify", is_flag=True,
    help="Fetch nothing; read back what is cached, and drop what does not match its checksum.",
)  # fmt: skip
@click.option("--evict", is_flag=True, help="Let go of it, in the cache and in the page cache.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def warm(
    mountpoint: str, paths: tuple[str, ...], files_from: str | None, output: str, **options: Any
) -> int:
    """Fetch files into the cache before anyone reads them.

    All files of the mount, or those that each PATH names: a file, a folder, or a pattern (quoted)
    with * and ? for parts of a name and ** for any number of folders. What is cached already is
    passed over; stopped with Ctrl-C, the same command goes on where it was.

    \b
    Example:
      penstock warm /mnt/imagenet
      penstock warm /mnt/imagenet 'train/**/*.JPEG' --rate 200MiB/s --page-cache
      penstock warm /mnt/imagenet train --check -o json
    """
    where = absolute(mountpoint)
    bar = Bar(_action(options))
    wish = _wish(options, bar)
    below = _Paths(where, mountpoint).below
    try:
        with Warming(where, wish) as warming, bar:
            warming.add_patterns(map(below, paths))
            if files_from is not None:
                warming.add_listed(map(below, _read_list(files_from)))
            # A list that names nothing means nothing, and not everything.
            answer = warming.run(everything=not paths and files_from is None)
    except KeyboardInterrupt:
        say("stopped; the same command goes on where it was")
        return _INTERRUPTED
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    else:
        show(wish.action, answer)
    return _exit_code(wish.action, answer)


def _action(options: dict[str, Any]) -> str:
    actions = [name for name in ("check", "verify", "evict") if options[name]]
    if len(actions) > 1:
        raise OptionError(
            " and ".join(f"--{name}" for name in actions) + " at once",
            hint="one at a time",
        )
    return actions[0] if actions else "load"


def _wish(options: dict[str, Any], bar: Bar) -> Wish:
    action = _action(options)
    for name in ("rate", "concurrency", "page_cache"):
        if action != "load" and options[name]:
            raise OptionError(
                f"--{name.replace('_', '-')} says how to fetch, and --{action} fetches nothing",
                hint="leave one of them out",
            )
    return Wish(
        action, options["order"], page_cache=options["page_cache"],
        concurrency=options["concurrency"], bytes_per_s=_parse_rate(options["rate"]),
        started=lambda start: _say_what_fits(start, bar), progress=bar.update,
    )  # fmt: skip


def _parse_rate(text: str | None) -> int | None:
    if text is None:
        return None
    rate = int(parse_rate(text, what="--rate"))
    if not rate:
        raise OptionError("--rate: 0 fetches nothing", hint="write it like 200MiB/s or 10Gbit")
    return rate


def _exit_code(action: str, answer: Answer) -> int:
    if action == "verify":
        return 1 if answer["damaged_files"] else 0  # as `penstock cache verify`
    return StoreError.exit_code if answer.get("failed_files") else 0


class _Paths:
    """Paths as they were typed, turned into those that the server knows."""

    def __init__(self, mountpoint: Path, spelled: str) -> None:
        self._mountpoint = mountpoint
        # As it was typed, and as the mount table has it.
        self._roots = [os.path.abspath(spelled), str(mountpoint)]

    def below(self, path: str) -> str:
        """Below the mount point."""
        full = os.path.abspath(path)
        for root in self._roots:
            if full == root:
                return ""
            if full.startswith(root.rstrip("/") + "/"):
                return full[len(root.rstrip("/")) + 1 :]
        if os.path.isabs(path) or not path:
            raise NoSuchPath(
                f"{path or 'an empty path'} does not lie below {self._mountpoint}",
                hint="give paths below the mount point",
            )
        return os.path.normpath(path)


def _read_list(name: str) -> Iterator[str]:
    try:
        if name == "-":
            yield from _lines(sys.stdin.buffer)
            return
        with open(name, "rb") as file:
            yield from _lines(file)
    except OSError as error:
        raise OptionError(
            f"--files-from {name}: {error.strerror}", hint="give a file of paths, one a line"
        ) from error


def _lines(file: BinaryIO) -> Iterator[str]:
    for line in file:
        for path in line.rstrip(b"\r\n").split(b"\0"):
            if path:
                yield os.fsdecode(path)


def _say_what_fits(start: Answer, bar: Bar) -> None:
    if not start["fits"]:
        bar.say(
            f"{start['files']:,} files, {format_size(start['bytes'])}, are more than the cache "
            f"holds: {format_size(start['cached_bytes'])} are cached, there is room for "
            f"{format_size(start['room_bytes'])} more; about "
            f"{format_size(start['fitting_bytes'])} will fit, and only those are fetched"
        )
