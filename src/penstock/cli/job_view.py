"""A training job as arena prints it, from the object that `get -o json` prints. Pure."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.api.tables import age, aligned
from penstock.cli.declared import Progress
from penstock.cli.output import notify
from penstock.errors import JobFailed, NoSuchResource, did_you_mean
from penstock.jobs.job_status import ENDED
from penstock.specs.kinds import ResourceKey

Json = Mapping[str, Any]

_FIRST_ROLES = ("launcher", "master", "chief")


def phase_of(status: Json) -> str:
    """One that nobody has looked at yet waits for that."""
    return status.get("phase") or "PENDING"


def message_of(status: Json) -> str:
    """Why it waits or failed; nothing of one that does what it should."""
    quiet = phase_of(status) in ("RUNNING", "SUCCEEDED")
    return "" if quiet else str(status.get("message") or "")


def trainer_of(job: Json) -> str:
    return f"{job['spec'].get('trainer', '')}job".upper()


def duration_of(job: Json, now_s: float | None = None) -> str:
    """Since it was started first."""
    status = job.get("status", {})
    begun = status.get("startTime")
    return _between(begun, status.get("completionTime"), now_s) if begun else "0s"


def chief_of(instances: Sequence[Json]) -> str | None:
    """The instance that speaks for the job: the launcher, the master, the chief, or the first."""
    for role in _FIRST_ROLES:
        for one in instances:
            if one.get("role") == role:
                return one["name"]
    workers = [one for one in instances if one.get("role") == "worker"]
    return next((one["name"] for one in [*workers, *instances]), None)


def details(job: Json, now_s: float | None = None) -> list[str]:
    """`arena get`: what it is, and its instances."""
    metadata, spec, status = job["metadata"], job["spec"], job.get("status", {})
    head = [
        ("Name", metadata["name"]),
        ("Status", phase_of(status)),
        ("Namespace", metadata["namespace"]),
        ("Priority", spec.get("priority", 0)),
        ("Trainer", trainer_of(job)),
        ("Duration", duration_of(job, now_s)),
    ]
    if status.get("attempts", 1) > 1:
        head.append(("Attempts", status["attempts"]))
    if message := message_of(status):
        head.append(("Message", message))
    for number, one in enumerate(spec.get("data") or ()):
        whose = f"{one['namespace']}/" if one.get("namespace") else ""
        head.append(("" if number else "Data", f"{whose}{one['dataset']} at {one['mountPath']}"))
    lines = [f"{title + ':' if title else '':<12}{value}" for title, value in head]
    return [*lines, "", "Instances:", *instance_lines(job, now_s)]


def instance_lines(job: Json, now_s: float | None = None) -> list[str]:
    status = job.get("status", {})
    instances: list[Json] = status.get("instances") or []
    if not instances:
        return ["  none has been started"]
    chief = chief_of(instances)
    titles = ["NAME", "STATUS", "AGE", "IS_CHIEF", "GPU(Requested)", "NODE"]
    rows = [[f"  {titles[0]}", *titles[1:]], ["  ----", *("-" * len(one) for one in titles[1:])]]
    for one in instances:
        began = one.get("startTime")
        rows.append(
            [
                f"  {one['name']}",
                one.get("phase") or "PENDING",
                _between(began, one.get("completionTime"), now_s) if began else "N/A",
                str(one["name"] == chief).lower(),
                str(requested_gpus(job, one)),
                status.get("node") or "N/A",
            ]
        )
    return aligned(rows)


def requested_gpus(job: Json, instance: Json) -> int:
    """A launcher has those of all ranks below it; a parameter server has none."""
    spec, role = job["spec"], instance.get("role")
    workers = {"launcher": spec.get("workers", 1), "ps": 0}.get(role or "", 1)
    return workers * spec.get("gpus", 0)


def _between(begun: str, ended: str | None, now_s: float | None) -> str:
    until_s = time.time() if now_s is None else now_s
    if ended:
        until_s = datetime.fromisoformat(ended).timestamp()
    return age(until_s - datetime.fromisoformat(begun).timestamp())


# What the commands for training jobs have in common: which job is meant.

if TYPE_CHECKING:
    from penstock.reconcile.snapshot import Stored
    from penstock.reconcile.state import State

KIND = "TrainingJob"
Command = Callable[..., Any]


def type_option(command: Command) -> Command:
    """arena's -T: there a job is known by its trainer and its name, here by its name."""
    return click.option("-T", "--type", hidden=True, expose_value=False)(command)


def find_job(state: "State", name: str, namespace: str | None) -> "Stored":
    place = namespace or "default"
    found = state.find(ResourceKey(KIND, place, name))
    if found is not None:
        return found
    known = [one.key for one in state.all([KIND])]
    here = [key.name for key in known if key.namespace == place]
    hint = "`penstock list -A` shows what there is"
    if elsewhere := [key.namespace for key in known if key.name == name]:
        hint = f"there is one in the namespace {elsewhere[0]}: -n {elsewhere[0]}"
    else:
        hint = did_you_mean(name, here, hint)
    raise NoSuchResource(f"there is no job {name} in the namespace {place}", hint=hint)


def named(key: ResourceKey) -> str:
    """How a command line names it: with -n where it must."""
    return key.name if key.namespace == "default" else f"{key.name} -n {key.namespace}"


# How `penstock submit --wait` waits: one line that says how far the job is, and its end.

if TYPE_CHECKING:
    from penstock.reconcile.state import State
    from penstock.specs.kinds import ResourceKey


def wait_for(state: "State", key: "ResourceKey") -> None:
    """Until it has ended; raises JobFailed if it failed. Ctrl-C ends the waiting, not the job."""
    from penstock.reconcile import live_status
    from penstock.reconcile.waiting import wait_for_job

    where = f" -n {key.namespace}" if key.namespace != "default" else ""
    try:
        with Progress() as progress:
            steps = Steps(progress)
            ended = wait_for_job(state, key, tell=lambda now: steps.tell(now.key.name, now.status))
    except KeyboardInterrupt:
        notify(f"it runs on without you; `penstock get job {key.name}{where}` shows how it is")
        raise click.exceptions.Abort from None
    status = ended.status
    if status["phase"] == "SUCCEEDED":
        notify(f"job {key.name} SUCCEEDED after {duration_of(live_status.show([ended])[0])}")
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
            notify(line)
