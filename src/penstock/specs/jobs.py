"""TrainingJob: processes that train on data sets, and how they run. Pure."""

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from penstock.specs.dataset import Env
from penstock.specs.fields import Count, Fields, Text, field, invalid
from penstock.specs.operations import inside_dataset
from penstock.specs.resource import Name, Namespace, Resource
from penstock.specs.tieredstore import Quantity

Trainer = Literal["mpi", "pytorch", "horovod", "tf"]
Launch = Literal["auto", "ranks", "launcher"]

SHELL = ("/bin/sh", "-c")
_CORES = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?P<thousandths>m?)")
# Paths that programs need and trust: no data set may be mounted there.
_SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib[0-9x]*|proc|run|sbin|sys|usr)(/|$)")
# A data set may be mounted below these, but not hide all of their content.
_SHARED = ("/home", "/root", "/tmp", "/var")


def cores(text: str) -> float:
    """Parse `2`, `0.5` or `500m`, as in Kubernetes. Raises ValueError for other text."""
    match = _CORES.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(Decimal(match["number"]) / (1000 if match["thousandths"] else 1))


def _cores(text: str) -> str:
    text = text.strip()
    if not _CORES.fullmatch(text) or not cores(text):
        raise invalid(f"{text[:40]!r} is not a number of cores", 'write it like 2, "0.5" or 500m')
    return text


def _mount_path(text: str) -> str:
    hint = "write it like /data"
    if not text.startswith("/") or "\0" in text:
        raise invalid(f"{text[:60]!r} is not an absolute path", hint)
    steps = [step for step in text.split("/") if step not in ("", ".")]
    if ".." in steps:
        raise invalid(f"{text[:60]!r} has .. in it", hint)
    if not steps:
        raise invalid("/ would hide all files of the job", hint)
    path = "/" + "/".join(steps)
    if _SYSTEM.match(path) or path in _SHARED:
        raise invalid(f"{text[:60]!r} is a folder of the system", hint)
    return path


def _working_dir(text: str) -> str:
    if text and not text.startswith("/"):
        raise invalid(f"{text[:60]!r} is not an absolute path", "write it like /home/me/training")
    return text


def _as_words(value: Any) -> Any:
    return [*SHELL, value] if isinstance(value, str) else value


def _words(words: list[str]) -> list[str]:
    if not words or not words[-1 if tuple(words[:2]) == SHELL else 0].strip():
        raise invalid("is empty", 'write a command, such as "python train.py"')
    if any("\0" in word for word in words):
        raise invalid("has a NUL in it")
    return words


Cores = Annotated[Text, AfterValidator(_cores)]


class JobData(Fields):
    dataset: Name = field("Name of the Dataset.", required=True)
    namespace: Namespace = field("Its namespace; by default the same one.", default="")
    mount_path: Annotated[str, AfterValidator(_mount_path)] = field(
        "Path at which the job sees the data set, read-only. Other processes do not see it there.",
        required=True,
    )
    sub_path: Annotated[str, AfterValidator(inside_dataset)] = field(
        "Folder in it; by default all of it.", default=""
    )


class TrainingJobSpec(Fields):
    trainer: Trainer = field(
        "Launcher of the processes. mpi and horovod: mpirun; pytorch: torchrun, one for each "
        "worker; tf: TF_CONFIG in the environment of each worker.",
        required=True,
    )
    workers: Count = field("Number of workers.", default=1, ge=1)
    ps: Count = field("Number of parameter servers; for tf.", default=0, ge=0)
    gpus: Count = field(
        "GPUs of each worker. No other job gets them while it runs.", default=0, ge=0
    )
    command: Annotated[list[str], BeforeValidator(_as_words), AfterValidator(_words)] = field(
        "Command to run: text for a shell, or a list of words.", required=True
    )
    launch: Launch = field(
        "ranks: the command is started once for each rank. launcher: the command is started once, "
        "and calls mpirun itself (for pytorch: once for each worker, and calls torchrun). auto: "
        "launcher if the command, or the script that it begins with, names mpirun, mpiexec, "
        "horovodrun or torchrun. Not for tf.",
        default="auto",
    )
    working_dir: Annotated[str, AfterValidator(_working_dir)] = field(
        "Working directory; by default a new folder of the job.", default=""
    )
    data: list[JobData] = field(
        "Data sets, and the paths at which the job sees them.", factory=list
    )
    env: list[Env] = field("Environment variables for it.", factory=list)
    image: str = field(
        "Image of a container to run in, with docker or podman; without one it runs directly on "
        "this machine.",
        default="",
    )
    cpu: Cores | None = field("Cores for each worker, at most: 2 or 500m.")
    memory: Quantity | None = field("Memory for each worker, at most: 4Gi.")
    warm: bool = field("Whether its data sets are loaded before it starts.", default=False)
    plan: bool = field(
        "Whether its data loaders announce what they will read, as with `penstock run`.",
        default=False,
    )
    retries: Count = field("Retry up to this many times.", default=0, ge=0)
    timeout_seconds: Count | None = field("How long an attempt may run; a longer one fails.", ge=1)
    ttl_seconds_after_finished: Count | None = field(
        "How long it is kept after its end; then it is removed, with its logs.", ge=0
    )
    priority: Count = field("Jobs of higher priority leave the queue first.", default=0)
    max_log_size: Quantity = field(
        "How much output of each instance is kept: its beginning and its end.",
        default="256Mi",
    )


class TrainingJob(Resource):
    """Runs training processes that see data sets at given paths."""

    spec: TrainingJobSpec = field("The desired state.", required=True)
