"""JindoRuntime: Fluid's runtime on JindoFS, run here by Penstock's own engine. Pure."""

from penstock.specs import reasons
from penstock.specs.dataset import Toleration, User
from penstock.specs.fields import Count, Fields, FreeList, FreeMap, TextMap, said
from penstock.specs.resource import Resource
from penstock.specs.runtimes import (
    Images,
    PodFields,
    RuntimeSpec,
    clean_policy,
    on_all_nodes,
    pod_metadata,
    pull_secrets,
    run_as,
    short_circuit_policy,
    volumes,
)
from penstock.specs.tieredstore import CleanCachePolicy, CleanPolicy, NetworkMode, Version


class JindoPod(PodFields):
    env: TextMap = said(
        "Environment of its container.", factory=dict, no_effect=reasons.ENVIRONMENT, secret=True
    )
    tolerations: list[Toleration] = said(
        "Taints that its pods put up with.", factory=list, no_effect=reasons.SCHEDULING
    )
    labels: TextMap = said("Labels of its pods.", factory=dict, no_effect=reasons.LABELS)
    pod_metadata: FreeMap | None = pod_metadata()
    image_pull_secrets: FreeList = pull_secrets()


class JindoComponent(JindoPod):
    replicas: Count | None = said(
        "How many of it run.", ge=0, no_effect=reasons.ONE_WORKER, when="above one"
    )
    properties: TextMap = said(
        "Jindo's properties of this component; those with a counterpart become options of the "
        "mount.",
        factory=dict,
        secret=True,
    )
    ports: dict[str, Count] = said(
        "Ports that it listens on.", factory=dict, no_effect=reasons.PORTS
    )
    disabled: bool = said(
        "Whether it is left out.", default=False,
        no_effect="components: there is one server for each mount, and it is always needed",
    )  # fmt: skip


class ClientMetrics(Fields):
    enabled: bool = said("Whether the client shows metrics.", default=False)
    scrape_target: str = said("Which client Prometheus asks.", default="")


class JindoFuse(Images, JindoPod):
    args: list[str] = said(
        "Arguments of the FUSE process, such as -okernel_cache; those with a counterpart become "
        "options of the mount.",
        factory=list,
    )
    properties: TextMap = said(
        "Jindo's properties of the client; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    clean_policy: CleanPolicy = clean_policy()
    disabled: bool = said(
        "Whether there is no FUSE process.", default=False,
        no_effect="components: without a mount there is nothing to read from",
    )  # fmt: skip
    log_config: TextMap = said("Log settings.", factory=dict, no_effect=reasons.LOGS)
    metrics: ClientMetrics = said(
        "Metrics of the client.", factory=ClientMetrics, no_effect=reasons.METRICS
    )
    short_circuit_policy: str = short_circuit_policy()
    global_: bool | None = on_all_nodes()


class JindoRuntimeSpec(RuntimeSpec):
    jindo_version: Version = said(
        "Image and release of Jindo.", factory=Version, no_effect=reasons.IMAGES
    )
    properties: TextMap = said(
        "Jindo's properties; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    fuse: JindoFuse = said("The process that mounts.", factory=JindoFuse)
    worker: JindoComponent = said("The processes that hold the cache.", factory=JindoComponent)
    master: JindoComponent = said(
        "The process that knows all names.", factory=JindoComponent, no_effect=reasons.MASTER
    )
    run_as: User | None = run_as()
    user: str = said(
        "User that Jindo runs as.", default="",
        no_effect="users: the mount belongs to whoever applied it; owner and runAs name the files' "
        "owner",
    )  # fmt: skip
    secret: str = said(
        "Secret with Jindo's keys.", default="",
        no_effect="keys: they are taken from the Dataset's options and encryptOptions",
    )  # fmt: skip
    hadoop_config: str = said(
        "Name of the ConfigMap with Hadoop's settings.", default="", no_effect=reasons.HADOOP
    )
    labels: TextMap = said("Labels of all pods.", factory=dict, no_effect=reasons.LABELS)
    pod_metadata: FreeMap | None = pod_metadata()
    log_config: TextMap = said("Log settings.", factory=dict, no_effect=reasons.LOGS)
    networkmode: NetworkMode = said("Network of the pods.", default="", no_effect=reasons.NETWORK)
    clean_cache_policy: CleanCachePolicy = said(
        "What becomes of the cache when the runtime goes.", factory=CleanCachePolicy
    )
    volumes: FreeList = volumes()
    image_pull_secrets: FreeList = pull_secrets()


class JindoRuntime(Resource):
    """The cache of the Dataset of the same name, as written for JindoFS."""

    spec: JindoRuntimeSpec = said("What is wanted.", factory=JindoRuntimeSpec)
