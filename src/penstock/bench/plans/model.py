"""The values of a benchmark: a plan, its experiments, and what one experiment is told. Pure.

A plan is what a person wrote, with every default filled in. `Experiment` is one measurement of
it. `ExperimentConfig` is the CONFIG.json that the process of one experiment is started with; it
and all below it go to JSON and back by `to_json` and `config_from_json`.
"""

import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

System = Literal["native", "rclone", "s3fs", "juicefs", "penstock", "ceiling"]
CacheState = Literal["cold", "warm", "planned"]
WorkloadKind = Literal["read", "emulated", "job"]
Model = Literal["resnet50", "unet3d", "cosmoflow", "retinanet"]
Accelerator = Literal["v100", "a100", "h100", "b200"]
Form = Literal["jpeg", "tfrecord", "webdataset", "small", "large", "given"]

SCHEMA = 1  # of CONFIG.json


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One system in one state.

    cold: nothing is cached anywhere when the first epoch begins. warm: the whole data set (or
    what of it the cache may hold) is in the system's cache before. planned: cold, and the system
    is told the order of each epoch (`penstock run`), which makes the run a hinted one.
    """

    name: str
    system: System
    state: CacheState
    cache_share: float = 1.0  # of the data set's bytes; 0: without a cache
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    drops_pages: bool = True  # the kernel's pages are dropped before each epoch, too


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What reads the data set.

    read: epochs of open, read, close. emulated: an accelerator that is busy for MLPerf Storage's
    published step time on each batch. job: a TrainingJob, whose manifest (a map) is in `job`.
    """

    name: str
    kind: WorkloadKind
    model: Model | None = None
    accelerator: Accelerator | None = None
    accelerators: tuple[int, ...] = (1,)  # how many at once; each count is measured
    epochs: int = 2
    readers: int = 4
    scale: float = 1.0  # of the accelerator's hunger: the step stays, the batch shrinks
    job: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The network between the reader and the store."""

    name: str
    latency_s: float = 0.0  # added to each request
    bytes_per_s: float | None = None  # None: as fast as it goes

    @property
    def plain(self) -> bool:
        return self.latency_s == 0 and self.bytes_per_s is None


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """What is read. `given`: the files below `path`, as they are; they are described, not made."""

    form: Form
    files: int | None = None  # how many; else as many as `size_bytes` takes
    size_bytes: int | None = None  # together, about
    seed: int = 1
    keep: bool = False  # stays in the bucket after the run
    path: str | None = None  # of `given`


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Where the data set lies. `local`: a server that the run starts, and ends."""

    local: bool
    dataset_path: str | None = None  # s3DatasetPath
    endpoint: str | None = None
    region: str | None = None
    secret_name: str | None = None  # a declared Secret; None: keys from the environment
    access_key_name: str = "AWS_ACCESS_KEY_ID"  # its keys
    secret_key_name: str = "AWS_SECRET_ACCESS_KEY"


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it."""

    name: str
    seed: int
    repeats: int
    parallel: int
    timeout_s: float  # of one experiment
    retries: int  # of one experiment
    store: StorePlan
    dataset: DatasetPlan
    arms: tuple[ArmPlan, ...]
    workloads: tuple[WorkloadPlan, ...]
    network: tuple[Shape, ...]
    result_path: str | None = None  # s3ResultPath: where the results are copied to


@dataclass(frozen=True, slots=True)
class Experiment:
    """One measurement. `order` is its place in the run, `seed` its own."""

    id: str
    arm: ArmPlan
    workload: WorkloadPlan
    shape: Shape
    repeat: int
    order: int
    seed: int


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How an experiment reaches the store. It shapes the network itself (bench/shaper.py), so that
    each of several at once has its own line and its own counters.

    `keys_file` is JSON, readable by its owner alone: {"access_key": …, "secret_key": …} and
    perhaps "session_token"; None: no keys are needed, or the environment's are used.
    What an experiment itself writes to the store (JuiceFS keeps objects of its own shape) goes
    below `scratch_name`/ in `scratch_bucket`, both of which are there when it starts; the runner
    removes it. The name fits as the name of a JuiceFS volume.
    """

    local: bool
    endpoint: str | None  # None: the provider's own
    region: str
    bucket: str
    prefix: str  # of the data set in it: "" or "a/b/"
    keys_file: str | None
    scratch_bucket: str
    scratch_name: str


