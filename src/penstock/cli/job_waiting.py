"""How `penstock submit --wait` waits: one line that says how far the job is, and its end."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.declared import Progress
from penstock.cli.job_view import duration_of, message_of, phase_of
from penstock.cli.talk import say
from penstock.errors import JobFailed
from penstock.resources.jobs.records import ENDED

if TYPE_CHECKING:
    from penstock.resources.state import State
    from penstock.specs.keys import ResourceKey


def wait_for(state: "State", key: "ResourceKey") -> None:
    """Until it has ended; raises JobFailed if it failed. Ctrl-C ends the waiting, not the job."""
    from penstock.resources import live
    from penstock.resources.watching import wait_for_job

    where = f" -n {key.namespace}" if key.namespace != "default" else ""
    try:
        with Progress() as progress:
            steps = Steps(progress)
            ended = wait_for_job(state, key, tell=lambda now: steps.tell(now.key.name, now.status))
    except KeyboardInterrupt:
        say(f"it runs on without you; `penstock get job {key.name}{where}` shows how it is")
        raise click.exceptions.Abort from None
    status = ended.status
    if status["phase"] == "SUCCEEDED":
        say(f"job {key.name} SUCCEEDED after {duration_of(live.show([ended])[0])}")
        return
    trouble: dict[str, Any] = ended.note.get("trouble") or {}
    why = trouble.get("what") or status.get("message") or "it does not say why"
    logs = f"penstock logs {key.name}{where} --tail 50"
    raise JobFailed(f"job {key.name}: {why}", hint=trouble.get("hint") or logs)


class Steps:
    """On a terminal one line, kept current; elsewhere a line for each step, once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said: tuple[str, str] | None = None

    def tell(self, name: str, status: Mapping[str, Any]) -> None:
        line = f"{name}: {phase_of(status)}"
        if message := message_of(status):
            line += f", {message}"
        if sys.stderr.isatty():
            self._progress.draw(line)
            return
        # By its reason: a percentage in the message would be a hundred lines of a log.
        step = (phase_of(status), status.get("reason", ""))
        if step != self._said and "phase" in status and step[0] not in ENDED:
            self._said = step
            say(line)
