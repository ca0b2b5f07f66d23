"""Data operations: DataLoad, DataMigrate, DataProcess, DataBackup. Pure."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from penstock.specs import reasons
from penstock.specs.dataset import SCHEMES, EncryptOption, Env, Toleration, User, wrong_with
from penstock.specs.fields import Count, Fields, FreeList, FreeMap, TextMap, field, invalid
from penstock.specs.resource import Resource
from penstock.specs.runtimes import Images, pod_metadata

OperationKind = Literal["DataLoad", "DataBackup", "DataMigrate", "DataProcess"]


class ObjectRef(Fields):
    api_version: str = field("Its apiVersion.", default="")
    kind: OperationKind = field("Kind of the operation.", required=True)
    name: str = field("Its name.", required=True)
    namespace: str = field("Its namespace; by default the same one.", default="")


class Prefer(Fields):
    name: str = field("A label of nodes.", required=True)
    weight: Count = field("Its weight.", required=True)


class Require(Fields):
    name: str = field("A label of nodes.", required=True)


class AffinityStrategy(Fields):
    depend_on: ObjectRef | None = field("Operation to run close to.")
    policy: Literal["", "Require", "Prefer"] = field("How close.", default="")
    prefers: list[Prefer] = field("Labels of preferred nodes.", factory=list)
    requires: list[Require] = field("Labels of required nodes.", factory=list)


class RunAfter(ObjectRef):
    affinity_strategy: AffinityStrategy | None = field(
        "On which nodes, relative to the earlier operation.", no_effect=reasons.SCHEDULING
    )


class OperationSpec(Fields):
    run_after: RunAfter | None = field("Starts when that operation is complete.")
    ttl_seconds_after_finished: Count | None = field(
        "How long it is kept after its end; then it is removed.", ge=0
    )


class ScheduledSpec(OperationSpec):
    policy: Literal["Once", "Cron", "OnEvent"] = field(
        "Once; at the times of `schedule` (Cron); or whenever files of the data set change "
        "(OnEvent). Cron and OnEvent need `penstock serve`.",
        default="Once",
    )
    schedule: str = field("Cron schedule: minute hour day month weekday.", default="")


class PodSpec(ScheduledSpec):
    pod_metadata: FreeMap | None = pod_metadata()
    affinity: FreeMap | None = field("Which nodes it runs on.", no_effect=reasons.SCHEDULING)
    tolerations: list[Toleration] = field(
        "Taints that it tolerates.", factory=list, no_effect=reasons.SCHEDULING
    )
    node_selector: TextMap = field(
        "Labels of the nodes it runs on.", factory=dict, no_effect=reasons.SCHEDULING
    )
    scheduler_name: str = field("Which scheduler.", default="", no_effect=reasons.SCHEDULING)
    resources: FreeMap | None = field("CPU and memory of its pods.", no_effect=reasons.RESOURCES)


class TargetDataset(Fields):
    name: str = field("Name of the Dataset.", required=True)
    namespace: str = field("Its namespace; by default the same one.", default="")


def inside_dataset(text: str) -> str:
    if ".." in text.split("/"):
        raise invalid(f"{text!r} is outside the data set", "write it like /images/train")
    return text


class TargetPath(Fields):
    path: Annotated[str, AfterValidator(inside_dataset)] = field(
        "A file or folder of the data set; / is all of it.", required=True
    )
    replicas: Count = field(
        "How many copies are loaded.", default=1, ge=0, no_effect=reasons.ONE_COPY, when="above one"
    )


class DataLoadSpec(PodSpec):
    dataset: TargetDataset = field("Data set to load.", required=True)
    target: list[TargetPath] = field("Parts to load; by default all of it.", factory=list)
    load_metadata: bool = field(
        "Whether the bucket is listed again before the load.", default=False
    )
    options: TextMap = field("Options of the load.", factory=dict, secret=True)


class DataLoad(Resource):
    """Loads a data set, or parts of it, into the cache."""

    spec: DataLoadSpec = field("The desired state.", required=True)


class DatasetToMigrate(TargetDataset):
    path: Annotated[str, AfterValidator(inside_dataset)] = field(
        "Folder in it; by default all of it.", default=""
    )


def _uri(text: str) -> str:
    stores = tuple(scheme for scheme in SCHEMES if scheme not in ("dataset", "juicefs"))
    if (wrong := wrong_with(text, allowed=stores)) is not None:
        raise invalid(*wrong)
    return text


class ExternalStorage(Fields):
    uri: Annotated[str, AfterValidator(_uri)] = field(
        "Address of the store: s3://bucket/prefix, local:///folder and so on.", required=True
    )
    encrypt_options: list[EncryptOption] = field(
        "Endpoint and keys whose values are in Secrets.", factory=list
    )


class DataToMigrate(Fields):
    dataset: DatasetToMigrate | None = field("A data set.")
    external_storage: ExternalStorage | None = field("A store that is not a data set.")


class DataMigrateSpec(Images, PodSpec):
    from_: DataToMigrate = field("Source of the copy.", required=True, alias="from")
    to: DataToMigrate = field("Target of the copy.", required=True)
    options: TextMap = field("Options of the copy.", factory=dict, secret=True)
    block: bool = field(
        "Whether readers are blocked meanwhile.",
        default=False,
        no_effect="blocking: readers continue; a file appears when it is complete",
    )
    runtime_type: str = field(
        "Which engine copies.", default="", no_effect="engines: Penstock itself copies"
    )
    parallelism: Count = field(
        "How many pods copy.",
        default=1,
        ge=1,
        when="above one",
        no_effect="parallelism: one process copies many objects at once",
    )
    parallel_options: TextMap = field(
        "How the pods communicate.", factory=dict, no_effect=reasons.PODS, secret=True
    )


class DataMigrate(Resource):
    """Copies a data set or a store to another one; skips objects that are there already."""

    spec: DataMigrateSpec = field("The desired state.", required=True)


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise invalid(f"{text[:60]!r} is not an absolute path", "write it like /data")
    return text


class ProcessedDataset(TargetDataset):
    mount_path: Annotated[str, AfterValidator(_absolute)] = field(
        "Path at which the process sees the data set.", required=True
    )
    sub_path: Annotated[str, AfterValidator(inside_dataset)] = field(
        "Folder in it; by default all of it.", default=""
    )


class ScriptProcessor(Images):
    source: str = field("The script.", required=True, secret=True)
    command: list[str] = field(
        "Interpreter of the script, such as [bash] or [python3].", factory=list
    )
    env: list[Env] = field("Environment variables for it.", factory=list)
    restart_policy: Literal["Never", "OnFailure"] = field(
        "Whether it is retried after a failure.", default="Never"
    )
    volume_mounts: FreeList = field(
        "Where volumes are mounted.", factory=list, no_effect=reasons.VOLUMES
    )
    volumes: FreeList = field("Volumes for it.", factory=list, no_effect=reasons.VOLUMES)
    resources: FreeMap | None = field("CPU and memory for it.", no_effect=reasons.RESOURCES)


class JobProcessor(Fields):
    pod_spec: FreeMap | None = field(
        "A pod, as in Kubernetes: command, args and env of its first container are used; the "
        "image is not.",
        secret=True,
    )


class Processor(Fields):
    script: ScriptProcessor | None = field("A script to run.")
    job: JobProcessor | None = field("A pod to run.")
    service_account_name: str = field(
        "Account in the cluster.", default="", no_effect="accounts: it runs as your user"
    )
    pod_metadata: FreeMap | None = pod_metadata()


class DataProcessSpec(ScheduledSpec):
    dataset: ProcessedDataset = field(
        "The data set, and the path at which the process sees it.", required=True
    )
    processor: Processor = field("Script or pod to run.", required=True)


class DataProcess(Resource):
    """Runs a script that sees the data set at a given path."""

    spec: DataProcessSpec = field("The desired state.", required=True)


def _backup_path(text: str) -> str:
    if text and (wrong := wrong_with(text, allowed=("local", "file"))) is not None:
        raise invalid(*wrong)
    return text


class DataBackupSpec(OperationSpec):
    dataset: str = field("Name of the Dataset, in the same namespace.", required=True)
    backup_path: Annotated[str, AfterValidator(_backup_path)] = field(
        "Folder on this machine for the backup: local:///folder.", default=""
    )
    run_as: User | None = field("Owner of the backup file.")


class DataBackup(Resource):
    """Saves a data set's catalog and the list of its cached files; `dataRestoreLocation` of a
    Dataset restores them."""

    spec: DataBackupSpec = field("The desired state.", required=True)