@dataclass(frozen=True, slots=True)
class DatasetAccess:
    """The data set as files: `root` is read by the native arm, and by whoever wants the truth.

    `manifest` is dataset.json as `make_dataset` described it: form, files, size_bytes, sha256,
    seed, samples. Paths below `root` are the keys below the store's prefix.
    """

    manifest: str
    root: str


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """CONFIG.json. All folders exist; `medium` is where the experiment makes its Workspace."""

    run: str
    experiment: Experiment
    store: StoreAccess
    dataset: DatasetAccess
    output: str  # result.json, series.json, steps.json, latencies.json
    logs: str  # of the systems; standard error goes to one there already
    medium: str
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def config_from_json(value: Mapping[str, Any]) -> ExperimentConfig:
    if value["schema"] != SCHEMA:
        raise ValueError(f"schema {value['schema']}, and this program reads {SCHEMA}")
    return ExperimentConfig(
        run=value["run"],
        experiment=experiment_from_json(value["experiment"]),
        store=StoreAccess(**value["store"]),
        dataset=DatasetAccess(**value["dataset"]),
        output=value["output"],
        logs=value["logs"],
        medium=value["medium"],
    )


def experiment_from_json(value: Mapping[str, Any]) -> Experiment:
    return Experiment(
        id=value["id"],
        arm=ArmPlan(**value["arm"]),
        workload=_workload_from_json(value["workload"]),
        shape=Shape(**value["shape"]),
        repeat=value["repeat"],
        order=value["order"],
        seed=value["seed"],
    )


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    whole = dict(value)
    whole["store"] = StorePlan(**whole["store"])
    whole["dataset"] = DatasetPlan(**whole["dataset"])
    whole["arms"] = tuple(ArmPlan(**arm) for arm in whole["arms"])
    whole["workloads"] = tuple(map(_workload_from_json, whole["workloads"]))
    whole["network"] = tuple(Shape(**shape) for shape in whole["network"])
    return Plan(**whole)


def config_path(run: Path, experiment_id: str) -> Path:
    return run / "experiments" / experiment_id / "config" / "experiment.json"


def _workload_from_json(value: Mapping[str, Any]) -> WorkloadPlan:
    whole: dict[str, Any] = dict(value)
    whole["accelerators"] = tuple(whole["accelerators"])
    return WorkloadPlan(**whole)


