"""What each trainer starts: the instances of a job, their arguments and their environment. Pure.

    mpi, horovod   launcher                        mpirun, with all ranks below it
    pytorch        master-0, worker-0, …           a torchrun each, with the ranks of one worker
    tf             ps-0, …, worker-0, …            the command itself, with TF_CONFIG

They communicate over the loopback interface.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.specs.jobs import SHELL, TrainingJobSpec

_LOOPBACK = "127.0.0.1"
_MPI_WORDS = re.compile(r"(?<![\w./-])(?:[\w./-]*/)?(?:mpirun|mpiexec|horovodrun)(?![\w.-])")
_TORCH_WORDS = re.compile(
    r"(?<![\w./-])(?:[\w./-]*/)?torchrun(?![\w.-])|torch\.distributed\.(?:run|launch)\b"
    r"|\baccelerate\s+launch\b|\bdeepspeed\b"
)
_SHELLS = ("sh", "bash", "dash", "zsh", "/bin/sh", "/bin/bash", "/usr/bin/bash")


@dataclass(frozen=True, slots=True)
class Instance:
    name: str  # imagenet-worker-0
    role: str  # launcher, master, worker, ps
    argv: tuple[str, ...]
    env: Mapping[str, str]
    gpus: tuple[int, ...]
    workers: int = 1  # how many workers' limits it has
    awaited: bool = True  # the job ends when these have ended; a parameter server never does


@dataclass(frozen=True, slots=True)
class Machine:
    """What depends on the machine that the job runs on."""

    is_root: bool
    gpus: tuple[int, ...]  # allotted to the job, worker after worker
    ports: tuple[int, ...]  # free ones, as many as `ports_needed`
    hostfile: str  # "" in an image, like `scratch`
    scratch: str  # a folder in memory for what the ranks share
    torchrun: tuple[str, ...] = ("torchrun",)
    planner: tuple[str, ...] = ("penstock", "run", "--")


def chosen_launch(
    spec: TrainingJobSpec, read_script: Callable[[str], str | None]
) -> Literal["ranks", "launcher"]:
    """Return whether Penstock starts the ranks, or the command brings its own launcher.

    `read_script` returns the text of a file, or None if it cannot be read.
    """
    if spec.launch != "auto":
        return spec.launch
    if spec.trainer == "tf":
        return "ranks"
    words = _TORCH_WORDS if spec.trainer == "pytorch" else _MPI_WORDS
    command = spec.command[-1] if tuple(spec.command[:2]) == SHELL else " ".join(spec.command)
    if words.search(command):
        return "launcher"
    script = script_of(command)
    text = read_script(script) if script else None
    if text is None or not _is_shell_script(text):
        return "ranks"
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return "launcher" if any(map(words.search, lines)) else "ranks"


def script_of(command: str) -> str | None:
    """Return the script that a command line runs: ./train.sh, or train.sh of `bash train.sh`."""
    for word in command.split():
        if re.fullmatch(r"[A-Za-z_]\w*=\S*", word) or word in _SHELLS or word == "exec":
            continue
        return word if re.fullmatch(r"[\w./+@:-]+", word) and not word.startswith("-") else None
    return None


def _is_shell_script(text: str) -> bool:
    first = text.partition("\n")[0]
    return not first.startswith("#!") or re.search(r"\b(?:ba|da|z|k)?sh\b", first) is not None


def ports_needed(spec: TrainingJobSpec) -> int:
    return {"pytorch": 1, "tf": spec.workers + spec.ps}.get(spec.trainer, 0)


def instances_of(
    name: str, spec: TrainingJobSpec, launch: str, env: Mapping[str, str], machine: Machine
) -> list[Instance]:
    """`env`: the environment of each instance, to which its trainer adds variables."""
    if spec.trainer == "pytorch":
        return _torch(name, spec, launch, env, machine)
    if spec.trainer == "tf":
        return _tf(name, spec, env, machine)
    return [_mpi(name, spec, launch, env, machine)]


def _mpi(
    name: str, spec: TrainingJobSpec, launch: str, env: Mapping[str, str], machine: Machine
) -> Instance:
    settings = {
        "OMPI_MCA_orte_default_hostfile": machine.hostfile,
        "PRTE_MCA_prte_default_hostfile": machine.hostfile,
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_btl": "self,vader,tcp",  # since 5.0 vader is called sm; both names work
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_oob_tcp_if_include": "lo",
        # When it is killed its files stay; these folders are removed with the attempt.
        "OMPI_MCA_orte_tmpdir_base": machine.scratch,
        "OMPI_MCA_btl_vader_backing_directory": machine.scratch,
        "PRTE_MCA_prte_tmpdir_base": machine.scratch,
    }
    root: list[str] = []
    if machine.is_root:
        root = ["--allow-run-as-root"]
        for prefix in ("OMPI", "PRTE"):
            settings[f"{prefix}_ALLOW_RUN_AS_ROOT"] = "1"
            settings[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    # Paths inside an image are not known: there Open MPI chooses its own.
    settings = {name: value for name, value in settings.items() if value}
    argv = [*spec.command]
    if launch == "ranks":
        argv = [
            "mpirun",
            *root,
            "-np",
            str(slots(spec)),
            "--oversubscribe",
            "--bind-to",
            "none",
            *argv,
        ]
    return Instance(
        f"{name}-launcher",
        "launcher",
        _planned(spec, argv, machine),
        {**settings, **env, **_devices(machine.gpus)},
        machine.gpus,
        workers=spec.workers,
    )


def slots(spec: TrainingJobSpec) -> int:
    """Return the number of processes: one per GPU, or one per worker without GPUs."""
    return spec.workers * max(1, spec.gpus)


def hostfile(spec: TrainingJobSpec) -> str:
    return f"localhost slots={slots(spec)}\n"


def _torch(
    name: str, spec: TrainingJobSpec, launch: str, env: Mapping[str, str], machine: Machine
) -> list[Instance]:
    port, processes = str(machine.ports[0]), max(1, spec.gpus)
    instances: list[Instance] = []
    for rank in range(spec.workers):
        role, number = ("master", 0) if rank == 0 else ("worker", rank - 1)
        gpus = _share(spec, machine.gpus, rank)
        argv, settings = [*spec.command], {}
        if launch == "ranks":
            # The ranks use the first agent's rendezvous, so no other port is needed.
            argv = [
                *machine.torchrun,
                f"--nnodes={spec.workers}",
                f"--nproc-per-node={processes}",
                f"--node-rank={rank}",
                f"--master-addr={_LOOPBACK}",
                f"--master-port={port}",
                "--max-restarts=0",
                "--no-python",
                *argv,
            ]
        else:
            settings = {
                "MASTER_ADDR": _LOOPBACK,
                "MASTER_PORT": port,
                "RANK": str(rank),
                "WORLD_SIZE": str(spec.workers),
                "PET_NNODES": str(spec.workers),
                "PET_NPROC_PER_NODE": str(processes),
                "PET_NODE_RANK": str(rank),
                "PET_MASTER_ADDR": _LOOPBACK,
                "PET_MASTER_PORT": port,
            }
        instances.append(
            Instance(
                f"{name}-{role}-{number}",
                role,
                _planned(spec, argv, machine),
                {**settings, **env, **_devices(gpus)},
                gpus,
            )
        )
    return instances


def _tf(
    name: str, spec: TrainingJobSpec, env: Mapping[str, str], machine: Machine
) -> list[Instance]:
    addresses = [f"{_LOOPBACK}:{port}" for port in machine.ports]
    cluster = {"worker": addresses[: spec.workers]}
    if spec.ps:
        cluster["ps"] = addresses[spec.workers : spec.workers + spec.ps]
    instances: list[Instance] = []
    for role, count in (("ps", spec.ps), ("worker", spec.workers)):
        for index in range(count):
            gpus = _share(spec, machine.gpus, index) if role == "worker" else ()
            config = {"cluster": cluster, "task": {"type": role, "index": index}}
            instances.append(
                Instance(
                    f"{name}-{role}-{index}",
                    role,
                    _planned(spec, spec.command, machine),
                    {"TF_CONFIG": json.dumps(config), **env, **_devices(gpus)},
                    gpus,
                    awaited=role == "worker",
                )
            )
    return instances


def _share(spec: TrainingJobSpec, gpus: Sequence[int], worker: int) -> tuple[int, ...]:
    return tuple(gpus[worker * spec.gpus : (worker + 1) * spec.gpus])


def _devices(gpus: Sequence[int]) -> dict[str, str]:
    """Without GPUs the variable is empty, which hides them all: they may be another job's."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}


def _planned(spec: TrainingJobSpec, argv: Sequence[str], machine: Machine) -> tuple[str, ...]:
    """Wrap the launcher in `penstock run`, whose hook every rank inherits."""
    return (*machine.planner, *argv) if spec.plan else tuple(argv)
