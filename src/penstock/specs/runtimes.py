"""The runtimes: how much of a data set is cached, on which medium, with which options. Pure.

PenstockRuntime is our own. AlluxioRuntime, JindoRuntime, JuiceFSRuntime and ThinRuntime are
Fluid's; Penstock's own engine runs all of them.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from penstock.specs import reasons
from penstock.specs.dataset import Env, Toleration, User
from penstock.specs.fields import Count, Fields, FreeList, FreeMap, TextMap, field, invalid
from penstock.specs.resource import Resource
from penstock.specs.tieredstore import (
    CleanCachePolicy,
    CleanPolicy,
    Management,
    NetworkMode,
    TieredStore,
    Version,
)


def clean_policy() -> Any:
    return field(
        "When the mount ends. Here it ends with its data set or runtime.",
        default="",
        no_effect="clean policy: a mount ends with its data set or runtime",
    )


def short_circuit_policy() -> Any:
    return field(
        "How a worker on the same machine is read, in older releases.",
        default="",
        no_effect="short circuit: the cache is always read from this machine's disk",
    )


def on_all_nodes() -> Any:
    return field(
        "Whether it runs on all nodes, in older releases.",
        alias="global",
        no_effect=reasons.SCHEDULING,
    )


def run_as() -> Any:
    return field("Owner of the files, unless the Dataset has an owner.")


def prometheus() -> Any:
    return field(
        "Whether metrics are hidden from Prometheus.", default=False, no_effect=reasons.METRICS
    )


def pod_metadata() -> Any:
    return field("Labels and annotations of pods.", no_effect=reasons.PODS)


def instances() -> Any:
    return field("Number of instances.", ge=0, no_effect=reasons.ONE_WORKER, when="above one")


def container_env(factory: type[Any]) -> Any:
    text = "Environment of its container."
    return field(text, factory=factory, no_effect=reasons.ENVIRONMENT, secret=True)


def volumes() -> Any:
    return field(
        "Volumes for the pods. If an option names a file on a volume that is a Secret, it gets the "
        "value from the Secret.",
        factory=list,
        no_effect=reasons.VOLUMES,
        when="without a secret",
    )


def pull_secrets() -> Any:
    return field("Secrets for pulling images.", factory=list, no_effect=reasons.PULLING)


class RuntimeSpec(Fields):
    tieredstore: TieredStore = field("The tiers of the cache.", factory=TieredStore)
    replicas: Count = field(
        "Number of workers that hold the cache; here there is one, this machine.",
        default=1,
        ge=0,
        no_effect=reasons.ONE_WORKER,
        when="above one",
    )


class ManagedSpec(RuntimeSpec):
    """A spec whose cleanCachePolicy is under `management`."""

    run_as: User | None = run_as()
    disable_prometheus: bool = prometheus()
    volumes: FreeList = volumes()
    management: Management = field(
        "Automatic management of the cache and of metadata.", factory=Management
    )

    @property
    def clean_cache_policy(self) -> CleanCachePolicy:
        return self.management.clean_cache_policy


class Images(Fields):
    image: str = field("Image of the container.", default="", no_effect=reasons.IMAGES)
    image_tag: str | int | float = field("Its tag.", default="", no_effect=reasons.IMAGES)
    image_pull_policy: str = field(
        "When the image is pulled.", default="", no_effect=reasons.PULLING
    )


class PodFields(Fields):
    """Settings of a component's pods."""

    resources: FreeMap | None = field("CPU and memory of the pods.", no_effect=reasons.RESOURCES)
    node_selector: TextMap = field(
        "Labels of the nodes where the pods run.", factory=dict, no_effect=reasons.SCHEDULING
    )
    volume_mounts: FreeList = field(
        "Where volumes are mounted in the pods; shows which files come from a Secret (volumes).",
        factory=list,
    )


