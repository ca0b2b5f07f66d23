"""The options of `penstock submit`: our own, arena's names for them, and arena's options that have
no effect on one machine."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

TRAINERS = ("mpi", "pytorch", "horovod", "tf")
# arena's other names of trainers.
ALIASES: Mapping[str, str] = {
    "mpijob": "mpi", "mj": "mpi", "pytorchjob": "pytorch", "py": "pytorch",
    "horovodjob": "horovod", "hj": "horovod", "tfjob": "tf", "tensorflow": "tf",
}  # fmt: skip

# arena's other names of options, deprecated ones included. Of a tf job's roles only the workers
# have limits of their own.
_RENAMED: Mapping[str, str] = {
    "workingDir": "working-dir", "dataDir": "data-dir", "running-timeout": "timeout",
    "ttl-after-finished": "ttl", "ps-count": "ps", "syncMode": "sync-mode",
    "syncSource": "sync-source", "syncImage": "sync-image", "cleanTaskPolicy": "clean-task-policy",
    "tensorboardImage": "tensorboard-image", "worker-cpu": "cpu", "workerCpu": "cpu",
    "worker-cpu-limit": "cpu", "worker-memory": "memory", "workerMemory": "memory",
    "worker-memory-limit": "memory", "worker-image": "image", "workerImage": "image",
    "psPort": "ps-port", "workerPort": "worker-port", "chiefPort": "chief-port", "psCpu": "ps-cpu",
    "psMemory": "ps-memory", "ChiefCpu": "chief-cpu", "ChiefMemory": "chief-memory",
    "evaluatorCpu": "evaluator-cpu", "evaluatorMemory": "evaluator-memory",
    "image-pull-secrets": "image-pull-secret", "psImage": "ps-image",
}  # fmt: skip

# arena's options that are accepted and have no effect: (name, whether it takes a value, why).
_NODES = "one machine is the only node"
_IMAGES = "docker or podman pull as they are set up"
_NETWORK = "the processes of a job share this machine's network and processes"
_PORTS = "free ports are found"
_CLUSTER = "there is no cluster"
OF_ALL: Sequence[tuple[str, bool, str]] = (
    ("--selector", True, _NODES), ("--toleration", True, _NODES), ("--scheduler", True, _NODES),
    ("--gang", False, "a job's instances start together"), ("--gputopology", False, _NODES),
    ("--queue", False, "jobs are queued when there is no room"),
    ("--rdma", False, _NETWORK), ("--hostNetwork", False, _NETWORK),
    ("--hostIPC", False, _NETWORK), ("--hostPID", False, _NETWORK),
    ("--image-pull-secret", True, _IMAGES), ("--image-pull-policy", True, _IMAGES),
    ("--sync-mode", True, "code is not fetched; --working-dir says where it is"),
    ("--sync-source", True, "code is not fetched; --working-dir says where it is"),
    ("--sync-image", True, "code is not fetched; --working-dir says where it is"),
    ("--tensorboard", False, "no TensorBoard is started"),
    ("--tensorboard-image", True, "no TensorBoard is started"),
    ("--logdir", True, "no TensorBoard is started"),
    ("--clean-task-policy", True, "all processes of a job end with it"),
    ("--share-memory", True, "/dev/shm is this machine's"),
    ("--model-name", True, "there is no registry of models"),
    ("--model-source", True, "there is no registry of models"),
    ("--arena-namespace", True, _CLUSTER), ("--config", True, _CLUSTER),
    ("--loglevel", True, "PENSTOCK_LOG sets what is logged"), ("--trace", False, _CLUSTER),
    ("--pprof", False, _CLUSTER), ("--helm-binary", False, _CLUSTER),
)  # fmt: skip
OF_ONE: Mapping[str, Sequence[tuple[str, bool, str]]] = {
    "mpi": (("--mounts-on-launcher", False, "the launcher sees the data as the workers do"),),
    "horovod": (("--ssh-port", True, "workers are started without ssh"),),
    "pytorch": (("--nproc-per-node", True, "one process is started for each GPU of a worker"),),
    "tf": (
        *((f"--{role}-port", True, _PORTS) for role in ("ps", "worker", "chief")),
        *((f"--{role}-selector", True, _NODES) for role in ("ps", "worker", "chief", "evaluator")),
        *(
            (f"--{role}-affinity-{what}", True, _NODES)
            for role in ("ps", "worker")
            for what in ("policy", "constraint")
        ),
        *(
            (f"--{role}-{what}", True, "--cpu and --memory are for each instance")
            for role in ("ps", "chief", "evaluator")
            for what in ("cpu", "cpu-limit", "memory", "memory-limit")
        ),
        ("--chief", False, "the first worker is the chief"),
        ("--evaluator", False, "no evaluator is started"),
        ("--success-policy", True, "a job has succeeded when all its workers have"),
        ("--role-sequence", True, "a job's instances start together"),
        ("--starting-timeout", True, "a job waits for its data and its GPUs without limit"),
    ),
}

_LAUNCH = (
    "ranks: mpirun starts COMMAND in each rank. launcher: COMMAND runs once and calls mpirun "
    "itself. auto: launcher if COMMAND or its script names mpirun, mpiexec or horovodrun.",
    "ranks: torchrun starts COMMAND. launcher: COMMAND runs once for each worker and calls "
    "torchrun itself. auto: launcher if COMMAND or its script names torchrun.",
)


def options_of(trainer: str) -> list[click.Parameter]:
    return [
        *_first(),
        *_resources(trainer),
        *_running(trainer),
        *_last(),
        *_without_effect(trainer),
        click.Argument(
            ["words"], nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED
        ),
    ]


def our_name(name: str) -> str:
    return _RENAMED.get(name, name)


def flags_without_effect(trainer: str, options: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason, with the given options that it applies to."""
    given: dict[str, list[str]] = {}
    for name, _, why in (*OF_ALL, *OF_ONE.get(trainer, ())):
        if options.get(_parameter(name)):
            given.setdefault(why, []).append(name)
    return [f"no effect here: {', '.join(names)} ({why})" for why, names in given.items()]


