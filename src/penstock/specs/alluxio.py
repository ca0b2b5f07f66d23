"""AlluxioRuntime: Fluid's runtime on Alluxio, run here by Penstock's own engine. Pure."""

from penstock.specs import reasons
from penstock.specs.fields import Count, Fields, FreeList, FreeMap, TextMap, said
from penstock.specs.resource import Resource
from penstock.specs.runtimes import (
    Images,
    ManagedSpec,
    NetworkedPod,
    clean_policy,
    on_all_nodes,
    pod_metadata,
    pull_secrets,
    short_circuit_policy,
)
from penstock.specs.tieredstore import CleanPolicy, Version


class AlluxioComponent(NetworkedPod):
    replicas: Count | None = said(
        "How many of it run.", ge=0, no_effect=reasons.ONE_WORKER, when="above one"
    )
    jvm_options: list[str] = said("Options of its JVM.", factory=list, no_effect=reasons.JVM)
    properties: TextMap = said(
        "Alluxio's properties of this component; those with a counterpart become options of the "
        "mount.",
        factory=dict,
        secret=True,
    )
    ports: dict[str, Count] = said(
        "Ports that it listens on.", factory=dict, no_effect=reasons.PORTS
    )
    env: TextMap = said(
        "Environment of its container.", factory=dict, no_effect=reasons.ENVIRONMENT, secret=True
    )
    enabled: bool | None = said("Whether it runs.", no_effect=reasons.PODS)
    image_pull_secrets: FreeList = pull_secrets()


class AlluxioFuse(Images, NetworkedPod):
    args: list[str] = said(
        "Arguments of the FUSE process, such as --fuse-opts=kernel_cache,attr_timeout=7200; those "
        "with a counterpart become options of the mount.",
        factory=list,
    )
    properties: TextMap = said(
        "Alluxio's properties of the client; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    jvm_options: list[str] = said("Options of its JVM.", factory=list, no_effect=reasons.JVM)
    env: TextMap = said(
        "Environment of its container.", factory=dict, no_effect=reasons.ENVIRONMENT, secret=True
    )
    clean_policy: CleanPolicy = clean_policy()
    image_pull_secrets: FreeList = pull_secrets()
    short_circuit_policy: str = short_circuit_policy()
    global_: bool | None = on_all_nodes()


class AlluxioData(Fields):
    replicas: Count | None = said(
        "How many copies of the data the cache holds.", no_effect=reasons.ONE_COPY,
        when="above one",
    )  # fmt: skip
    pin: bool = said(
        "Whether what is cached stays.", default=False,
        no_effect="pinning: what is cached stays by itself (policy keep)",
    )  # fmt: skip


class InitUsers(Fields):
    image: str = said("Image that would be run.", default="")
    image_tag: str | int | float = said("Its tag.", default="")
    image_pull_policy: str = said("When it is pulled.", default="")
    env: TextMap = said("Environment of its container.", factory=dict, secret=True)
    resources: FreeMap | None = said("CPU and memory of the container.")


class AlluxioRuntimeSpec(ManagedSpec):
    alluxio_version: Version = said(
        "Image and release of Alluxio.", factory=Version, no_effect=reasons.IMAGES
    )
    properties: TextMap = said(
        "Alluxio's properties. Those with a counterpart (block size, client cache, metadata cache "
        "and so on) become options of the mount; docs/reference has the table.",
        factory=dict,
        secret=True,
    )
    fuse: AlluxioFuse = said("The process that mounts.", factory=AlluxioFuse)
    worker: AlluxioComponent = said("The processes that hold the cache.", factory=AlluxioComponent)
    master: AlluxioComponent = said(
        "The process that knows all names.", factory=AlluxioComponent, no_effect=reasons.MASTER
    )
    job_master: AlluxioComponent = said(
        "The process that hands out loads.", factory=AlluxioComponent,
        no_effect=reasons.JOB_PROCESSES,
    )  # fmt: skip
    job_worker: AlluxioComponent = said(
        "The processes that load.", factory=AlluxioComponent, no_effect=reasons.JOB_PROCESSES
    )
    api_gateway: AlluxioComponent = said(
        "The process that serves Alluxio's proxy.", factory=AlluxioComponent,
        no_effect=reasons.GATEWAY,
    )  # fmt: skip
    init_users: InitUsers = said(
        "The container that adds users.", factory=InitUsers, no_effect=reasons.USERS
    )
    jvm_options: list[str] = said("Options of every JVM.", factory=list, no_effect=reasons.JVM)
    data: AlluxioData = said("How the data is kept.", factory=AlluxioData)
    data_replicas: Count | None = said(
        "How many copies of the data the cache holds, in older releases.",
        no_effect=reasons.ONE_COPY, when="above one",
    )  # fmt: skip
    hadoop_config: str = said(
        "Name of the ConfigMap with Hadoop's settings.", default="", no_effect=reasons.HADOOP
    )
    pod_metadata: FreeMap | None = pod_metadata()
    image_pull_secrets: FreeList = pull_secrets()


class AlluxioRuntime(Resource):
    """The cache of the Dataset of the same name, as written for Alluxio: tiers become tiers of
    Penstock's cache, properties and arguments its options."""

    spec: AlluxioRuntimeSpec = said("What is wanted.", factory=AlluxioRuntimeSpec)
