"""penstock warm: fetch before it is asked for; look at what is cached; let go of it."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from penstock.cli.output import notify
from penstock.daemon.control import Answer
from penstock.daemon.registry import absolute
from penstock.daemon.warming import Warming, Wish
from penstock.errors import CacheDirError, NoSuchPath, OptionError, StoreError
from penstock.units import format_size, parse_rate

# What `penstock warm` shows a person: a bar while it works, and the sentences at the end.
#
# rich is imported when a bar is drawn: 28 ms that a script need not wait for.

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_WORDS = {
    "looking": "looking", "loading": "warming", "reading": "reading", "verifying": "verifying",
    "evicting": "evicting",
}  # fmt: skip


class Bar:
    """Files, bytes, rate and time left, on stderr; silent where that is no terminal."""

    def __init__(self, action: str) -> None:
        self._action = action
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""

    def update(self, told: Answer) -> None:
        if not sys.stderr.isatty():
            return
        by_bytes = "done_bytes" in told and self._action != "evict"
        total = told["bytes"] - told.get("unfit_bytes", 0) if by_bytes else told["files"]
        done = told["done_bytes"] if by_bytes else told["looked_files"]
        if self._progress is None or told["phase"] != self._phase:
            self._begin(told["phase"], by_bytes=by_bytes)
        assert self._progress is not None
        assert self._task is not None
        files = f"{told.get('done_files', told['looked_files']):,} of {told['files']:,} files"
        self._progress.update(self._task, total=total, completed=min(done, total), files=files)

    def say(self, line: str) -> None:
        if self._progress is not None:
            self._end()
        notify(line)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _begin(self, phase: str, *, by_bytes: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._end()
        self._phase = phase
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[files]}"),
        ]
        if by_bytes:
            columns += [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        self._progress = Progress(
            *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
        )
        self._task = self._progress.add_task(_WORDS[phase], total=None, files="")
        self._progress.start()

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None


def show(action: str, answer: Answer) -> None:
    _SHOWS[action](answer)


def uncached_files(answer: Answer) -> int:
    """How many files of a load found no place in the cache, though they could be fetched."""
    if answer["gave_up"] or not answer["tiers"]:
        return 0
    return max(0, answer["files"] - answer["cached_files"] - answer["failed_files"])


def _show_load(answer: Answer) -> None:
    _show_cached(answer)
    click.echo(
        f"fetched     {format_size(answer['fetched_bytes'])} of {answer['fetched_files']:,} files"
    )
    if unfit := uncached_files(answer):
        left = format_size(answer["bytes"] - answer["cached_bytes"])
        why = answer.get("cache_problem") or "there was no room for them"
        notify(f"{unfit:,} files ({left}) are not in the cache: {why}")
    if answer["unpushed_files"]:
        notify(
            f"{answer['unpushed_files']:,} files ({format_size(answer['unpushed_bytes'])}) were "
            "left out of the page cache: "
            f"{format_size(answer['page_cache_budget_bytes'])} of it may hold files that nobody "
            "has read (`penstock mount --page-cache` says how much), or they are not cached"
        )
    _name(answer["failures"], answer["failed_files"], "could not be fetched")
    if answer["gave_up"]:
        notify("given up: storage failed again and again")


def _show_cached(answer: Answer) -> None:
    click.echo(
        f"cached      {format_size(answer['cached_bytes'])} of {format_size(answer['bytes'])} "
        f"({answer['cached_percentage']:g}%), {answer['cached_files']:,} of {answer['files']:,} "
        "files whole"
    )
    for tier in answer["tiers"]:
        click.echo(
            f"{'tier ' + tier['name']:<11} {format_size(tier['bytes'])} of {tier['files']:,} files"
        )
    if answer["page_cache_bytes"] is not None:
        click.echo(
            f"page cache  {format_size(answer['page_cache_bytes'])}, "
            f"{answer['page_cache_files']:,} files whole"
        )


def _show_verified(answer: Answer) -> None:
    click.echo(
        f"{answer['verified_files']:,} files, {format_size(answer['verified_bytes'])}, were read "
        f"back; {answer['damaged_files']:,} were damaged"
    )
    _name(
        answer["damaged"],
        answer["damaged_files"],
        "were damaged; the same command without --verify fetches them again",
    )


def _show_evicted(answer: Answer) -> None:
    click.echo(f"{answer['files']:,} files let go of, {format_size(answer['freed_bytes'])} freed")


def _name(failures: list[dict[str, str]], count: int, what: str) -> None:
    if not count:
        return
    notify(f"{count:,} files {what}")
    for failure in failures:
        named = failure["path"] in failure["why"]
        notify("  " + (failure["why"] if named else f"{failure['path']}: {failure['why']}"))
    if count > len(failures):
        notify(f"  and {count - len(failures):,} more")


_SHOWS: dict[str, Callable[[Answer], None]] = {
    "load": _show_load, "check": _show_cached, "verify": _show_verified, "evict": _show_evicted,
}  # fmt: skip


_INTERRUPTED = 130


@click.command()
@click.argument("mountpoint")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--files-from",
    metavar="LIST",
    help="Also the files and folders that this file names, one a line (or ended by NUL); - is "
    "stdin.",
)
@click.option("--page-cache", is_flag=True, help="Into the kernel's page cache as well.")
@click.option(
    "--order",
    type=click.Choice(["name", "newest", "largest"]),
    default="name",
    show_default=True,
    help="What comes first.",
)
@click.option("--rate", metavar="RATE", help="Fetch no faster than this: 200MiB/s, 10Gbit.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Blocks in flight at most. [as many as help]",
)
@click.option("--check", is_flag=True, help="Fetch nothing; report what is cached, and where.")
@click.option(
    "--verify",
    is_flag=True,
    help="Fetch nothing; read back what is cached, and drop what does not match its checksum.",
)
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
    passed over; stopped with Ctrl-C, the same command goes on where it was. If files could not be
    fetched, the exit code is 3; if they found no place in the cache, it is 2.

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
        notify("stopped; the same command goes on where it was")
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
        action,
        options["order"],
        page_cache=options["page_cache"],
        concurrency=options["concurrency"],
        bytes_per_s=_parse_rate(options["rate"]),
        started=lambda start: _print_what_fits(start, bar),
        progress=bar.update,
    )


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
    if answer.get("failed_files"):
        return StoreError.exit_code
    return CacheDirError.exit_code if action == "load" and uncached_files(answer) else 0


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


def _print_what_fits(start: Answer, bar: Bar) -> None:
    if not start["fits"]:
        bar.say(
            f"{start['files']:,} files, {format_size(start['bytes'])}, are more than the cache "
            f"holds: {format_size(start['cached_bytes'])} are cached, there is room for "
            f"{format_size(start['room_bytes'])} more; about "
            f"{format_size(start['fitting_bytes'])} will fit, and only those are fetched"
        )