def _first() -> list[click.Parameter]:
    return [
        click.Option(["--name"], metavar="NAME", help="The job's name.  [required]"),
        click.Option(
            ["-d", "--data"],
            multiple=True,
            metavar="DATASET:/PATH",
            help="A data set, read-only at this path inside the job: imagenet:/data, "
            "NAMESPACE/imagenet:/data, imagenet:/data:FOLDER for a folder of it. "
            "May be given several times.",
        ),
        click.Option(
            ["-e", "--env"],
            multiple=True,
            metavar="KEY[=VALUE]",
            help="A variable of the job's environment; KEY alone takes its value from yours.",
        ),
        click.Option(
            ["--working-dir"],
            metavar="DIR",
            help="Where the command runs. [the current folder]",
        ),
        click.Option(
            ["--image"], metavar="IMAGE", help="Run in this image, with docker or podman."
        ),
    ]


def _resources(trainer: str) -> list[click.Parameter]:
    servers = click.Option(
        ["--ps"],
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help="Parameter servers.",
    )
    # Refused where they ask for what a parameter server cannot have here.
    of_servers = [
        click.Option(["--ps-image"], hidden=True),
        click.Option(["--ps-gpus"], type=click.IntRange(0), hidden=True),
    ]
    return [
        click.Option(
            ["--workers"],
            type=click.IntRange(1),
            default=1,
            show_default=True,
            metavar="N",
            help="Number of workers.",
        ),
        click.Option(
            ["--gpus"],
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="N",
            help="GPUs of each worker.",
        ),
        click.Option(["--cpu"], metavar="CORES", help="CPU limit of each worker: 2, 500m."),
        click.Option(["--memory"], metavar="SIZE", help="Memory limit of each worker: 4Gi."),
        click.Option(
            ["--device"],
            multiple=True,
            metavar="RESOURCE=N",
            help="GPUs of each worker, as Kubernetes names them: nvidia.com/gpu=2.",
        ),
        *([servers, *of_servers] if trainer == "tf" else ()),
    ]


def _running(trainer: str) -> list[click.Parameter]:
    launch = click.Option(
        ["--launch"],
        type=click.Choice(["auto", "ranks", "launcher"]),
        default="auto",
        show_default=True,
        help=_LAUNCH[trainer == "pytorch"],
    )
    return [
        *([launch] if trainer != "tf" else ()),
        click.Option(["--warm"], is_flag=True, help="Load the data sets first, then start."),
        click.Option(
            ["--plan"],
            is_flag=True,
            help="Run COMMAND with `penstock run`, which plans its reads.",
        ),
        click.Option(
            ["--retry"],
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="N",
            help="Retry up to N times after a failure.",
        ),
        click.Option(
            ["--timeout"],
            metavar="DURATION",
            help="End an attempt after this time: 90s, 2h22m. Also --running-timeout.",
        ),
        click.Option(
            ["--ttl"],
            metavar="DURATION",
            help="Delete the job and its logs this long after its end. [never] "
            "Also --ttl-after-finished.",
        ),
        click.Option(
            ["-p", "--priority"],
            default="0",
            show_default=True,
            metavar="N",
            help="Jobs with a higher priority start first: a number, or the name of a class in "
            "the configuration file.",
        ),
        click.Option(
            ["--shell"],
            default="sh",
            show_default=True,
            metavar="SHELL",
            help="The shell that runs a COMMAND of one word.",
        ),
    ]


def _last() -> list[click.Parameter]:
    return [
        click.Option(
            ["-l", "--label"], multiple=True, metavar="KEY=VALUE", help="A label of the job."
        ),
        click.Option(
            ["-a", "--annotation"],
            multiple=True,
            metavar="KEY=VALUE",
            help="An annotation of the job.",
        ),
        # A job sees the files of this machine at their own paths; other targets are refused.
        click.Option(["--data-dir"], multiple=True, hidden=True),
        click.Option(["--config-file"], multiple=True, hidden=True),
        click.Option(["-n", "--namespace"], metavar="NAME", help="[default: default]"),
        click.Option(["--dry-run"], is_flag=True, help="Check everything, submit nothing."),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(["yaml", "json"]),
            help="With --dry-run: print the manifest; checks only its fields.",
        ),
        click.Option(
            ["--wait"],
            is_flag=True,
            help="Return when the job has ended; exit with 4 if it failed.",
        ),
    ]


def _without_effect(trainer: str) -> list[click.Option]:
    return [
        click.Option(
            [name, _parameter(name)], hidden=True, multiple=takes_value, is_flag=not takes_value
        )
        for name, takes_value, _ in (*OF_ALL, *OF_ONE.get(trainer, ()))
    ]


def _parameter(name: str) -> str:
    return "unused_" + name.strip("-").replace("-", "_").lower()
