"""The values of a benchmark: a plan, its experiments, and what one experiment is given. Pure.

A plan is what a person wrote, with every default filled in. `Experiment` is one measurement of
it. `ExperimentConfig` is the CONFIG.json that the process of one experiment is started with; it
and all below it go to JSON and back by `to_json` and `config_from_json`.
"""

import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from penstock.units import format_bit_rate

System = Literal["native", "rclone", "s3fs", "juicefs", "alluxio", "penstock", "ceiling"]
CacheState = Literal["cold", "warm", "planned", "loaded"]
WorkloadKind = Literal["read", "states", "emulated", "loader", "job", "catalog", "resources"]
PlannedBy = Literal["run", "sampler"]
ReadState = Literal["cold", "cached", "warm"]
Measure = Literal[
    "files-per-s", "busy", "fetched", "first-batch-round-trips", "hits", "ready-s", "memory-mb"
]
Model = Literal["resnet50", "unet3d", "cosmoflow", "retinanet"]
Accelerator = Literal["v100", "a100", "h100", "b200"]
Form = Literal["jpeg", "tfrecord", "webdataset", "small", "large", "given"]

# They measure Penstock's own management of many names or many mounts, and read no data set.
WITHOUT_DATA: tuple[WorkloadKind, ...] = ("catalog", "resources")
SCHEMA = 2  # of CONFIG.json

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One system in one state.

    cold: nothing is cached anywhere when the first epoch begins. warm: the whole data set (or
    what of it the cache may hold) is in the system's cache before. planned: cold, and the system
    knows the order of each epoch, which makes the run a hinted one. loaded: cold, and the data set
    is loaded before the first epoch while the accelerator waits: that time counts.
    """

    name: str
    system: System
    state: CacheState
    cache_share: float = 1.0  # of the data set's bytes; 0: without a cache
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    drops_pages: bool = True  # the kernel's pages are dropped before each epoch, too
    planned_by: PlannedBy = "run"  # with a loader: `penstock run`, or a sampler in the script
    datasets: tuple[str, ...] = ()  # only these; all if empty


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What reads the data set, or what else is measured.

    read: epochs of open, read, close. states: the same in the states cold, cached and warm, beside
    native files and a bare client. emulated: an accelerator that is busy for MLPerf Storage's
    published step time on each batch. loader: the same behind a real PyTorch DataLoader. job: a
    TrainingJob, whose manifest (a map) is in `job`. catalog: a mount of `count` names from its
    saved catalog. resources: `count` Datasets that are applied, listed and deleted.
    """

    name: str
    kind: WorkloadKind
    model: Model | None = None
    accelerator: Accelerator | None = None
    accelerators: tuple[int, ...] = (1,)  # how many at once; each count is measured
    epochs: int = 2
    readers: int = 4
    scale: float = 1.0  # of the accelerator's demand: the step stays, the batch shrinks
    job: Mapping[str, Any] | None = None
    reader_counts: tuple[int, ...] = ()  # of states: each is measured, in rising order
    states: tuple[ReadState, ...] = ()  # of states: which are measured
    rounds: int = 5  # of states: how often a warm epoch is repeated
    cold_rounds: int = 1  # of states: how often Penstock's cold epochs are repeated
    workers: int = 8  # of a loader
    count: int | None = None  # of catalog and resources
    arms: tuple[str, ...] = ()  # only these; all if empty
    datasets: tuple[str, ...] = ()  # only these; all if empty

    @property
    def emulates(self) -> bool:
        """Return whether an accelerator is emulated."""
        return self.kind in ("emulated", "loader")


@dataclass(frozen=True, slots=True)
class Shape:
    """The network between the reader and the store."""

    name: str
    latency_s: float = 0.0  # added to each request
    bytes_per_s: float | None = None  # None: as fast as it goes

    @property
    def plain(self) -> bool:
        return self.latency_s == 0 and self.bytes_per_s is None

    @property
    def details(self) -> str:
        latency = f"{self.latency_s * 1000:g} ms a request" if self.latency_s else "no added delay"
        rate = format_bit_rate(self.bytes_per_s) if self.bytes_per_s else "no limit of bandwidth"
        return f"{latency}, {rate}"


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """What is read. `given`: the files below `path`, as they are; they are described, not made."""

    form: Form
    files: int | None = None  # how many; else as many as `size_bytes` takes
    size_bytes: int | None = None  # together, about
    seed: int = 1
    keep: bool = False  # stays in the bucket after the run
    path: str | None = None  # of `given`
    name: str = "data"

    @property
    def is_in_bucket(self) -> bool:
        """Return whether the run finds it in the bucket, and does not put it there."""
        return self.form == "given" and self.path is None


