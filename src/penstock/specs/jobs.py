"""TrainingJob: processes that train on data sets, and all that decides how they run. Pure."""

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
# What programs need of their machine, and trust: no data set lies in it.
_SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib[0-9x]*|proc|run|sbin|sys|usr)(/|$)")
# Nor hides all of what others, and the job itself, have there.
_SHARED = ("/home", "/root", "/tmp", "/var")


def cores(text: str) -> float:
    """`2`, `0.5` or `500m`, as in Kubernetes. Only of what was validated."""
    match = _CORES.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(Decimal(match["number"]) / (1000 if match["thousandths"] else 1))


def _cores(text: str) -> str:
    text = text.strip()
    if not _CORES.fullmatch(text) or not cores(text):
        raise invalid(f"{text[:40]!r} is no number of cores", 'write it like 2, "0.5" or 500m')
    return text


def _mount_path(text: str) -> str:
    hint = "write it like /data"
    if not text.startswith("/") or "\0" in text:
        raise invalid(f"{text[:60]!r} is not an absolute path", hint)
    steps = [step for step in text.split("/") if step not in ("", ".")]
    if ".." in steps:
        raise invalid(f"{text[:60]!r} has .. in it", hint)
    if not steps:
        raise invalid("/ is all that the job has", hint)
    path = "/" + "/".join(steps)
    if _SYSTEM.match(path) or path in _SHARED:
        raise invalid(f"{text[:60]!r} is a place of the system", hint)
    return path


def _working_dir(text: str) -> str:
    if text and not text.startswith("/"):
        raise invalid(f"{text[:60]!r} is not an absolute path", "write it like /home/me/training")
    return text


def _as_words(value: Any) -> Any:
    return [*SHELL, value] if isinstance(value, str) else value


def _words(words: list[str]) -> list[str]:
    if not words or not words[-1 if tuple(words[:2]) == SHELL else 0].strip():
        raise invalid("is empty", 'write what is to be run, such as "python train.py"')
    if any("\0" in word for word in words):
        raise invalid("has a NUL in it")
    return words


Cores = Annotated[Text, AfterValidator(_cores)]


class JobData(Fields):
    dataset: Name = field("Name of the Dataset.", required=True)
    namespace: Namespace = field("Its namespace; this one's own if not said.", default="")
    mount_path: Annotated[str, AfterValidator(_mount_path)] = field(
        "Where the job sees the data set, read-only. Nobody else sees it there.", required=True
    )
    sub_path: Annotated[str, AfterValidator(inside_dataset)] = field(
        "Which folder of it; all of it if not said.", default=""
    )


class TrainingJobSpec(Fields):
    trainer: Trainer = field(
        "What starts the processes. mpi and horovod: mpirun; pytorch: torchrun, one for each "
        "worker; tf: TF_CONFIG in the environment of each worker.",
        required=True,
    )
    workers: Count = field("How many workers.", default=1, ge=1)
    ps: Count = field("How many parameter servers; for tf.", default=0, ge=0)
    gpus: Count = field(
        "GPUs of each worker. They are nobody else's while it runs.", default=0, ge=0
    )
    command: Annotated[list[str], BeforeValidator(_as_words), AfterValidator(_words)] = field(
        "What is run: a text, which a shell reads, or a list of words.", required=True
    )
    launch: Launch = field(
        "ranks: the command is one process of many, and is started for each of them. launcher: it "
        "is run once, and calls mpirun itself (for pytorch: once for each worker, and calls "
        "torchrun). auto: launcher if the command, or the script that it begins with, names "
        "mpirun, mpiexec, horovodrun or torchrun. Not for tf.",
        default="auto",
    )
    working_dir: Annotated[str, AfterValidator(_working_dir)] = field(
        "Where it begins; a folder of the job's own if not said.", default=""
    )
    data: list[JobData] = field("The data sets, and where the job sees them.", factory=list)
    env: list[Env] = field("Environment variables for it.", factory=list)
    image: str = field(
        "Image of a container that it runs in, with docker or podman; without one it runs on this "
        "machine as it is.",
        default="",
    )
    cpu: Cores | None = field("Cores for each worker, at most: 2 or 500m.")
    memory: Quantity | None = field("Memory for each worker, at most: 4Gi.")
    warm: bool = field(
        "Whether its data sets are loaded first; it starts after that.", default=False
    )
    plan: bool = field(
        "Whether its loaders tell the data sets what they will read, as with `penstock run`.",
        default=False,
    )
    retries: Count = field("How often it is started again after a failure.", default=0, ge=0)
    timeout_seconds: Count | None = field(
        "How long an attempt may run; one that takes longer has failed.", ge=1
    )
    ttl_seconds_after_finished: Count | None = field(
        "How long it is kept after it has ended; then it is removed, with its logs.", ge=0
    )
    priority: Count = field("Of those that wait, who has more goes first.", default=0)
    max_log_size: Quantity = field(
        "How much of what each instance prints is kept: its beginning and its end.",
        default="256Mi",
    )


class TrainingJob(Resource):
    """Runs training processes that see data sets at paths of their own."""

    spec: TrainingJobSpec = field("What is wanted.", required=True)
