"""penstock logs: what a training job, a data operation or a mount prints."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import click

from penstock.api.jobs import offset_since
from penstock.api.logs import JobLog, Log, find_log
from penstock.cli.arena import GoFlags, cluster_options, container_option
from penstock.cli.options import type_option
from penstock.cli.output import StatusLine, notify
from penstock.errors import OptionError
from penstock.units import parse_duration

_BLOCK = 1 << 16
_POLL_S = 0.2


@click.command(cls=GoFlags)
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Continue until it ends or Ctrl-C.")
@click.option(
    "-t", "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines. [all]"
)
@click.option("--since", metavar="DURATION", help="Only what was printed since then: 5s, 2h.")
@click.option(
    "--since-time", metavar="TIME", help="Only what was printed since then: 2026-01-31T12:00:00Z."
)
@click.option(
    "-i",
    "--instance",
    metavar="INSTANCE",
    help="An instance: worker-1, or its whole name. [the launcher, master, chief or first worker]",
)
@container_option
@click.option("--namespace", metavar="NAME", help="[default: default]")
@click.option(
    "-n", "lines_or_namespace", metavar="N|NAME", help="A number is --tail, a name is --namespace."
)
@type_option
@cluster_options
def logs(
    name: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    since_time: str | None,
    instance: str | None,
    namespace: str | None,
    lines_or_namespace: str | None,
) -> None:
    """Show what a job, a data operation or a mount prints, also after its end.

    NAME is a job or an operation, KIND/NAME where it could be several, dataset/NAME, or the mount
    point of a mount in the background.

    \b
    Example:
      penstock logs resnet --tail 100 -f
      penstock logs resnet --since 5m -i worker-1
      penstock logs dataload/imagenet -f
      penstock logs /mnt/imagenet --tail 20
    """
    if lines_or_namespace is not None and re.fullmatch("[0-9]+", lines_or_namespace):
        tail = int(lines_or_namespace)
    elif lines_or_namespace is not None:
        namespace = lines_or_namespace
    begin_s = _begin_s(since, since_time)
    found = find_log(name, namespace=namespace, instance=instance)
    if begin_s is not None and not isinstance(found, JobLog):
        raise OptionError(
            f"--since: the log of {name} keeps no times for it",
            hint="its lines begin with their time; --tail 100 shows the last ones",
        )
    try:
        _show(found, tail, begin_s, follow_it=follow)
    except KeyboardInterrupt:
        raise click.exceptions.Abort from None
    except BrokenPipeError:
        # `… | head` has read enough; Python would report the broken pipe once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _begin_s(since: str | None, since_time: str | None) -> float | None:
    if since is not None and since_time is not None:
        raise OptionError("--since and --since-time cannot both be given", hint="--since 5m")
    if since is not None:
        return time.time() - parse_duration(since, what="--since")
    if since_time is None:
        return None
    try:
        return datetime.fromisoformat(since_time).timestamp()
    except ValueError:
        raise OptionError(
            f"--since-time: {since_time!r} is not a time", hint="--since-time 2026-01-31T12:00:00Z"
        ) from None


def _show(found: Log, tail: int | None, begin_s: float | None, *, follow_it: bool) -> None:
    path = _wait_for_log(found) if follow_it else found.path
    if path is not None:
        start = 0
        if begin_s is not None:
            start = offset_since(path, begin_s)
        if tail is not None:
            with path.open("rb") as file:
                start = max(start, start_of_last(file, tail))
        if not start:
            _write_earlier(path, tail)
        for block in follow(path, start, lambda: not follow_it or found.has_ended()):
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    if found.has_ended() or path is None:
        notify(found.describe(has_log=path is not None))


def _write_earlier(path: Path, tail: int | None) -> None:
    """Write what was in the file before it was full; with `tail`, as many lines as are missing."""
    earlier = path.with_name(f"{path.name}.1")
    if not earlier.exists():
        return
    with path.open("rb") as file, earlier.open("rb") as before:
        if tail is not None:
            lines = sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))
            before.seek(start_of_last(before, max(0, tail - lines)))
        while block := before.read(_BLOCK):
            sys.stdout.buffer.write(block)


def _wait_for_log(found: Log) -> Path | None:
    """The log, once there is one; None if what prints it has ended without one."""
    with StatusLine() as status:
        while True:
            ended = found.has_ended()
            if (path := found.path) is not None or ended:
                return path
            status.draw(found.describe(has_log=False))
            time.sleep(_POLL_S)


# -- a log file of any size, never all in memory ----------------------------------------------


def start_of_last(file: BinaryIO, lines: int) -> int:
    """The offset of the last `lines` lines. Reads blocks from the end, no more than needed."""
    end = position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    left = lines
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        # A newline at the very end closes the last line and begins none.
        last = size - 1 if position + size == end and block.endswith(b"\n") else size
        while (last := block.rfind(b"\n", 0, last)) >= 0:
            left -= 1
            if not left:
                return position + last + 1
    return 0


def follow(path: Path, start: int, has_ended: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the file from `start` on, and what is added to it, until the writer has ended.

    A log that is full is cut in place, or renamed to PATH.1 and begun anew."""
    file = path.open("rb")
    position = start
    try:
        while True:
            ended = has_ended()  # asked before the read: the last output is then in the file
            size = os.fstat(file.fileno()).st_size
            if size < position:  # the log reached its limit, and some of its end was dropped
                yield b"\n--- the log was full and has been cut: some may be missing here ---\n"
                position = size
            file.seek(position)
            while block := file.read(_BLOCK):
                position += len(block)
                yield block
            if (fresh := _begun_anew(path, file)) is not None:
                file.close()
                file, position = fresh, 0
            elif ended:
                return
            else:
                time.sleep(_POLL_S)
    finally:
        file.close()


def _begun_anew(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Return the new file if another one has the path; None if not, or if it was removed."""
    try:
        fresh = path.open("rb")
    except FileNotFoundError:
        return None
    if os.path.sameopenfile(fresh.fileno(), file.fileno()):
        fresh.close()
        return None
    return fresh