@dataclass(frozen=True, slots=True)
class GoalPlan:
    """A figure that an arm must reach. Fields that are None or empty apply to everything.

    `of` is what the figure is divided by: native (files read beside it), client (the bare client
    beside it), peers (the fastest other system of the run), or the name of an arm.
    """

    arm: str
    measure: Measure
    at_least: float | None = None
    at_most: float | None = None
    of: str | None = None
    workload: str | None = None
    dataset: str | None = None
    state: ReadState | None = None
    readers: int | Literal["most"] | None = None
    epoch: Literal["first", "later"] = "first"
    least_cores: int = 0
    most_cores: int | None = None


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
    """A whole benchmark."""

    name: str
    seed: int
    repeats: int
    parallel: int
    timeout_s: float  # of one experiment
    retries: int  # of one experiment
    store: StorePlan
    datasets: tuple[DatasetPlan, ...]
    arms: tuple[ArmPlan, ...]
    workloads: tuple[WorkloadPlan, ...]
    network: tuple[Shape, ...]
    goals: tuple[GoalPlan, ...] = ()
    result_path: str | None = None  # s3ResultPath: where the results are copied to


@dataclass(frozen=True, slots=True)
class Experiment:
    """One measurement. `order` is its place in the run, `seed` its own."""

    id: str
    arm: ArmPlan
    workload: WorkloadPlan
    shape: Shape
    dataset: str  # its name; empty for a workload that reads none
    repeat: int
    order: int
    seed: int


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How an experiment reaches the store. It starts its own shaper (bench/shaper.py), so that each
    of several at once has its own line and its own counters.

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
    metrics_port: int | None = None  # of a local server: its own counters


@dataclass(frozen=True, slots=True)
class DatasetAccess:
    """The data set as files: `root` is read by the native arm, and compared with.

    `manifest` is datasets/NAME.json as `make_dataset` described it: form, files, size_bytes,
    sha256, seed, samples. Paths below `root` are the keys below the store's prefix.
    """

    manifest: str
    root: str


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """CONFIG.json. All folders exist; `medium` is where the experiment makes its Workspace."""

    run: str
    experiment: Experiment
    store: StoreAccess
    dataset: DatasetAccess | None
    output: str  # result.json, series.json, steps.json, latencies.json
    logs: str  # of the systems; standard error goes to one there already
    medium: str
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def config_from_json(value: Mapping[str, Any]) -> ExperimentConfig:
    if value["schema"] != SCHEMA:
        raise ValueError(f"schema {value['schema']}, and this program reads {SCHEMA}")
    return _from_json(ExperimentConfig, value)


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    return _from_json(Plan, value)


