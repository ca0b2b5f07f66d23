"""Training jobs: submit one, wait for it, find its logs, run a command inside it, measure it.

job = penstock.get("job", "resnet")
job.wait()
job.log_path().read_text()
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.api.resources import Declared, get_all
from penstock.api.tables import age
from penstock.errors import (
    JobFailed,
    ManifestError,
    NoSuchResource,
    OptionError,
    UsageError,
    did_you_mean,
)
from penstock.jobs.job_folder import job_folder, log_path, waits_folder
from penstock.jobs.job_status import ENDED
from penstock.jobs.log_times import offset_since as offset_since
from penstock.reconcile import live_status
from penstock.reconcile.loop_control import wake_loop
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.reconcile.waiting import wait_for_job
from penstock.specs.kinds import ResourceKey

if TYPE_CHECKING:
    from penstock.jobs.loader_waits import LoaderWaits
    from penstock.jobs.usage import GpuUsage, Usage

Json = dict[str, Any]

KIND = "TrainingJob"
_CHIEF_ROLES = ("launcher", "master", "chief")


class TrainingJob(Declared):
    """A job as it was at one moment; `refresh` reads it again."""

    @property
    def phase(self) -> str:
        """PENDING, QUEUING, RUNNING, SUCCEEDED or FAILED; PENDING until the loop has seen it."""
        return self.status.get("phase") or "PENDING"

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    @property
    def is_being_deleted(self) -> bool:
        return "deletionTimestamp" in self._shown["metadata"]

    @property
    def message(self) -> str:
        """Why the job waits or failed; empty while it runs and after it succeeded."""
        quiet = self.phase in ("RUNNING", "SUCCEEDED")
        return "" if quiet else str(self.status.get("message") or "")

    @property
    def trainer(self) -> str:
        """`MPIJOB`, as arena prints it."""
        return f"{self.spec.get('trainer', '')}job".upper()

    @property
    def instances(self) -> list[Json]:
        return self.status.get("instances") or []

    @property
    def chief(self) -> str | None:
        return chief_of(self.instances)

    @property
    def duration(self) -> str:
        """The time since the first start, until now or until the end."""
        begun = self.status.get("startTime")
        return elapsed(begun, self.status.get("completionTime")) if begun else "0s"

    def requested_gpus(self, instance: Mapping[str, Any]) -> int:
        """A launcher counts the GPUs of all ranks below it; a parameter server has none."""
        workers = {"launcher": self.spec.get("workers", 1), "ps": 0}
        return workers.get(instance.get("role") or "", 1) * self.spec.get("gpus", 0)

    @property
    def data_wait_s(self) -> float:
        """How long the job waited until its data sets were ready, loaded if it asked for that:
        until now while it waits, and 0 for a job without data."""
        if not self.spec.get("data"):
            return 0.0
        ready = self.status.get("dataReadyTime")
        ended = ready or self.status.get("completionTime")
        until_s = datetime.fromisoformat(ended).timestamp() if ended else time.time()
        created: str = self._shown["metadata"]["creationTimestamp"]
        return max(0.0, until_s - datetime.fromisoformat(created).timestamp())

    @property
    def loader_waits(self) -> "LoaderWaits | None":
        """How long the PyTorch loops of its newest attempt waited for batches; None if the job has
        no plan, or no batch yet."""
        from penstock.jobs.loader_waits import read_waits

        return read_waits(waits_folder(job_folder(State().folder, self.uid)))

    def ended_at_least(self, seconds: float) -> bool:
        """Whether the job ended that long ago; false while it runs or is being deleted."""
        if not self.has_ended or self.is_being_deleted:
            return False
        ended = self.status.get("completionTime")
        if ended is None:
            return not seconds
        return time.time() - datetime.fromisoformat(ended).timestamp() >= seconds

    def refresh(self) -> "TrainingJob":
        """Read this very job again, never a later one of the same name."""
        found = State().by_uid(self.uid)
        if found is None:
            raise NoSuchResource(f"job {self.name} was deleted")
        self._shown = live_status.show([found])[0]
        return self

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        progress: Callable[["TrainingJob"], None] = lambda _: None,
    ) -> "TrainingJob":
        """Wait until the job has ended; raise JobFailed if it failed."""

        def update(stored: Stored) -> None:
            self._shown = live_status.show([stored])[0]
            progress(self)

        ended = wait_for_job(State(), self.key, timeout_s=timeout_s, on_update=update)
        if self.phase != "SUCCEEDED":
            trouble: Json = ended.note.get("trouble") or {}
            why = trouble.get("what") or self.status.get("message") or "no reason is recorded"
            logs = f"penstock logs {command_line_name(self.key)} --tail 50"
            raise JobFailed(f"job {self.name}: {why}", hint=trouble.get("hint") or logs)
        return self

    def log_path(self, instance: str | None = None) -> Path | None:
        """The log of an instance (`worker-1`, or its whole name), or of the chief.

        None until it has been started and has printed something."""
        wanted = instance or self.chief
        if not self.instances or wanted is None:
            return None
        path = log_path(job_folder(State().folder, self.uid), self.instance_name(wanted))
        return path if path.exists() else None

    def instance_name(self, wanted: str) -> str:
        """Return the whole name of an instance: resnet-worker-1 for `worker-1`."""
        names = [one["name"] for one in self.instances]
        short = {name: name.removeprefix(f"{self.name}-") for name in names}
        whole = next((name for name in names if wanted in (name, short[name])), None)
        if whole is None:
            raise OptionError(
                f"job {self.name} has no instance {wanted}",
                hint=f"its instances: {', '.join(short.values()) or 'none has been started'}",
            )
        return whole

    def attach_command(
        self, command: Sequence[str] = (), *, instance: str | None = None
    ) -> list[str]:
        """The arguments of a process that runs `command`, or a shell, inside the job."""
        from penstock.jobs.attach import attach_argv

        if self.phase != "RUNNING":
            raise UsageError(
                f"job {self.name} is {self.phase}: there is nothing to attach to",
                hint=f"`penstock get job {command_line_name(self.key)}` shows its state",
            )
        state = State()
        stored = state.find(self.key)
        if stored is None:
            raise NoSuchResource(f"job {self.name} was deleted")
        return attach_argv(state, stored, instance or self.chief, command)


def job(name: str, *, namespace: str = "default") -> TrainingJob:
    """Return the job of this name; suggest a similar name or another namespace if there is none."""
    state = State()
    found = state.find(ResourceKey(KIND, namespace, name))
    if found is not None:
        return TrainingJob(live_status.show([found])[0])
    known = [one.key for one in state.all([KIND])]
    here = [key.name for key in known if key.namespace == namespace]
    hint = "`penstock list -A` shows what there is"
    if elsewhere := [key.namespace for key in known if key.name == name]:
        hint = f"there is one in the namespace {elsewhere[0]}: -n {elsewhere[0]}"
    else:
        hint = did_you_mean(name, here, hint)
    raise NoSuchResource(f"there is no job {name} in the namespace {namespace}", hint=hint)


def jobs(*, namespace: str | None = None) -> list[TrainingJob]:
    """All training jobs of one namespace, or of every one."""
    return [one for one in get_all(KIND, namespace=namespace) if isinstance(one, TrainingJob)]


def submit(
    manifest: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
) -> TrainingJob | None:
    """Create a TrainingJob, which then runs on its own; None with `dry_run`.

    Unlike `apply`, refuses a name that is taken and data sets that do not exist: they are most
    likely spelled wrongly."""
    from penstock.api.manifests import read
    from penstock.reconcile.admission import apply as admit
    from penstock.reconcile.admission import data_problems

    documents = read(manifest, namespace=namespace)
    state = State()
    key = documents[0].resource.key
    if (taken := state.find(key)) is not None:
        raise _name_is_taken(taken)
    if problems := data_problems(state, documents[0]):
        raise ManifestError.of(problems)
    admit(state, documents, dry_run=dry_run, only_new=True)
    if dry_run:
        return None
    wake_loop(state.folder)
    return job(key.name, namespace=key.namespace)


def _name_is_taken(taken: Stored) -> UsageError:
    name = taken.key.name
    if taken.deleting is not None:
        return UsageError(f"job {name} is being deleted", hint="submit it again in a moment")
    phase = taken.status.get("phase") or "not scheduled yet"
    return UsageError(
        f"there is a job {name} already, and it is {phase}",
        hint=f"choose another name, or `penstock delete job {command_line_name(taken.key)}` first",
    )


def chief_of(instances: Sequence[Mapping[str, Any]]) -> str | None:
    """The instance whose log stands for the job: launcher, master, chief, or the first worker."""
    for role in _CHIEF_ROLES:
        for one in instances:
            if one.get("role") == role:
                return one["name"]
    workers = [one for one in instances if one.get("role") == "worker"]
    return next((one["name"] for one in [*workers, *instances]), None)


def command_line_name(key: ResourceKey) -> str:
    """The arguments that name this job to a command."""
    return key.name if key.namespace == "default" else f"{key.name} -n {key.namespace}"


def elapsed(begun: str, ended: str | None) -> str:
    until_s = datetime.fromisoformat(ended).timestamp() if ended else time.time()
    return age(until_s - datetime.fromisoformat(begun).timestamp())


# -- what jobs and this machine use -----------------------------------------------------------

# CPU use is the difference of two samples; over a shorter time it would count single clock ticks.
_SAMPLE_S = 0.5


def job_usage(jobs: Sequence[TrainingJob]) -> list[Json]:
    """Each job with the CPU, memory and GPUs that it and its instances use. Takes half a second if
    one of them runs: all are sampled twice, with one pause."""
    from penstock.jobs.usage import gpu_usage, tree_usage
    from penstock.jobs.usage import job_usage as usage_of

    folder = State().folder
    running = [one for one in jobs if one.phase == "RUNNING"]
    pids = [one["pid"] for job in running for one in job.instances if "pid" in one]
    before = {one.uid: usage_of(one.uid, folder) for one in running}
    trees_before = {pid: tree_usage(pid) for pid in pids}
    began_s = time.monotonic()
    if running:
        time.sleep(_SAMPLE_S)
    elapsed_s = time.monotonic() - began_s
    gpus = {gpu.index: gpu for gpu in gpu_usage()} if running else {}

    def instance_usage(job: TrainingJob, one: Json) -> Json:
        pid: int | None = one.get("pid")
        samples = (None, None)
        if pid is not None and pid in trees_before:
            samples = (trees_before[pid], tree_usage(pid))
        return {
            "name": one["name"],
            "status": one.get("phase") or "PENDING",
            **_used_between(*samples, elapsed_s),
            "gpusRequested": job.requested_gpus(one),
            "gpus": [_gpu(index, gpus) for index in one.get("gpus") or () if pid is not None],
        }

    usages: list[Json] = []
    for one in jobs:
        samples = (None, None)
        if one.uid in before:
            samples = (before[one.uid], usage_of(one.uid, folder))
        instances = [instance_usage(one, instance) for instance in one.instances]
        usages.append(
            {
                "name": one.name,
                "namespace": one.namespace,
                "status": one.phase,
                "trainer": one.trainer,
                **_used_between(*samples, elapsed_s),
                "gpusRequested": one.status.get("gpusRequested", 0),
                "gpusAllocated": one.status.get("gpusAllocated", 0),
                "gpus": [gpu for instance in instances for gpu in instance["gpus"]],
                "node": one.status.get("node"),
                "instances": instances,
            }
        )
    return usages


def node_usage() -> Json:
    """What this machine has, and what its jobs and data sets use of it. Takes half a second."""
    from penstock.jobs.usage import gpu_usage, machine_gpus
    from penstock.jobs.usage import node_usage as usage_of_node

    active = [one for one in jobs() if not one.has_ended]
    before, began_s = usage_of_node(), time.monotonic()
    measured = job_usage(active)  # pauses, if one runs
    if time.monotonic() - began_s < _SAMPLE_S:
        time.sleep(_SAMPLE_S)
    after = usage_of_node()
    used_cores = (after.busy_s - before.busy_s) / (time.monotonic() - began_s)
    jobs_by_gpu = {gpu["index"]: job["name"] for job in measured for gpu in job["gpus"]}
    gpus = {gpu.index: gpu for gpu in gpu_usage()}
    datasets: list[Json] = []
    for one in get_all("Dataset"):
        cache = one.status.get("cacheStates", {})
        datasets.append(
            {
                "namespace": one.namespace,
                "name": one.name,
                "phase": one.phase,
                "cached": cache.get("cached", ""),
                "cacheCapacity": cache.get("cacheCapacity", ""),
                "cachedPercentage": cache.get("cachedPercentage", ""),
            }
        )
    return {
        "name": os.uname().nodename,
        "cores": after.cores,
        "coresUsed": round(used_cores, 2),
        "memoryBytes": after.memory_bytes,
        "memoryUsedBytes": after.memory_used_bytes,
        "gpus": [
            {"name": gpu.name, **_gpu(gpu.index, gpus), "job": jobs_by_gpu.get(gpu.index)}
            for gpu in machine_gpus()
        ],
        "jobs": measured,
        "datasets": datasets,
    }


def _used_between(before: "Usage | None", after: "Usage | None", elapsed_s: float) -> Json:
    if before is None or after is None:
        return {"cores": None, "memoryBytes": None, "processes": None}
    # A process that has ended in between takes its CPU seconds out of the sum.
    cores = max(0.0, after.cpu_s - before.cpu_s) / elapsed_s
    return {
        "cores": round(cores, 2),
        "memoryBytes": after.memory_bytes,
        "processes": after.processes,
    }


def _gpu(index: int, gpus: "dict[int, GpuUsage]") -> Json:
    found = gpus.get(index)
    share = None if found is None else found.busy_share
    return {
        "index": index,
        "dutyCycle": None if share is None else round(100 * share),
        "memoryUsedBytes": None if found is None else found.memory_used_bytes,
        "memoryBytes": None if found is None else found.memory_bytes,
    }
