"""What has no effect on a cluster: the report of one machine, less what pods do have. Pure.

Fluid's runtimes describe several kinds of pods. Here there is one, the server, which takes what
`spec.fuse` says; so the same settings of workers and masters have no effect.
"""

import re
from collections.abc import Mapping

from penstock.reconcile.dataset_phases import Site
from penstock.reconcile.snapshot import Stored
from penstock.specs import reasons
from penstock.specs.schema import NoEffect
from penstock.specs.validation import unknown_fields

_EFFECTIVE = re.compile(
    r"spec\.(fuse\.)?(podMetadata|imagePullSecrets|labels)"
    r"|spec\.fuse\.(resources|nodeSelector|tolerations|env|priorityClassName)"
    r"|spec\.tolerations|spec\.tieredstore\.levels\.[0-9]+\.volumeSource"
)
_WORKERS = "workers: there are none, the server on each node holds its cache"
_WORDS: Mapping[str, str] = {
    reasons.PODS: "pods: server pods have no such setting",
    reasons.SCHEDULING: "scheduling: a server runs where pods use the data set",
    reasons.NETWORK: "network mode: server pods use the network of pods",
    reasons.VOLUMES: "volumes: a server pod mounts only Secrets and its caches",
    reasons.ONE_COPY: "replicas: each node caches what its pods read",
    reasons.ONE_WORKER: "replicas: there is one server for each node that uses the data set",
    reasons.METRICS: "metrics: server pods serve them at /metrics",
    reasons.PROBES: "probes: Penstock probes its servers itself",
    reasons.USERS: "init users: files have the owner that the Dataset or runAs names",
}
_UNKNOWN = "unknown fields: they are kept, and nothing reads them"


def effects_on_cluster(resource: Stored, effects: list[NoEffect]) -> list[NoEffect]:
    """`effects`: what has none on one machine."""
    found = [
        NoEffect(one.path, _words(one)) for one in effects if not _EFFECTIVE.fullmatch(one.path)
    ]
    manifest = {"spec": resource.spec}
    found += [
        NoEffect(path, _UNKNOWN) for path, _, _ in unknown_fields(resource.key.kind, manifest)
    ]
    return found


def site(*, desired: int, ready: int) -> Site:
    return Site(
        "Cluster",
        "delete the pods that use {name}: it takes effect when no pod uses it any more",
        effects_on_cluster,
        desired,
        ready,
    )


def _words(effect: NoEffect) -> str:
    if effect.path.startswith("spec.worker."):
        return _WORKERS
    return _WORDS.get(effect.reason, effect.reason.replace("this machine", "the node"))