def _from_json(kind: type[_Kind], value: Mapping[str, Any]) -> _Kind:
    """Return a value whose dataclass, and those below it, say what its fields are."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {first['msg']}") from None


def config_path(run: Path, experiment_id: str) -> Path:
    return run / "experiments" / experiment_id / "config" / "experiment.json"


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
            ArmPlan("rclone-cold", "rclone", "cold", drops_pages=False),
            "rclone mount, its cache empty when the first epoch begins",
        ),
        (
            ArmPlan("s3fs", "s3fs", "cold", 0.0),
            "s3fs without a cache: each read goes to the store",
        ),
        (
            ArmPlan("s3fs-cold", "s3fs", "cold", drops_pages=False),
            "s3fs, its cache empty when the first epoch begins",
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
            ArmPlan("alluxio", "alluxio", "cold", drops_pages=False),
            "Alluxio, its caches empty when the first epoch begins",
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
            ArmPlan(
                "penstock-passthrough", "penstock", "cold", 1.0, {"mode": "passthrough"}, False
            ),
            "the same in passthrough mode: the kernel reads complete files of the cache itself",
        ),
        (
            ArmPlan("penstock-planned", "penstock", "planned", drops_pages=False),
            "the same, and `penstock run` tells the mount the order of each epoch; reported as "
            "hinted",
        ),
        (
            ArmPlan(
                "penstock-sampler", "penstock", "planned", drops_pages=False, planned_by="sampler"
            ),
            "for a loader: the script wraps its sampler in PlannedSampler; reported as hinted",
        ),
        (
            ArmPlan("penstock-loaded", "penstock", "loaded", drops_pages=False),
            "for a loader: `penstock warm` loads everything first, and its time counts as waiting",
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
    """Return every experiment of a plan: all of them once, then all again, in seeded orders."""
    draw = random.Random(f"{plan.name} {plan.seed}")
    found: list[Experiment] = []
    for repeat in range(plan.repeats):
        combinations = list(_combinations(plan))
        draw.shuffle(combinations)
        for arm, workload, shape, dataset in combinations:
            tail = "".join(draw.choices(string.ascii_lowercase, k=4))
            named = [arm.name, workload.name, shape.name]
            if len(plan.datasets) > 1 and dataset:
                named.append(dataset)
            found.append(
                Experiment(
                    id="-".join([*named, f"r{repeat}", tail]),
                    arm=arm,
                    workload=workload,
                    shape=shape,
                    dataset=dataset,
                    repeat=repeat,
                    order=len(found),
                    # The same for all arms: they read the same files in the same order.
                    seed=random.Random(f"{plan.seed} {workload.name} {repeat}").getrandbits(31),
                )
            )
    return tuple(found)


def _combinations(plan: Plan) -> Iterator[tuple[ArmPlan, WorkloadPlan, Shape, str]]:
    names = [dataset.name for dataset in plan.datasets]
    for arm in plan.arms:
        for workload in plan.workloads:
            if workload.arms and arm.name not in workload.arms:
                continue
            # Without I/O there is nothing to read, and no file for a job to open.
            if arm.system == "ceiling" and workload.kind != "emulated":
                continue
            if workload.kind in WITHOUT_DATA:
                if arm.system == "penstock":
                    yield arm, workload, plan.network[0], ""
                continue
            for shape in plan.network:
                for name in names:
                    if name in (workload.datasets or names) and name in (arm.datasets or names):
                        yield arm, workload, shape, name


def read_bytes(experiment: Experiment, size_bytes: int) -> int:
    """Return what it reads in all of its epochs, about; native neighbours are left out."""
    workload = experiment.workload
    if experiment.arm.system == "ceiling":
        return 0
    if workload.kind == "states":  # each count of readers cold, cached and warm
        cold = len(workload.reader_counts) * workload.cold_rounds
        return size_bytes * (cold + len(workload.reader_counts) * (3 + workload.rounds))
    passes = len(workload.accelerators) if workload.kind == "emulated" else 1
    return size_bytes * workload.epochs * passes


def store_bytes(experiment: Experiment, size_bytes: int) -> int:
    """Return what of it comes from the store, about: the data set once; with a small cache, what
    does not fit into it again and again."""
    arm, workload = experiment.arm, experiment.workload
    if arm.system in ("native", "ceiling"):
        return 0
    if workload.kind == "states":
        return size_bytes * len(workload.reader_counts) * workload.cold_rounds
    epochs = read_bytes(experiment, size_bytes) // size_bytes if size_bytes else 0
    missed = (epochs - 1) * (1 - arm.cache_share) if epochs else 0
    return int(size_bytes * (1 + missed))


def medium_bytes(plan: Plan, experiments: tuple[Experiment, ...], sizes: Mapping[str, int]) -> int:
    """Return what must be free: the data sets as files and as objects of a local store, the caches
    of the experiments that run at once, and JuiceFS's objects."""

    def one(experiment: Experiment) -> int:
        arm, size_bytes = experiment.arm, sizes.get(experiment.dataset, 0)
        if arm.system in ("native", "ceiling"):
            return 0
        caches = 2 if arm.system == "alluxio" else 1  # the worker's, and the FUSE process's
        cache = int(size_bytes * arm.cache_share * 1.25) * caches
        # A local store frees the space of an experiment's objects when the next one has ended.
        copies = 0 if arm.system != "juicefs" else 2 if plan.store.local else 1
        return cache + copies * size_bytes

    largest = sorted(map(one, experiments), reverse=True)[: plan.parallel]
    copies = 2 if plan.store.local else 1
    return copies * sum(sizes.values()) + sum(largest) + (256 << 20)
