"""penstock warm: fetch files into the cache before they are read; check, verify or evict them."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from penstock.api import mounts
from penstock.cli.options import output_option
from penstock.cli.output import notify
from penstock.errors import CacheDirError, OptionError, StoreError
from penstock.units import counted, format_size, parse_rate

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Json = dict[str, Any]

_INTERRUPTED = 130


@click.command()
@click.argument("mountpoint")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--files-from",
    metavar="LIST",
    help="Also the files and folders in this list, one a line or separated by NUL; - is stdin.",
)
@click.option("--page-cache", is_flag=True, help="Into the kernel's page cache as well.")
@click.option(
    "--order",
    type=click.Choice(["name", "newest", "largest"]),
    default="name",
    show_default=True,
    help="Which files come first.",
)
@click.option("--rate", metavar="RATE", help="Fetch no faster than this: 200MiB/s, 10Gbit.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    metavar="N",
    help="At most N blocks in flight. [adapts to the store]",
)
@click.option("--check", is_flag=True, help="Fetch nothing; report what is cached, and where.")
@click.option(
    "--verify",
    is_flag=True,
    help="Fetch nothing; read what is cached, and drop what does not match its checksum.",
)
@click.option(
    "--evict", is_flag=True, help="Remove the files from the cache and from the page cache."
)
@output_option
def warm(
    mountpoint: str, paths: tuple[str, ...], files_from: str | None, output: str, **options: Any
) -> int:
    """Fetch files into the cache before they are read.

    Takes all files of the mount, or those of each PATH: a file, a folder, or a pattern (quoted)
    with * and ? for parts of a name and ** for any number of folders. Skips what is cached already:
    after Ctrl-C, the same command continues. Exits with 3 if files could not be fetched, with 2 if
    the cache had no room for them.

    \b
    Example:
      penstock warm /mnt/imagenet
      penstock warm /mnt/imagenet 'train/**/*.JPEG' --rate 200MiB/s --page-cache
      penstock warm /mnt/imagenet train --check -o json
    """
    action = _action(options)
    rate = _parse_rate(options["rate"])
    try:
        with _Bar(action) as bar:
            answer = mounts.warm(
                mountpoint,
                paths,
                files=None if files_from is None else _read_list(files_from),
                action=action,
                order=options["order"],
                page_cache=options["page_cache"],
                concurrency=options["concurrency"],
                bytes_per_s=rate,
                started=lambda totals: _print_what_fits(totals, bar),
                progress=bar.update,
            )
    except KeyboardInterrupt:
        notify("stopped; run the same command again to continue")
        return _INTERRUPTED
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    else:
        _SHOWS[action](answer)
    return _exit_code(action, answer)


def _action(options: dict[str, Any]) -> str:
    actions = [name for name in ("check", "verify", "evict") if options[name]]
    if len(actions) > 1:
        raise OptionError(
            " and ".join(f"--{name}" for name in actions) + " at once",
            hint="one at a time",
        )
    action = actions[0] if actions else "load"
    for name in ("rate", "concurrency", "page_cache"):
        if action != "load" and options[name]:
            raise OptionError(
                f"--{name.replace('_', '-')} says how to fetch, and --{action} fetches nothing",
                hint="leave one of them out",
            )
    return action


def _parse_rate(text: str | None) -> int | None:
    if text is None:
        return None
    rate = int(parse_rate(text, what="--rate"))
    if not rate:
        raise OptionError("--rate: 0 fetches nothing", hint="write it like 200MiB/s or 10Gbit")
    return rate


def _exit_code(action: str, answer: Json) -> int:
    if action == "verify":
        return 1 if answer["damaged_files"] else 0  # as `penstock cache verify`
    if answer.get("failed_files"):
        return StoreError.exit_code
    return CacheDirError.exit_code if action == "load" and uncached_files(answer) else 0


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


def _print_what_fits(totals: Json, bar: "_Bar") -> None:
    if not totals["fits"]:
        bar.notify(
            f"{totals['files']:,} files, {format_size(totals['bytes'])}, are more than the cache "
            f"holds: {format_size(totals['cached_bytes'])} are cached, there is room for "
            f"{format_size(totals['room_bytes'])} more; about "
            f"{format_size(totals['fitting_bytes'])} will fit, and only those are fetched"
        )


# -- for people -------------------------------------------------------------------------------


class _Bar:
    """Files, bytes, rate and time left, on stderr; silent if that is no terminal."""

    def __init__(self, action: str) -> None:
        self._action = action
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""

    def update(self, counts: Json) -> None:
        if not sys.stderr.isatty():
            return
        by_bytes = "done_bytes" in counts and self._action != "evict"
        total = counts["bytes"] - counts.get("unfit_bytes", 0) if by_bytes else counts["files"]
        done = counts["done_bytes"] if by_bytes else counts["looked_files"]
        if self._progress is None or counts["phase"] != self._phase:
            self._begin(counts["phase"], by_bytes=by_bytes)
        assert self._progress is not None
        assert self._task is not None
        files = f"{counts.get('done_files', counts['looked_files']):,} of {counts['files']:,} files"
        self._progress.update(self._task, total=total, completed=min(done, total), files=files)

    def notify(self, line: str) -> None:
        if self._progress is not None:
            self._end()
        notify(line)

    def __enter__(self) -> "_Bar":
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
        self._task = self._progress.add_task(
            "warming" if phase == "loading" else phase, total=None, files=""
        )
        self._progress.start()

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None


def uncached_files(answer: Json) -> int:
    """How many files of a load could be fetched, but not cached."""
    if answer["gave_up"] or not answer["tiers"]:
        return 0
    return max(0, answer["files"] - answer["cached_files"] - answer["failed_files"])


def _show_load(answer: Json) -> None:
    _show_cached(answer)
    click.echo(
        f"fetched     {format_size(answer['fetched_bytes'])} of {answer['fetched_files']:,} files"
    )
    if unfit := uncached_files(answer):
        left = format_size(answer["bytes"] - answer["cached_bytes"])
        why = answer.get("cache_problem") or "there was no room for them"
        notify(f"{counted(unfit, 'file')} ({left}) are not in the cache: {why}")
    if answer["unpushed_files"]:
        notify(
            f"{answer['unpushed_files']:,} files ({format_size(answer['unpushed_bytes'])}) were "
            "not put into the page cache: they are not cached, or the "
            f"{format_size(answer['page_cache_budget_bytes'])} for files that nobody has read are "
            "used up (`penstock mount --page-cache` sets this limit)"
        )
    _name(answer["failures"], answer["failed_files"], "could not be fetched")
    if answer["gave_up"]:
        notify("stopped: storage kept failing")


def _show_cached(answer: Json) -> None:
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
            f"{counted(answer['page_cache_files'], 'file')} whole"
        )


def _show_verified(answer: Json) -> None:
    click.echo(
        f"{answer['verified_files']:,} files, {format_size(answer['verified_bytes'])}, were read "
        f"back; {answer['damaged_files']:,} were damaged"
    )
    _name(
        answer["damaged"],
        answer["damaged_files"],
        "were damaged; the same command without --verify fetches them again",
    )


def _show_evicted(answer: Json) -> None:
    click.echo(
        f"{counted(answer['files'], 'file')} evicted, {format_size(answer['freed_bytes'])} freed"
    )


def _name(failures: list[dict[str, str]], count: int, what: str) -> None:
    if not count:
        return
    notify(f"{counted(count, 'file')} {what}")
    for failure in failures:
        named = failure["path"] in failure["why"]
        notify("  " + (failure["why"] if named else f"{failure['path']}: {failure['why']}"))
    if count > len(failures):
        notify(f"  and {count - len(failures):,} more")


_SHOWS: dict[str, Callable[[Json], None]] = {
    "load": _show_load, "check": _show_cached, "verify": _show_verified, "evict": _show_evicted,
}  # fmt: skip