class NetworkedPod(PodFields):
    network_mode: NetworkMode = field("Network of the pods.", default="", no_effect=reasons.NETWORK)
    pod_metadata: FreeMap | None = pod_metadata()


def _mount_path(text: str) -> str:
    if text and not text.startswith("/"):
        raise invalid(f"{text!r} is not an absolute path", "write it like /mnt/imagenet")
    return text


class PenstockCleanCachePolicy(CleanCachePolicy):
    keep: bool = field(
        "Whether cached data stays on disk when the runtime is deleted, for the next one.",
        default=False,
    )

    @property
    def keeps(self) -> bool:
        return self.keep


class PenstockFuse(PodFields):
    clean_policy: CleanPolicy = clean_policy()
    pod_metadata: FreeMap | None = pod_metadata()
    env: list[Env] = container_env(list)
    image_pull_secrets: FreeList = pull_secrets()
    priority_class_name: str = field(
        "Priority class of the pods.", default="", no_effect=reasons.SCHEDULING
    )


class PenstockRuntimeSpec(RuntimeSpec):
    options: TextMap = field(
        "Any option of `penstock mount`, by its long name without dashes: mode, refresh, policy, "
        "block-size, threads and so on.",
        factory=dict,
        secret=True,
    )
    mount_path: Annotated[str, AfterValidator(_mount_path)] = field(
        "Folder where the data set is mounted, instead of the default one.", default=""
    )
    clean_cache_policy: PenstockCleanCachePolicy = field(
        "What happens to the cache when the runtime is deleted.", factory=PenstockCleanCachePolicy
    )
    fuse: PenstockFuse = field("Settings of the mount.", factory=PenstockFuse)
    run_as: User | None = run_as()


class PenstockRuntime(Resource):
    """Penstock's own runtime: the tiers of the cache, and any option of `penstock mount`."""

    spec: PenstockRuntimeSpec = field("The desired state.", factory=PenstockRuntimeSpec)


# -- AlluxioRuntime ------------------------------------------------------------------------------


class AlluxioComponent(NetworkedPod):
    replicas: Count | None = instances()
    jvm_options: list[str] = field("Options of its JVM.", factory=list, no_effect=reasons.JVM)
    properties: TextMap = field(
        "Alluxio's properties of this component; those with a counterpart become options of the "
        "mount.",
        factory=dict,
        secret=True,
    )
    ports: dict[str, Count] = field("Ports to listen on.", factory=dict, no_effect=reasons.PORTS)
    env: TextMap = container_env(dict)
    enabled: bool | None = field("Whether it runs.", no_effect=reasons.PODS)
    image_pull_secrets: FreeList = pull_secrets()