ARMS: Mapping[str, tuple[ArmPlan, str]] = {
    arm.name: (arm, meaning)
    for arm, meaning in (
        (
            ArmPlan("ceiling", "ceiling", "warm", drops_pages=False),
            "batches from memory, no I/O at all: what the workload reaches at best",
        ),
        (
            ArmPlan("native", "native", "warm", drops_pages=False),
            "the same files on the local medium, without a mount",
        ),
        (
            ArmPlan("rclone", "rclone", "cold", 0.0),
            "rclone mount without a cache: each read goes to the store",
        ),
        (
            ArmPlan("s3fs", "s3fs", "cold", 0.0),
            "s3fs without a cache: each read goes to the store",
        ),
        (
            ArmPlan("juicefs-none", "juicefs", "cold", 0.0),
            "JuiceFS without a cache; it keeps objects of its own shape in the store",
        ),
        (
            ArmPlan("juicefs", "juicefs", "cold", drops_pages=False),
            "JuiceFS, its cache empty when the first epoch begins",
        ),
        (
            ArmPlan("juicefs-warm", "juicefs", "warm", drops_pages=False),
            "JuiceFS, its cache full before the first epoch",
        ),
        (
            ArmPlan("penstock-none", "penstock", "cold", 0.0),
            "Penstock without a cache: each read goes to the store",
        ),
        (
            ArmPlan("penstock-cold", "penstock", "cold", drops_pages=False),
            "Penstock, its cache empty when the first epoch begins",
        ),
        (
            ArmPlan("penstock-planned", "penstock", "planned", drops_pages=False),
            "the same, told the order of each epoch; reported as hinted",
        ),
        (
            ArmPlan("penstock-warm", "penstock", "warm", drops_pages=False),
            "Penstock, its cache full before the first epoch",
        ),
        *(
            (
                ArmPlan(f"penstock-{percent}", "penstock", "cold", percent / 100),
                f"Penstock with room for {percent}% of the data set; pages are dropped before each "
                "epoch, so that the cache alone counts",
            )
            for percent in (25, 50, 75)
        ),
    )
}


def expand(plan: Plan) -> tuple[Experiment, ...]:
    draw = random.Random(f"{plan.name} {plan.seed}")
    found: list[Experiment] = []
    for repeat in range(plan.repeats):
        combinations = list(_combinations(plan))
        draw.shuffle(combinations)
        for arm, workload, shape in combinations:
            tail = "".join(draw.choices(string.ascii_lowercase, k=4))
            found.append(
                Experiment(
                    id=f"{arm.name}-{workload.name}-{shape.name}-r{repeat}-{tail}",
                    arm=arm,
                    workload=workload,
                    shape=shape,
                    repeat=repeat,
                    order=len(found),
                    # The same for all arms: they read the same files in the same order.
                    seed=random.Random(f"{plan.seed} {workload.name} {repeat}").getrandbits(31),
                )
            )
    return tuple(found)


def _combinations(plan: Plan) -> Iterator[tuple[ArmPlan, WorkloadPlan, Shape]]:
    for arm in plan.arms:
        for workload in plan.workloads:
            # Without I/O there is nothing to read, and no file for a job to open.
            if arm.system == "ceiling" and workload.kind != "emulated":
                continue
            for shape in plan.network:
                yield arm, workload, shape


def read_bytes(experiment: Experiment, size_bytes: int) -> int:
    """What it reads in all of its epochs."""
    if experiment.arm.system == "ceiling":
        return 0
    workload = experiment.workload
    passes = len(workload.accelerators) if workload.kind == "emulated" else 1
    return size_bytes * workload.epochs * passes


def store_bytes(experiment: Experiment, size_bytes: int) -> int:
    """What of it comes from the store, about: the data set once; with a small cache, what does not
    fit in it again and again."""
    arm = experiment.arm
    if arm.system in ("native", "ceiling"):
        return 0
    epochs = read_bytes(experiment, size_bytes) // size_bytes if size_bytes else 0
    missed = (epochs - 1) * (1 - arm.cache_share) if epochs else 0
    return int(size_bytes * (1 + missed))


def medium_bytes(plan: Plan, experiments: tuple[Experiment, ...], size_bytes: int) -> int:
    """What must be free: the data set as files and as objects of a local store, the caches of the
    experiments that run at once, and JuiceFS's objects."""

    def one(experiment: Experiment) -> int:
        arm = experiment.arm
        if arm.system in ("native", "ceiling"):
            return 0
        cache = int(size_bytes * arm.cache_share * 1.25)
        # A local store frees the space of an experiment's objects when the next one has ended.
        copies = 0 if arm.system != "juicefs" else 2 if plan.store.local else 1
        return cache + copies * size_bytes

    largest = sorted(map(one, experiments), reverse=True)[: plan.parallel]
    copies = 2 if plan.store.local else 1
    return copies * size_bytes + sum(largest) + (256 << 20)
