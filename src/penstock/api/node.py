"""The node plugin of a cluster: one process on each node, started by its DaemonSet."""

from importlib.util import find_spec
from pathlib import Path

from penstock.errors import UsageError


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
