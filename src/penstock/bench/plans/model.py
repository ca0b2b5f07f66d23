"""The values of a benchmark: a plan, its experiments, and what one experiment is told. Pure.

A plan is what a person wrote, with every default filled in. `Experiment` is one measurement of
it. `ExperimentConfig` is the CONFIG.json that the process of one experiment is started with; it
and all below it go to JSON and back by `to_json` and `config_from_json`.
"""

from collections.abc import Mapping
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
