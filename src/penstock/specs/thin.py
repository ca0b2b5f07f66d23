"""ThinRuntime and its profile: Fluid's runtime for any FUSE client, run here by Penstock. Pure."""

from typing import Literal

from penstock.specs import reasons
from penstock.specs.dataset import Env
from penstock.specs.fields import Count, Fields, FreeList, FreeMap, TextMap, said
from penstock.specs.resource import Resource
from penstock.specs.runtimes import (
    Images,
    ManagedSpec,
    PodFields,
    clean_policy,
    pod_metadata,
    pull_secrets,
    volumes,
)
from penstock.specs.tieredstore import CleanPolicy, NetworkMode


class ThinPod(Images, PodFields):
    image_pull_secrets: FreeList = pull_secrets()
    ports: FreeList = said("Ports that it listens on.", factory=list, no_effect=reasons.PORTS)
    env: list[Env] = said(
        "Environment of its container.", factory=list, no_effect=reasons.ENVIRONMENT
    )
    liveness_probe: FreeMap | None = said("When it is restarted.", no_effect=reasons.PROBES)
    readiness_probe: FreeMap | None = said("When it is ready.", no_effect=reasons.PROBES)
    network_mode: NetworkMode = said("Network of the pods.", default="", no_effect=reasons.NETWORK)


class ThinWorker(ThinPod):
    replicas: Count | None = said(
        "How many of it run.", ge=0, no_effect=reasons.ONE_WORKER, when="above one"
    )
    enabled: bool | None = said("Whether it runs.", no_effect=reasons.PODS)


class ThinFuse(ThinPod):
    command: list[str] = said(
        "Program of the FUSE client.", factory=list,
        no_effect="FUSE clients: the data is mounted by Penstock itself",
    )  # fmt: skip
    args: list[str] = said(
        "Arguments of the FUSE client; those with a counterpart become options of the mount.",
        factory=list,
    )
    options: TextMap = said(
        "Options of the FUSE client; those with a counterpart become options of the mount.",
        factory=dict,
        secret=True,
    )
    clean_policy: CleanPolicy = clean_policy()
    lifecycle: FreeMap | None = said(
        "What is done when the container starts and ends.", no_effect=reasons.PODS
    )
    pod_metadata: FreeMap | None = pod_metadata()


class ThinRuntimeSpec(ManagedSpec):
    profile_name: str = said(
        "Name of the ThinRuntimeProfile; none for a Dataset that mounts another one.", default=""
    )
    fuse: ThinFuse = said("The process that mounts.", factory=ThinFuse)
    worker: ThinWorker = said("The processes that hold the cache.", factory=ThinWorker)
    image_pull_secrets: FreeList = pull_secrets()


class ThinRuntime(Resource):
    """The cache of the Dataset of the same name, as written for a FUSE client of one's own; or,
    without a profile, for a Dataset that mounts another one."""

    spec: ThinRuntimeSpec = said("What is wanted.", factory=ThinRuntimeSpec)


class ThinRuntimeProfileSpec(Fields):
    file_system_type: str = said(
        "Name of the file system that the client mounts.", required=True,
        no_effect="FUSE clients: the data is mounted by Penstock itself",
    )  # fmt: skip
    fuse: ThinFuse = said("The process that mounts.", factory=ThinFuse)
    worker: ThinWorker = said("The processes that hold the cache.", factory=ThinWorker)
    volumes: FreeList = volumes()
    image_pull_secrets: FreeList = pull_secrets()
    node_publish_secret_policy: Literal[
        "NotMountNodePublishSecret",
        "MountNodePublishSecretIfExists",
        "CopyNodePublishSecretAndMountIfNotExists",
    ] = said(
        "What is done with the Secret of a volume.", default="MountNodePublishSecretIfExists",
        no_effect=reasons.VOLUMES,
    )  # fmt: skip


class ThinRuntimeProfile(Resource):
    """What several ThinRuntimes share."""

    spec: ThinRuntimeProfileSpec = said("What is wanted.", required=True)
