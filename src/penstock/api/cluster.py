"""Penstock's processes on a Kubernetes cluster: the operator, the node plugin, the server of a pod.

Each imports what it runs when it is called: a node or a pod has no use for the others' modules.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import UsageError


def operate(
    image: str,
    *,
    pull_policy: str = "",
    pull_secrets: Sequence[str] = (),
    priority_class: str = "",
    namespace: str | None = None,
    kubeconfig: Path | None = None,
    idle: str = "5m",
    leader_elect: bool = True,
    http_port: int | None = None,
) -> int:
    """Reconcile the Datasets of a cluster until SIGTERM; return the exit code.

    `image` is that of server pods, `idle` how long they stay after the last pod that used them.
    """
    from penstock.kubernetes.operator.main import Options, run
    from penstock.kubernetes.server_set import Image
    from penstock.store.redaction import set_up_logging
    from penstock.units import parse_duration

    set_up_logging(level="INFO")
    return run(
        Options(
            image=Image(image, pull_policy, tuple(pull_secrets), priority_class),
            namespace=namespace,
            kubeconfig=kubeconfig,
            idle_s=parse_duration(idle, what="--idle"),
            leader_elect=leader_elect,
            http_port=http_port,
        )
    )


def serve_node(node_id: str, *, kubelet_dir: Path, host_root: Path) -> None:
    """Serve this node's kubelet and server pods until SIGTERM or SIGINT.

    `host_root`: where the root folder of the node is visible to this process.
    """
    if find_spec("grpc") is None:
        raise UsageError(
            "the node plugin needs gRPC, which is not installed",
            hint="in a checkout of Penstock: pip install '.[kubernetes]'",
        )
    from penstock.kubernetes.node.main import NodeOptions, run

    run(NodeOptions(node_id, kubelet_dir=kubelet_dir, host_root=host_root))


def serve_pod() -> None:
    """Replace this process by the server pod's own program, which is quicker to import."""
    os.execv(sys.executable, [sys.executable, "-Pm", "penstock.kubernetes.pod.main"])
