"""What `penstock warm` shows a person: a bar while it works, and the sentences at the end.

rich is imported when a bar is drawn: 28 ms that a script need not wait for.
"""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.talk import say
from penstock.units import format_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Answer = dict[str, Any]

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
        say(line)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
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


def _show_load(answer: Answer) -> None:
    _show_cached(answer)
    click.echo(
        f"fetched     {format_size(answer['fetched_bytes'])} of {answer['fetched_files']:,} files"
    )
    unfit = answer["files"] - answer["cached_files"] - answer["failed_files"]
    if unfit > 0 and not answer["gave_up"] and answer["tiers"]:
        say(f"{unfit:,} files are not in the cache: there was no room for them")
    if answer["unpushed_files"]:
        say(
            f"{answer['unpushed_files']:,} files ({format_size(answer['unpushed_bytes'])}) were "
            "left out of the page cache: "
            f"{format_size(answer['page_cache_budget_bytes'])} of it may hold files that nobody "
            "has read (`penstock mount --page-cache` says how much), or they are not cached"
        )
    _name(answer["failures"], answer["failed_files"], "could not be fetched")
    if answer["gave_up"]:
        say("given up: storage failed again and again")


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
    _name(answer["damaged"], answer["damaged_files"], "were damaged; the same command without "
          "--verify fetches them again")  # fmt: skip


def _show_evicted(answer: Answer) -> None:
    click.echo(f"{answer['files']:,} files let go of, {format_size(answer['freed_bytes'])} freed")


def _name(failures: list[dict[str, str]], count: int, what: str) -> None:
    if not count:
        return
    say(f"{count:,} files {what}")
    for failure in failures:
        named = failure["path"] in failure["why"]
        say("  " + (failure["why"] if named else f"{failure['path']}: {failure['why']}"))
    if count > len(failures):
        say(f"  and {count - len(failures):,} more")


_SHOWS: dict[str, Callable[[Answer], None]] = {
    "load": _show_load, "check": _show_cached, "verify": _show_verified, "evict": _show_evicted,
}  # fmt: skip
