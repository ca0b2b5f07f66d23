"""A command in the middle of a job that runs: where its processes are, and sees what they see."""

import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import UsageError
from penstock.jobs.containers import container_name
from penstock.jobs.records import RUNNING, attempt_path, job_folder, read_record
from penstock.reconcile.state import State, Stored


def attach_argv(
    state: State, job: Stored, instance: str | None, command: Sequence[str]
) -> list[str]:
    """The arguments of a process that does it; `instance` may be left out, or be without the
    job's name; without a command it is a shell. Raises UsageError if there is no such, or it does
    not run."""
    record = read_record(attempt_path(job_folder(state.folder, job.uid)))
    name = job.key.name
    if record is None or record["outcome"] is not None:
        raise UsageError(
            f"job {name} does not run: it is {job.status.get('phase', 'PENDING')}",
            hint=f"penstock logs {name}",
        )
    names = [one["name"] for one in record["instances"]]
    wanted = names[0] if instance is None else instance
    if wanted not in names:
        wanted = f"{name}-{wanted}"
    if wanted not in names:
        raise UsageError(
            f"job {name} has no instance {instance}", hint=f"it has {', '.join(names)}"
        )
    if record["instances"][names.index(wanted)]["phase"] != RUNNING:
        raise UsageError(f"{wanted} does not run any more", hint=f"penstock get job {name}")
    if record["engine"]:
        words = list(command) or ["sh"]
        tty = ["-t"] if sys.stdin.isatty() else []
        return [record["engine"], "exec", "-i", *tty, container_name(job.uid, wanted), *words]
    folder = Path(job_folder(state.folder, job.uid))
    return [sys.executable, "-Pm", "penstock.jobs.enter", str(folder), wanted, *command]