class AlluxioFuse(Images, NetworkedPod):
    args: list[str] = field(
        "Arguments of the FUSE process, such as --fuse-opts=kernel_cache,attr_timeout=7200; those "
        "with a counterpart become options of the mount.",
        factory=list,
    )
    properties: TextMap = field(
        "Alluxio's properties of the client; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    jvm_options: list[str] = field("Options of its JVM.", factory=list, no_effect=reasons.JVM)
    env: TextMap = container_env(dict)
    clean_policy: CleanPolicy = clean_policy()
    image_pull_secrets: FreeList = pull_secrets()
    short_circuit_policy: str = short_circuit_policy()
    global_: bool | None = on_all_nodes()


class AlluxioData(Fields):
    replicas: Count | None = field(
        "Copies of the data in the cache.",
        no_effect=reasons.ONE_COPY,
        when="above one",
    )
    pin: bool = field(
        "Whether cached data is never evicted.",
        default=False,
        no_effect="pinning: the policy decides what is evicted (by default: keep)",
    )


class InitUsers(Fields):
    image: str = field("Image of the container.", default="")
    image_tag: str | int | float = field("Its tag.", default="")
    image_pull_policy: str = field("When the image is pulled.", default="")
    env: TextMap = field("Environment of its container.", factory=dict, secret=True)
    resources: FreeMap | None = field("CPU and memory of the container.")


class AlluxioRuntimeSpec(ManagedSpec):
    alluxio_version: Version = field(
        "Image and release of Alluxio.", factory=Version, no_effect=reasons.IMAGES
    )
    properties: TextMap = field(
        "Alluxio's properties. Those with a counterpart (block size, client cache, metadata cache "
        "and so on) become options of the mount; docs/reference has the table.",
        factory=dict,
        secret=True,
    )
    fuse: AlluxioFuse = field("The process that mounts.", factory=AlluxioFuse)
    worker: AlluxioComponent = field("The processes that hold the cache.", factory=AlluxioComponent)
    master: AlluxioComponent = field(
        "The process that holds the metadata.", factory=AlluxioComponent, no_effect=reasons.MASTER
    )
    job_master: AlluxioComponent = field(
        "The process that distributes loads.",
        factory=AlluxioComponent,
        no_effect=reasons.JOB_PROCESSES,
    )
    job_worker: AlluxioComponent = field(
        "The processes that load.", factory=AlluxioComponent, no_effect=reasons.JOB_PROCESSES
    )
    api_gateway: AlluxioComponent = field(
        "The process that serves Alluxio's proxy.",
        factory=AlluxioComponent,
        no_effect=reasons.GATEWAY,
    )
    init_users: InitUsers = field(
        "The container that adds users.", factory=InitUsers, no_effect=reasons.USERS
    )
    jvm_options: list[str] = field("Options of every JVM.", factory=list, no_effect=reasons.JVM)
    data: AlluxioData = field("How data is cached.", factory=AlluxioData)
    data_replicas: Count | None = field(
        "Copies of the data in the cache, in older releases.",
        no_effect=reasons.ONE_COPY,
        when="above one",
    )
    hadoop_config: str = field(
        "Name of the ConfigMap with Hadoop's settings.", default="", no_effect=reasons.HADOOP
    )
    pod_metadata: FreeMap | None = pod_metadata()
    image_pull_secrets: FreeList = pull_secrets()


class AlluxioRuntime(Resource):
    """The cache of the Dataset of the same name, written for Alluxio: its tiers, properties and
    arguments become tiers and options of Penstock."""

    spec: AlluxioRuntimeSpec = field("The desired state.", factory=AlluxioRuntimeSpec)


# -- JindoRuntime --------------------------------------------------------------------------------


class JindoPod(PodFields):
    env: TextMap = container_env(dict)
    tolerations: list[Toleration] = field(
        "Taints that its pods tolerate.", factory=list, no_effect=reasons.SCHEDULING
    )
    labels: TextMap = field("Labels of its pods.", factory=dict, no_effect=reasons.LABELS)
    pod_metadata: FreeMap | None = pod_metadata()
    image_pull_secrets: FreeList = pull_secrets()


class JindoComponent(JindoPod):
    replicas: Count | None = instances()
    properties: TextMap = field(
        "Jindo's properties of this component; those with a counterpart become options of the "
        "mount.",
        factory=dict,
        secret=True,
    )
    ports: dict[str, Count] = field("Ports to listen on.", factory=dict, no_effect=reasons.PORTS)
    disabled: bool = field(
        "Whether it is not started.",
        default=False,
        no_effect="components: each mount needs its one server",
    )


class ClientMetrics(Fields):
    enabled: bool = field("Whether the client exposes metrics.", default=False)
    scrape_target: str = field("Client that Prometheus scrapes.", default="")


class JindoFuse(Images, JindoPod):
    args: list[str] = field(
        "Arguments of the FUSE process, such as -okernel_cache; those with a counterpart become "
        "options of the mount.",
        factory=list,
    )
    properties: TextMap = field(
        "Jindo's properties of the client; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    clean_policy: CleanPolicy = clean_policy()
    disabled: bool = field(
        "Whether the FUSE process is not started.",
        default=False,
        no_effect="components: without a mount nothing can be read",
    )
    log_config: TextMap = field("Log settings.", factory=dict, no_effect=reasons.LOGS)
    metrics: ClientMetrics = field(
        "Metrics of the client.", factory=ClientMetrics, no_effect=reasons.METRICS
    )
    short_circuit_policy: str = short_circuit_policy()
    global_: bool | None = on_all_nodes()


class JindoRuntimeSpec(RuntimeSpec):
    jindo_version: Version = field(
        "Image and release of Jindo.", factory=Version, no_effect=reasons.IMAGES
    )
    properties: TextMap = field(
        "Jindo's properties; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    fuse: JindoFuse = field("The process that mounts.", factory=JindoFuse)
    worker: JindoComponent = field("The processes that hold the cache.", factory=JindoComponent)
    master: JindoComponent = field(
        "The process that holds the metadata.", factory=JindoComponent, no_effect=reasons.MASTER
    )
    run_as: User | None = run_as()
    user: str = field(
        "User of Jindo's processes.",
        default="",
        no_effect="users: the mount runs as the user who applied it; owner and runAs set the "
        "files' owner",
    )
    secret: str = field(
        "Secret with Jindo's keys.",
        default="",
        no_effect="keys: they come from the Dataset's options and encryptOptions",
    )
    hadoop_config: str = field(
        "Name of the ConfigMap with Hadoop's settings.", default="", no_effect=reasons.HADOOP
    )
    labels: TextMap = field("Labels of all pods.", factory=dict, no_effect=reasons.LABELS)
    pod_metadata: FreeMap | None = pod_metadata()
    log_config: TextMap = field("Log settings.", factory=dict, no_effect=reasons.LOGS)
    networkmode: NetworkMode = field("Network of the pods.", default="", no_effect=reasons.NETWORK)
    clean_cache_policy: CleanCachePolicy = field(
        "What happens to the cache when the runtime is deleted.", factory=CleanCachePolicy
    )
    volumes: FreeList = volumes()
    image_pull_secrets: FreeList = pull_secrets()


class JindoRuntime(Resource):
    """The cache of the Dataset of the same name, written for JindoFS."""

    spec: JindoRuntimeSpec = field("The desired state.", factory=JindoRuntimeSpec)


# -- JuiceFSRuntime ------------------------------------------------------------------------------


class JuiceFSComponent(NetworkedPod):
    replicas: Count | None = instances()
    ports: FreeList = field("Ports to listen on.", factory=list, no_effect=reasons.PORTS)
    options: TextMap = field(
        "JuiceFS's mount options of this component; those with a counterpart become options of "
        "the mount.",
        factory=dict,
        secret=True,
    )
    env: list[Env] = container_env(list)
    enabled: bool | None = field("Whether it runs.", no_effect=reasons.PODS)


class JuiceFSFuse(Images, NetworkedPod):
    options: TextMap = field(
        "JuiceFS's mount options, such as cache-size or attr-cache; those with a counterpart "
        "become options of the mount.",
        factory=dict,
        secret=True,
    )
    env: list[Env] = container_env(list)
    clean_policy: CleanPolicy = clean_policy()
    global_: bool | None = field(
        "Whether it runs on all nodes, in older releases.",
        alias="global",
        no_effect=reasons.SCHEDULING,
    )


class JuiceFSRuntimeSpec(ManagedSpec):
    juicefs_version: Version = field(
        "Image and release of JuiceFS.", factory=Version, no_effect=reasons.IMAGES
    )
    fuse: JuiceFSFuse = field("The process that mounts.", factory=JuiceFSFuse)
    worker: JuiceFSComponent = field("The processes that hold the cache.", factory=JuiceFSComponent)
    master: JuiceFSComponent = field(
        "Not used by JuiceFS.", factory=JuiceFSComponent, no_effect=reasons.MASTER
    )
    job_worker: JuiceFSComponent = field(
        "The processes that load.", factory=JuiceFSComponent, no_effect=reasons.JOB_PROCESSES
    )
    init_users: InitUsers = field(
        "The container that adds users.", factory=InitUsers, no_effect=reasons.USERS
    )
    configs: list[str] = field(
        "Arguments of `juicefs config`.",
        factory=list,
        no_effect="volume settings: the bucket is read in place, not as a JuiceFS volume",
    )
    volume_claim_templates: FreeList = field(
        "Volume claims of the workers.", factory=list, no_effect=reasons.VOLUMES
    )
    pod_metadata: FreeMap | None = pod_metadata()


class JuiceFSRuntime(Resource):
    """The cache of the Dataset of the same name, written for JuiceFS."""

    spec: JuiceFSRuntimeSpec = field("The desired state.", factory=JuiceFSRuntimeSpec)


# -- ThinRuntime and its profile: for any FUSE client --------------------------------------------


class ThinPod(Images, PodFields):
    image_pull_secrets: FreeList = pull_secrets()
    ports: FreeList = field("Ports to listen on.", factory=list, no_effect=reasons.PORTS)
    env: list[Env] = container_env(list)
    liveness_probe: FreeMap | None = field("When it is restarted.", no_effect=reasons.PROBES)
    readiness_probe: FreeMap | None = field("When it is ready.", no_effect=reasons.PROBES)
    network_mode: NetworkMode = field("Network of the pods.", default="", no_effect=reasons.NETWORK)


class ThinWorker(ThinPod):
    replicas: Count | None = instances()
    enabled: bool | None = field("Whether it runs.", no_effect=reasons.PODS)


class ThinFuse(ThinPod):
    command: list[str] = field(
        "Program of the FUSE client.",
        factory=list,
        no_effect="FUSE clients: Penstock itself mounts the data",
    )
    args: list[str] = field(
        "Arguments of the FUSE client; those with a counterpart become options of the mount.",
        factory=list,
    )
    options: TextMap = field(
        "Options of the FUSE client; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    clean_policy: CleanPolicy = clean_policy()
    lifecycle: FreeMap | None = field(
        "Actions when the container starts and ends.", no_effect=reasons.PODS
    )
    pod_metadata: FreeMap | None = pod_metadata()


class ThinRuntimeSpec(ManagedSpec):
    profile_name: str = field(
        "Name of the ThinRuntimeProfile; none for a Dataset that mounts another one.", default=""
    )
    fuse: ThinFuse = field("The process that mounts.", factory=ThinFuse)
    worker: ThinWorker = field("The processes that hold the cache.", factory=ThinWorker)
    image_pull_secrets: FreeList = pull_secrets()


class ThinRuntime(Resource):
    """The cache of the Dataset of the same name, written for any FUSE client; or, without a
    profile, for a Dataset that mounts another one."""

    spec: ThinRuntimeSpec = field("The desired state.", factory=ThinRuntimeSpec)


class ThinRuntimeProfileSpec(Fields):
    file_system_type: str = field(
        "Name of the file system that the client mounts.",
        required=True,
        no_effect="FUSE clients: Penstock itself mounts the data",
    )
    fuse: ThinFuse = field("The process that mounts.", factory=ThinFuse)
    worker: ThinWorker = field("The processes that hold the cache.", factory=ThinWorker)
    volumes: FreeList = volumes()
    image_pull_secrets: FreeList = pull_secrets()
    node_publish_secret_policy: Literal[
        "NotMountNodePublishSecret",
        "MountNodePublishSecretIfExists",
        "CopyNodePublishSecretAndMountIfNotExists",
    ] = field(
        "What happens to the Secret of a volume.",
        default="MountNodePublishSecretIfExists",
        no_effect=reasons.VOLUMES,
    )


class ThinRuntimeProfile(Resource):
    """Settings that several ThinRuntimes share."""

    spec: ThinRuntimeProfileSpec = field("The desired state.", required=True)
