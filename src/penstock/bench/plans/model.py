"""A plan: its fields as people write them, with what each means. Pure.

Names are those of the EKS deep learning benchmark where the same thing is meant (s3DatasetPath,
s3ResultPath, storageBackend, experiments, …). Checked by the machinery of manifests, so a mistake
has its line, and a slip of the pen its nearest name. A plan goes to JSON and back as it is, so that
a run can be resumed.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from penstock.bench.plans.known_arms import ArmPlan, named
from penstock.errors import OptionError, SourceError
from penstock.specs.fields import Count, Fields, FreeMap, TextMap, field, invalid
from penstock.specs.resource import Name
from penstock.store.source import parse_source
from penstock.units import parse_duration, parse_rate, parse_size

WorkloadKind = Literal["read", "emulated", "loader", "catalog", "resources", "random", "job"]
ReadState = Literal["cold", "cached", "warm"]
Form = Literal["jpeg", "tfrecord", "webdataset", "small", "large", "given"]

# They measure Penstock alone, with many names, many mounts or one file, and read no data set.
WITHOUT_DATA: tuple[WorkloadKind, ...] = ("catalog", "resources", "random")


def _measured(parse: Callable[..., Any]) -> BeforeValidator:
    """Return what turns text such as `64MiB` into a number; JSON has the number already."""

    def parsed(value: Any, info: ValidationInfo) -> Any:
        if info.mode == "json":
            return value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise invalid("must be text", "write it like 64MiB, 20ms or 50Mbit")
        written = value if isinstance(value, str) else format(Decimal(str(value)), "f")
        try:
            return parse(written, what="it")
        except OptionError as error:
            raise invalid(str(error).removeprefix("it: "), error.hint) from None

    return BeforeValidator(parsed)


def _source(text: str) -> str:
    try:
        parse_source(text)
    except SourceError as error:
        raise invalid(str(error), error.hint) from None
    return text


def _as_list(value: Any) -> Any:
    """`readers: 4` means `readers: [4]`."""
    return cast("list[Any]", value) if isinstance(value, list) else [value]


Seconds = Annotated[float, _measured(parse_duration)]
SourceText = Annotated[str, AfterValidator(_source)]
Positive = Annotated[Count, Field(ge=1)]
Rising = AfterValidator(lambda counts: sorted(set(counts)))


class WorkloadPlan(Fields):
    """What reads the data set, or what else is measured."""

    name: Name = field("Its name in ids and tables.", required=True)
    kind: WorkloadKind = field(
        "read: files are opened, read and closed as fast as they go, cold, cached and warm, by "
        "each of `readers`, each epoch beside native files, and Penstock's cold ones beside a bare "
        "client too; emulated: an accelerator that is busy for MLPerf Storage's published step "
        "time on each batch; loader: the same, fed by a real PyTorch DataLoader; catalog: Penstock "
        "mounts `count` names from a saved catalog; resources: Penstock applies, lists and deletes "
        "`count` Datasets; random: fio reads a file of `count` MiB, which is in the local cache, "
        "in random order, in both modes, beside the cached file itself.",
        default="read",
    )
    model: Literal["resnet50", "unet3d", "cosmoflow", "retinanet"] | None = field(
        "Of an emulated accelerator: what it trains."
    )
    accelerator: Literal["v100", "a100", "h100", "b200"] | None = field(
        "Of an emulated accelerator: which one."
    )
    accelerators: Annotated[list[Positive], Field(min_length=1), Rising] = field(
        "How many emulated accelerators read at once; each count is measured.", factory=lambda: [1]
    )
    epochs: Positive = field(
        "Of `emulated` and `loader`: how often the data set is read.", default=2
    )
    readers: Annotated[list[Positive], BeforeValidator(_as_list), Field(min_length=1)] = field(
        "Of `read`: how many processes read; of a list, each is measured.",
        factory=lambda: [4],
    )
    scale: Annotated[float, Field(gt=0, le=1)] = field(
        "Makes an emulated accelerator smaller: its step takes as long, its batch shrinks. For "
        "machines that could not feed a whole one; the report says it.",
        default=1.0,
    )
    workers: Positive = field("Of a loader: its worker processes.", default=8)
    states: Annotated[list[ReadState], Field(min_length=1)] = field(
        "Of `read`: which are measured, of those that an arm can be in. The first epoch of a "
        "planned arm takes the place of the cold one.",
        factory=lambda: ["cold", "cached", "warm"],
    )
    rounds: Positive = field("Of `read`: how many warm epochs are measured.", default=5)
    cold_rounds: Positive = field(
        "Of `read`: how often Penstock's cold epochs are measured, each with a fresh mount.",
        default=1,
    )
    count: Positive | None = field(
        "Of `catalog`, `resources` and `random`: how many names, Datasets or MiB."
    )
    arms: list[str] = field("Only these arms; all by default.", factory=list)
    datasets: list[str] = field("Only these data sets; all by default.", factory=list)

    _accepts_name = model_validator(mode="before")(staticmethod(named))

    @property
    def reader_counts(self) -> tuple[int, ...]:
        """Return the numbers of readers that `read` measures, in rising order."""
        return tuple(sorted(set(self.readers)))

    @property
    def emulates(self) -> bool:
        """Return whether an accelerator is emulated."""
        return self.kind in ("emulated", "loader")

    @model_validator(mode="after")
    def _is_whole(self) -> "WorkloadPlan":
        if self.kind == "job" and not isinstance(self, JobPlan):
            raise invalid("kind: job is for training jobs", "list it in `experiments`")
        if self.emulates and (self.model is None or self.accelerator is None):
            hint = "for example model: resnet50 and accelerator: h100"
            raise invalid(f"kind: {self.kind} needs model and accelerator", hint)
        if not self.emulates and (self.model or self.accelerator):
            raise invalid(
                "model and accelerator go with kind: emulated or loader", "kind: emulated"
            )
        if (self.model == "retinanet") != (self.accelerator == "b200") and self.model:
            raise invalid(
                f"there is no published step time of {self.model} on {self.accelerator}",
                "resnet50, unet3d and cosmoflow have v100, a100 and h100; retinanet has b200",
            )
        if self.kind != "read" and len(self.readers) > 1:
            raise invalid("several counts of readers go with kind: read", "kind: read")
        if self.kind != "emulated" and self.accelerators != [1]:
            raise invalid("accelerators go with kind: emulated", "kind: emulated")
        if (self.kind in WITHOUT_DATA) != (self.count is not None):
            raise invalid("count goes with kind: catalog, resources or random", "count: 200")
        return self


class JobPlan(WorkloadPlan):
    """A workload that is a training job: an item of `experiments`, with its manifest read."""

    manifest: FreeMap = field("The TrainingJob.", required=True)


class Shape(Fields):
    """The line between the reader and the store."""

    name: Name = field("Its name in ids and tables.", required=True)
    latency_s: Seconds = field("Added to each request: 20ms.", default=0.0, alias="latency")
    bytes_per_s: Annotated[float, _measured(parse_rate)] | None = field(
        "Shared by all bodies: 50Mbit. No limit by default.", alias="bandwidth"
    )

    _accepts_name = model_validator(mode="before")(staticmethod(named))

    @field_validator("bytes_per_s")
    @classmethod
    def _is_some(cls, value: float | None) -> float | None:
        if value is not None and value < 1000:
            raise invalid("less than 1,000 bytes a second", "write it like 50Mbit")
        return value

    @property
    def plain(self) -> bool:
        return self.latency_s == 0 and self.bytes_per_s is None


class DatasetPlan(Fields):
    """What is read: made from its seed for each run, or given."""

    name: Name = field("Its name, where a plan has several.", default="data")
    form: Form = field(
        "jpeg: single pictures, sizes as in ImageNet; tfrecord: records of such pictures in files "
        "of 130 MB; webdataset: the same in tars; small: files of 110 KiB; large: files of 128 "
        "MiB; given: files that are there already.",
        default="jpeg",
    )
    files: Positive | None = field("How many files.")
    size_bytes: Annotated[int, _measured(parse_size)] | None = field(
        "How much together, about: 64MiB. In place of `files`.", alias="size"
    )
    seed: Count = field("What it is made from: the same seed gives the same bytes.", default=1)
    keep: bool = field(
        "Whether it stays in the bucket after the run; for storageBackend: s3.", default=False
    )
    path: str | None = field(
        "Of `given`: a folder of this machine. Without it, what lies at s3DatasetPath, which is "
        "copied to this machine first."
    )

    @property
    def is_in_bucket(self) -> bool:
        """Return whether the run finds it in the bucket, and does not put it there."""
        return self.form == "given" and self.path is None

    @model_validator(mode="after")
    def _is_whole(self) -> "DatasetPlan":
        if self.form == "given":
            if self.files or self.size_bytes:
                raise invalid("files and size are of a data set that is made", "leave them out")
            return self
        if self.path:
            raise invalid("path goes with form: given", "form: given")
        if self.files and self.size_bytes:
            raise invalid("has both files and size", "keep one of them")
        if not self.files and not self.size_bytes:
            raise invalid("has neither files nor size", "for example size: 64MiB")
        return self


class ExperimentFields(Fields):
    """A real training job, measured on every arm."""

    experiment: Name = field("Its name in ids and tables.", required=True)
    training_job_config: str = field(
        "A file with a TrainingJob; a relative path begins at the plan. The job finds the data "
        "set in the folder $DATA_DIR, the number of epochs in $EPOCHS and the plan's folder in "
        "$PLAN_DIR; its own `data` and `warm` are left out. After each epoch it prints one line of "
        "JSON with `epoch`, `images_per_s`, `data_wait_share` and `seconds`.",
        required=True,
    )
    epochs: Positive = field("How many epochs the job trains.", default=1)
    env: TextMap = field("More environment variables of the job.", factory=dict)
    arms: list[str] = field("Only these arms; all by default.", factory=list)
    datasets: list[str] = field("Only these data sets; all by default.", factory=list)


class GoalPlan(Fields):
    """A figure that an arm must reach; the report says whether it did."""

    arm: str = field("The arm whose figure it is.", required=True)
    measure: Literal[
        "files-per-s", "busy", "fetched", "first-batch-round-trips", "hits", "ready-s", "memory-mb"
    ] = field(
        "files-per-s: of a `read` workload, or samples/s of training; busy: the share of an "
        "epoch in which the accelerator works, the wait for the first batch included; fetched: "
        "bytes fetched from the store over bytes read; first-batch-round-trips: the wait for the "
        "first batch beyond that of native files and beyond the transfer of its bytes, over "
        "the latency; hits: the share of the bytes read that the local cache served; ready-s and "
        "memory-mb: of a `catalog` workload.",
        required=True,
    )
    at_least: float | None = field("What the figure must reach.")
    at_most: float | None = field("What the figure must not exceed.")
    of: str | None = field(
        "What the figure is divided by: native (files read beside it), client (the bare client "
        "beside it), peers (the fastest other system), or an arm's name."
    )
    workload: str | None = field("Only this workload.")
    dataset: str | None = field("Only this data set.")
    state: ReadState | Literal["planned"] | None = field("Of a `read` workload: which state.")
    readers: Positive | Literal["most"] | None = field(
        "Of a `read` workload: only this number of readers, or the most of the run."
    )
    epoch: Literal["first", "later"] = field("Of training: which epochs.", default="first")
    least_cores: Count = field("Only on machines with so many cores or more.", default=0)
    most_cores: Positive | None = field("Only on machines with so many cores or fewer.")

    @model_validator(mode="after")
    def _is_whole(self) -> "GoalPlan":
        if (self.at_least is None) == (self.at_most is None):
            raise invalid("needs atLeast or atMost", "for example atLeast: 0.95")
        if self.of is not None and self.measure != "files-per-s":
            raise invalid("of goes with measure: files-per-s", "leave it out")
        return self


def _is_plain(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.startswith("http://")


class PlanFields(Fields):
    """A benchmark, as it is written."""

    name: Name = field("Names the run, and its folder of results.", required=True)
    seed: Count = field("Of the order of experiments, and of their own seeds.", default=1)
    repeats: Positive = field(
        "How often each experiment is made; all of them once, then all of them again.", default=1
    )
    parallel: Positive = field(
        "How many experiments run at once. They then share the machine: good for counts, bad for "
        "times.",
        default=1,
    )
    timeout_s: Annotated[Seconds, Field(gt=0)] = field(
        "How long one experiment may take: 5m.", default=600.0, alias="timeout"
    )
    retries: Annotated[Count, Field(ge=0)] = field(
        "How often an experiment that failed is tried again.", default=0
    )
    storage_backend: Literal["local", "s3"] = field(
        "local: an S3 server on this machine, which the run starts and ends; s3: the bucket of "
        "s3DatasetPath.",
        default="local",
    )
    s3_dataset_path: SourceText | None = field(
        "Where the data set is, or is put: s3://bucket/prefix. With `local` not used."
    )
    s3_result_path: SourceText | None = field(
        "Where the results are copied to at the end: s3://bucket/prefix, file:///folder."
    )
    endpoint: str | None = field("Of s3DatasetPath and s3ResultPath: http://host:9000.")
    region: str | None = field("Of s3DatasetPath and s3ResultPath.")
    s3_secret_name: str = field(
        "Where the keys come from: `environment`, or the name of a Secret that was applied.",
        default="environment",
    )
    s3_secret_accesskeyid_key_name: str = field(
        "The key of that Secret that holds the access key's id.",
        default="AWS_ACCESS_KEY_ID",
        alias="s3SecretAccesskeyidKeyName",
    )
    s3_secret_secretaccesskey_key_name: str = field(
        "The key of that Secret that holds the secret access key.",
        default="AWS_SECRET_ACCESS_KEY",
        alias="s3SecretSecretaccesskeyKeyName",
    )
    dataset: DatasetPlan | None = field("What is read.")
    datasets: list[DatasetPlan] = field(
        "Several data sets, each with a name, in place of `dataset`.", factory=list
    )
    arms: Annotated[list[ArmPlan], Field(min_length=1)] = field(
        "The systems that are compared: names, or maps.", required=True
    )
    workloads: list[WorkloadPlan] = field("What reads.", factory=list)
    network: list[Shape] = field(
        "Lines to the store; each experiment is made on each. One without limits by default.",
        factory=list,
    )
    experiments: list[ExperimentFields] = field(
        "Real training jobs, besides the workloads.", factory=list
    )
    goals: list[GoalPlan] = field("What the figures must reach.", factory=list)

    @property
    def all_datasets(self) -> list[DatasetPlan]:
        return self.datasets if self.dataset is None else [self.dataset, *self.datasets]

    @model_validator(mode="after")
    def _is_whole(self) -> "PlanFields":
        if self.storage_backend == "s3" and self.s3_dataset_path is None:
            raise invalid(
                "storageBackend: s3 needs s3DatasetPath", "for example s3://bucket/imagenet"
            )
        if self.storage_backend == "local" and self.s3_dataset_path is not None:
            raise invalid("s3DatasetPath goes with storageBackend: s3", "storageBackend: s3")
        shaped = any(not one.plain for one in self.network)
        if self.storage_backend == "s3" and shaped and not _is_plain(self.endpoint):
            raise invalid(
                "network: a store that speaks TLS cannot be put behind a line of another shape",
                "give an endpoint that begins with http://, or use storageBackend: local",
            )
        if self.storage_backend == "s3" and self.parallel > 1 and not _is_plain(self.endpoint):
            raise invalid(
                "parallel: what comes from a store that speaks TLS is counted for the whole "
                "machine, and not for each of several experiments at once",
                "parallel: 1",
            )
        if self.s3_dataset_path and not self.s3_dataset_path.startswith("s3://"):
            raise invalid("s3DatasetPath: not all systems read it", "s3://bucket/prefix")
        if not self.workloads and not self.experiments:
            raise invalid("has no workloads and no experiments", "for example `workloads: [read]`")
        self._check_datasets()
        self._check_states()
        self._check_names()
        return self

    def _check_datasets(self) -> None:
        datasets = self.all_datasets
        if self.dataset is not None and self.datasets:
            raise invalid("has both dataset and datasets", "keep one of them")
        reads = self.experiments or any(one.kind not in WITHOUT_DATA for one in self.workloads)
        if reads and not datasets:
            raise invalid("dataset: is missing", "for example dataset: {form: jpeg, size: 64MiB}")
        for one in datasets:
            if one.form == "given" and not (one.path or self.s3_dataset_path):
                raise invalid("a given data set needs dataset.path", "or storageBackend: s3")
            if one.form == "given" and not one.path and len(datasets) > 1:
                raise invalid(
                    "datasets: what lies at s3DatasetPath is one data set",
                    "write it as `dataset`, alone",
                )

    def _check_states(self) -> None:
        if self.parallel > 1 and any(one.kind == "read" for one in self.workloads):
            raise invalid(
                "parallel: a workload of the kind read measures times, and needs the machine for "
                "itself",
                "parallel: 1",
            )
        for arm, workload in ((arm, one) for one in self.workloads for arm in self.arms):
            taken = not workload.arms or arm.name in workload.arms
            if arm.state == "loaded" and taken and workload.kind in ("read", "emulated"):
                raise invalid(
                    f"arms: {arm.name}: the state loaded goes with workloads of the kind loader",
                    f"name the arms of {workload.name} in its field `arms`",
                )

    def _check_names(self) -> None:
        arms, datasets = [one.name for one in self.arms], [one.name for one in self.all_datasets]
        workloads = [one.name for one in self.workloads]
        workloads += [one.experiment for one in self.experiments]
        for what, names in (
            ("arms", arms),
            ("datasets", datasets),
            ("workloads", workloads),
            ("network", [one.name for one in self.network]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise invalid(f"{what}: {twice[0]!r} stands twice", "give one of them another name")
        for one in self.arms:
            _require_known("datasets", one.datasets, datasets)
        for one in (*self.workloads, *self.experiments):
            _require_known("arms", one.arms, arms)
            _require_known("datasets", one.datasets, datasets)
        for goal in self.goals:
            _require_known("goals: arm", [goal.arm], arms)
            _require_known("goals: workload", [goal.workload], workloads)
            _require_known("goals: dataset", [goal.dataset], datasets)
            _require_known("goals: of", [goal.of], ["native", "client", "peers", *arms])


def _require_known(what: str, names: Sequence[str | None], known: list[str]) -> None:
    for name in names:
        if name is not None and name not in known:
            raise invalid(f"{what}: {name!r} is not in this plan", f"known: {', '.join(known)}")


class Plan(PlanFields):
    """A whole benchmark, with the manifests that it names; its data sets are in `datasets`."""

    # It is plan.json of a run: what another release wrote there must not be read in part.
    model_config = ConfigDict(extra="forbid")

    jobs: list[JobPlan] = field("The training jobs of `experiments`.", factory=list)

    @property
    def is_local(self) -> bool:
        """Return whether the run starts the store, and ends it."""
        return self.storage_backend == "local"

    @property
    def all_workloads(self) -> list[WorkloadPlan]:
        return [*self.workloads, *self.jobs]
