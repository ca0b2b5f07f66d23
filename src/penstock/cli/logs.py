"""penstock logs: what a training job prints."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from penstock.api.jobs import TrainingJob, job
from penstock.cli.options import namespace_option, type_option
from penstock.cli.output import StatusLine, notify

_BLOCK = 1 << 16
_POLL_S = 0.2


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Continue until the job ends or Ctrl-C.")
@click.option(
    "-t", "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines. [all]"
)
@click.option(
    "-i",
    "--instance",
    metavar="INSTANCE",
    help="An instance: worker-1, or its whole name. [the launcher, master, chief or first worker]",
)
@namespace_option
@type_option
def logs(
    name: str, follow: bool, tail: int | None, instance: str | None, namespace: str | None
) -> None:
    """Show what a training job prints, also after its end.

    \b
    Example:
      penstock logs resnet --tail 100 -f
      penstock logs resnet -i worker-1
    """
    shown = job(name, namespace=namespace or "default")
    try:
        _show(shown, instance, tail, follow_it=follow)
    except KeyboardInterrupt:
        raise click.exceptions.Abort from None
    except BrokenPipeError:
        # `… | head` has read enough; Python would report the broken pipe once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(job: TrainingJob, instance: str | None, tail: int | None, *, follow_it: bool) -> None:
    path = _wait_for_log(job, instance) if follow_it else job.log_path(instance)
    if path is not None:
        start = 0
        if tail is not None:
            with path.open("rb") as file:
                start = start_of_last(file, tail)
        for block in follow(path, start, lambda: not follow_it or job.refresh().has_ended):
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    if path is None or job.refresh().has_ended:
        notify(_state(job, has_log=path is not None))


def _wait_for_log(job: TrainingJob, instance: str | None) -> Path | None:
    """The log, once there is one; None if the job has ended without one."""
    with StatusLine() as status:
        while True:
            ended = job.refresh().has_ended
            if (path := job.log_path(instance)) is not None or ended:
                return path
            status.draw(_state(job, has_log=False))
            time.sleep(_POLL_S)


def _state(job: TrainingJob, *, has_log: bool) -> str:
    why = f": {job.message}" if job.message else ""
    if job.has_ended:
        nothing = "" if has_log else ", and has printed nothing"
        return f"job {job.name} {job.phase} after {job.duration}{nothing}{why}"
    return f"job {job.name} is {job.phase}, and has printed nothing yet{why}"


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
    """Yield the file from `start` on, and what is added to it, until the writer has ended."""
    position = start
    while True:
        ended = has_ended()  # asked before the read: the last output is then in the file
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < position:  # the log reached its limit, and some of its end was dropped
                yield b"\n--- the log was full and has been cut: some may be missing here ---\n"
                position = size
            file.seek(position)
            while block := file.read(_BLOCK):
                position += len(block)
                yield block
        if ended:
            return
        time.sleep(_POLL_S)
