"""JuiceFSRuntime: Fluid's runtime on JuiceFS, run here by Penstock's own engine. Pure."""

from penstock.specs import reasons
from penstock.specs.alluxio import InitUsers
from penstock.specs.dataset import Env
from penstock.specs.fields import Count, FreeList, FreeMap, TextMap, said
from penstock.specs.resource import Resource
from penstock.specs.runtimes import Images, ManagedSpec, NetworkedPod, clean_policy, pod_metadata
from penstock.specs.tieredstore import CleanPolicy, Version


class JuiceFSComponent(NetworkedPod):
    replicas: Count | None = said(
        "How many of it run.", ge=0, no_effect=reasons.ONE_WORKER, when="above one"
    )
    ports: FreeList = said("Ports that it listens on.", factory=list, no_effect=reasons.PORTS)
    options: TextMap = said(
        "JuiceFS's mount options of this component; those with a counterpart become options of "
        "the mount.",
        factory=dict,
        secret=True,
    )
    env: list[Env] = said(
        "Environment of its container.", factory=list, no_effect=reasons.ENVIRONMENT
    )
    enabled: bool | None = said("Whether it runs.", no_effect=reasons.PODS)


class JuiceFSFuse(Images, NetworkedPod):
    options: TextMap = said(
        "JuiceFS's mount options, such as cache-size or attr-cache; those with a counterpart "
        "become options of the mount.",
        factory=dict,
        secret=True,
    )
    env: list[Env] = said(
        "Environment of its container.", factory=list, no_effect=reasons.ENVIRONMENT
    )
    clean_policy: CleanPolicy = clean_policy()
    global_: bool | None = said(
        "Whether it runs on all nodes, in older releases.", alias="global",
        no_effect=reasons.SCHEDULING,
    )  # fmt: skip


class JuiceFSRuntimeSpec(ManagedSpec):
    juicefs_version: Version = said(
        "Image and release of JuiceFS.", factory=Version, no_effect=reasons.IMAGES
    )
    fuse: JuiceFSFuse = said("The process that mounts.", factory=JuiceFSFuse)
    worker: JuiceFSComponent = said("The processes that hold the cache.", factory=JuiceFSComponent)
    master: JuiceFSComponent = said(
        "Not used by JuiceFS.", factory=JuiceFSComponent, no_effect=reasons.MASTER
    )
    job_worker: JuiceFSComponent = said(
        "The processes that load.", factory=JuiceFSComponent, no_effect=reasons.JOB_PROCESSES
    )
    init_users: InitUsers = said(
        "The container that adds users.", factory=InitUsers, no_effect=reasons.USERS
    )
    configs: list[str] = said(
        "Arguments of `juicefs config`.", factory=list,
        no_effect="volume settings: the bucket is read in place, it is not a JuiceFS volume",
    )  # fmt: skip
    volume_claim_templates: FreeList = said(
        "Volume claims of the workers.", factory=list, no_effect=reasons.VOLUMES
    )
    pod_metadata: FreeMap | None = pod_metadata()


class JuiceFSRuntime(Resource):
    """The cache of the Dataset of the same name, as written for JuiceFS."""

    spec: JuiceFSRuntimeSpec = said("What is wanted.", factory=JuiceFSRuntimeSpec)
