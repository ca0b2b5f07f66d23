"""penstock node: the node plugin of a cluster."""

import logging
import os
import sys
from pathlib import Path

import click

_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True)


@click.command()
@click.option(
    "--node-id",
    envvar="NODE_NAME",
    required=True,
    show_envvar=True,
    metavar="NAME",
    help="The name of this node.",
)
@click.option(
    "--kubelet-dir",
    type=_FOLDER,
    default="/var/lib/kubelet",
    show_default=True,
    metavar="FOLDER",
    help="The kubelet's folder, mounted at the same path with Bidirectional propagation.",
)
@click.option(
    "--host-root",
    type=_FOLDER,
    default="/",
    show_default=True,
    metavar="FOLDER",
    help="Where the root folder of the node is mounted.",
)
def node(node_id: str, kubelet_dir: Path, host_root: Path) -> None:
    """Serve the kubelet of a node, and keep the mounts of its data sets.

    This is the node plugin that the DaemonSet of the Helm chart runs, as root. On SIGTERM it ends
    once each mount in use has a server that holds it.

    \b
    Example:
      penstock node --node-id $(hostname) --host-root /host
    """
    from penstock.api.cluster import serve_node

    serve_node(node_id, kubelet_dir=kubelet_dir, host_root=host_root)
    logging.shutdown()
    sys.stderr.flush()
    # At once: Python would wait for threads whose publishes still wait for a server.
    os._exit(0)
