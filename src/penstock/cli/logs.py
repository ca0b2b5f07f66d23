"""penstock logs: what a training job prints."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from penstock.cli.declared import Progress, namespace_option
from penstock.cli.job_view import chief_of, duration_of, find_job, message_of, phase_of, type_option
from penstock.cli.output import notify
from penstock.errors import NoSuchResource, OptionError
from penstock.jobs.job_status import ENDED

# A log, however large it is: its last lines, all of it, what is added. Never all in memory.

_BLOCK = 1 << 16
_LOOK_S = 0.2


def start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin. Reads from the end, and no more than they are."""
    end = position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    left = lines
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        # The newline at the very end closes the last line; it begins none.
        last = size - 1 if position + size == end and block.endswith(b"\n") else size
        while (last := block.rfind(b"\n", 0, last)) >= 0:
            left -= 1
            if not left:
                return position + last + 1
    return 0


def follow(path: Path, start: int, has_ended: Callable[[], bool]) -> Iterator[bytes]:
    """What is there from `start` on, and what comes, until no more can come."""
    at = start
    while True:
        ended = has_ended()  # before the look: what was printed last is then in the file
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < at:  # it was full, and some of its end was dropped
                yield b"\n--- the log was full and has been cut: some may be missing here ---\n"
                at = size
            file.seek(at)
            while block := file.read(_BLOCK):
                at += len(block)
                yield block
        if ended:
            return
        time.sleep(_LOOK_S)


if TYPE_CHECKING:
    from penstock.reconcile.snapshot import Stored
    from penstock.reconcile.state import State


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends; Ctrl-C ends it.")
@click.option(
    "-t", "--tail", type=click.IntRange(0), metavar="N", help="Only the last so many lines. [all]"
)
@click.option(
    "-i",
    "--instance",
    metavar="INSTANCE",
    help="Of which: worker-1, or its whole name. [the launcher, master, chief or first worker]",
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
    from penstock.reconcile.state import State

    state = State()
    job = find_job(state, name, namespace)
    reader = _Reader(state, job, instance)
    try:
        reader.show(tail, follow=follow)
    except KeyboardInterrupt:
        raise click.exceptions.Abort from None
    except BrokenPipeError:
        # `… | head` has seen enough; Python would complain of it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Reader:
    """One log, and the job that writes it, as it was looked at last."""

    def __init__(self, state: "State", job: "Stored", instance: str | None) -> None:
        self._state = state
        self._job = job
        self._instance = instance

    def show(self, tail: int | None, *, follow: bool) -> None:
        path = self._wait_for_log() if follow else self._find_log()
        if path is not None:
            _print(path, tail, self._has_ended if follow else lambda: True)
        if path is None or self._has_ended():
            notify(self._how_it_is(nothing_yet=path is None))

    def _wait_for_log(self) -> Path | None:
        """None: it has ended, and there never was one."""
        with Progress() as progress:
            while True:
                ended = self._has_ended()
                if (path := self._find_log()) is not None or ended:
                    return path
                progress.draw(self._how_it_is(nothing_yet=True))
                time.sleep(_LOOK_S)

    def _has_ended(self) -> bool:
        found = self._state.by_uid(self._job.uid)
        if found is None:
            raise NoSuchResource(f"job {self._job.key.name} was deleted")
        self._job = found
        return phase_of(found.status) in ENDED

    def _find_log(self) -> Path | None:
        """Of the instance that was asked for, once there is one."""
        from penstock.jobs.job_folder import job_folder, log_path

        instances: list[dict[str, Any]] = self._job.status.get("instances") or []
        names = [one["name"] for one in instances]
        wanted = self._instance or chief_of(instances)
        if not names or wanted is None:
            return None
        whole = next((one for one in names if wanted in (one, _short(one, self._job))), None)
        if whole is None:
            raise OptionError(
                f"job {self._job.key.name} has no instance {wanted}",
                hint=f"its instances: {', '.join(_short(one, self._job) for one in names)}",
            )
        path = log_path(job_folder(self._state.folder, self._job.uid), whole)
        return path if path.exists() else None

    def _how_it_is(self, *, nothing_yet: bool) -> str:
        from penstock.reconcile import live_status

        status, name = self._job.status, self._job.key.name
        phase, message = phase_of(status), message_of(status)
        why = f": {message}" if message else ""
        if phase in ENDED:
            nothing = ", and has printed nothing" if nothing_yet else ""
            lasted = duration_of(live_status.show([self._job])[0])
            return f"job {name} {phase} after {lasted}{nothing}{why}"
        return f"job {name} is {phase}, and has printed nothing yet{why}"


def _print(path: Path, tail: int | None, has_ended: Callable[[], bool]) -> None:
    start = 0
    if tail is not None:
        with path.open("rb") as file:
            start = start_of_last(file, tail)
    out = sys.stdout.buffer
    for piece in follow(path, start, has_ended):
        out.write(piece)
        out.flush()


def _short(instance: str, job: "Stored") -> str:
    return instance.removeprefix(f"{job.key.name}-")
