"""What all runtimes share, and our own: how much is cached, on which medium, with which options.

Pure. The runtimes of Fluid's engines are in modules of their own: alluxio, jindo, juicefs, thin.
"""

from typing import Annotated, Any

from pydantic import AfterValidator

from penstock.specs import reasons
from penstock.specs.dataset import User
from penstock.specs.fields import Count, Fields, FreeList, FreeMap, TextMap, refuse, said
from penstock.specs.resource import Resource
from penstock.specs.tieredstore import (
    CleanCachePolicy,
    CleanPolicy,
    Management,
    NetworkMode,
    TieredStore,
)


def clean_policy() -> Any:
    return said(
        "When the mount ends. Here it ends with its data set or runtime, and not before.",
        default="",
        no_effect="clean policy: a mount costs nothing while nobody reads; it ends with its data "
        "set or runtime",
    )


def short_circuit_policy() -> Any:
    return said(
        "How a worker on the same machine is read, in older releases.", default="",
        no_effect="short circuit: the cache is always read directly from this machine's disk",
    )  # fmt: skip


def on_all_nodes() -> Any:
    return said(
        "Whether it runs on all nodes, in older releases.", alias="global",
        no_effect=reasons.SCHEDULING,
    )  # fmt: skip


def run_as() -> Any:
    return said("Whose files they are seen as, unless the Dataset's owner says so.")


def prometheus() -> Any:
    return said(
        "Whether metrics are kept from Prometheus.", default=False, no_effect=reasons.METRICS
    )


def pod_metadata() -> Any:
    return said("Labels and annotations of pods.", no_effect=reasons.PODS)


def volumes() -> Any:
    return said(
        "Volumes for the pods. An option that names a file on one that is a Secret is given what "
        "the Secret holds.",
        factory=list,
        no_effect=reasons.VOLUMES,
        when="without a secret",
    )


def pull_secrets() -> Any:
    return said("Secrets with which images are pulled.", factory=list, no_effect=reasons.PULLING)


class RuntimeSpec(Fields):
    tieredstore: TieredStore = said("The tiers of the cache.", factory=TieredStore)
    replicas: Count = said(
        "How many workers hold the cache; here there is one, this machine.", default=1, ge=0,
        no_effect=reasons.ONE_WORKER, when="above one",
    )  # fmt: skip


class ManagedSpec(RuntimeSpec):
    """Where the clean-up of the cache is said under `management`."""

    run_as: User | None = run_as()
    disable_prometheus: bool = prometheus()
    volumes: FreeList = volumes()
    management: Management = said("What is done by itself.", factory=Management)

    @property
    def clean_cache_policy(self) -> CleanCachePolicy:
        return self.management.clean_cache_policy


class Images(Fields):
    image: str = said("Image that would be run.", default="", no_effect=reasons.IMAGES)
    image_tag: str | int | float = said("Its tag.", default="", no_effect=reasons.IMAGES)
    image_pull_policy: str = said("When it is pulled.", default="", no_effect=reasons.PULLING)


class PodFields(Fields):
    """What a component's pods would be given."""

    resources: FreeMap | None = said("CPU and memory of the pods.", no_effect=reasons.RESOURCES)
    node_selector: TextMap = said(
        "Labels of the nodes where the pods run.", factory=dict, no_effect=reasons.SCHEDULING
    )
    volume_mounts: FreeList = said(
        "Where volumes are mounted in the pods; it tells which files are a Secret's (volumes).",
        factory=list,
    )


class NetworkedPod(PodFields):
    network_mode: NetworkMode = said("Network of the pods.", default="", no_effect=reasons.NETWORK)
    pod_metadata: FreeMap | None = pod_metadata()


def _mount_path(text: str) -> str:
    if text and not text.startswith("/"):
        raise refuse(f"{text!r} is not an absolute path", "write it like /mnt/imagenet")
    return text


class PenstockCleanCachePolicy(CleanCachePolicy):
    keep: bool = said(
        "Whether what is cached stays on disk when the runtime goes, for the next one.",
        default=False,
    )

    @property
    def keeps(self) -> bool:
        return self.keep


class PenstockFuse(Fields):
    clean_policy: CleanPolicy = clean_policy()


class PenstockRuntimeSpec(RuntimeSpec):
    options: TextMap = said(
        "Any option of `penstock mount` by its long name without dashes: mode, refresh, policy, "
        "block-size, threads and so on.",
        factory=dict,
        secret=True,
    )
    mount_path: Annotated[str, AfterValidator(_mount_path)] = said(
        "Folder where the data set is mounted, instead of the usual one.", default=""
    )
    clean_cache_policy: PenstockCleanCachePolicy = said(
        "What becomes of the cache when the runtime goes.", factory=PenstockCleanCachePolicy
    )
    fuse: PenstockFuse = said("Of the mount itself.", factory=PenstockFuse)
    run_as: User | None = run_as()


class PenstockRuntime(Resource):
    """Penstock's own runtime: the tiers of the cache, and any option of `penstock mount`."""

    spec: PenstockRuntimeSpec = said("What is wanted.", factory=PenstockRuntimeSpec)
