"""The process of `penstock node`: one on each node, the only one with privileges."""

import logging
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Protocol

from penstock.errors import NotFound, PenstockError, UsageError
from penstock.kubernetes import names
from penstock.kubernetes.client import PERSISTENT_VOLUMES, Client
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node.csi import NodeService, VolumeKeeper, csi_endpoint
from penstock.kubernetes.node.folders import NodeFolders, resolve_below
from penstock.kubernetes.node.keeper import Keeper
from penstock.kubernetes.node.registration import (
    SocketWatcher,
    csi_socket,
    registration_endpoint,
)
from penstock.store.redaction import set_up_logging

log = logging.getLogger(__name__)

_API_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class NodeOptions:
    node_id: str
    kubelet_dir: Path = Path(names.KUBELET_ROOT)  # the same path here and for the kubelet
    host_root: Path = Path("/")  # where the root folder of the node is visible here


class NodeKeeper(VolumeKeeper, Protocol):
    def start(self) -> None: ...

    def close(self) -> None:
        """Wait until each mount in use has a supervisor, which then keeps it alone."""
        ...


def run(options: NodeOptions) -> None:
    """Serve this node until SIGTERM or SIGINT."""
    set_up_logging(level="INFO")
    if os.geteuid() != 0:
        raise UsageError("penstock node mounts, so it must run as root")
    state = resolve_below(options.host_root, names.NODE_STATE)
    folders = NodeFolders(state, options.host_root)
    volumes = ClusterVolumes(Client.from_environment().impatient(_API_TIMEOUT_S))
    serve(options, Keeper(folders, options.kubelet_dir, volumes.exists))


class ClusterVolumes:
    """Asks the API server which data sets still have a volume: the only right that a node has."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def exists(self, key: ServedKey) -> bool | None:
        """Return whether a data set has a volume; None if the API server does not say."""
        try:
            self._client.get(PERSISTENT_VOLUMES, None, names.volume_name(*key))
        except NotFound:
            return False
        except PenstockError as error:  # also a token that cannot be read at the moment
            log.warning("%s: cannot look up its volume: %s", key, error)
            return None
        return True


def serve(options: NodeOptions, keeper: NodeKeeper) -> None:
    """Serve CSI with a keeper until SIGTERM or SIGINT; called by the main thread."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    kubelet_dir = options.kubelet_dir
    node = NodeService(keeper, node_id=options.node_id, kubelet_dir=PurePosixPath(kubelet_dir))
    watcher = SocketWatcher(
        [csi_endpoint(csi_socket(kubelet_dir), node), registration_endpoint(kubelet_dir)]
    )
    keeper.start()
    try:
        watcher.start()
        log.info("serving %s on node %s", csi_socket(kubelet_dir), options.node_id)
        stop.wait()
        log.info("ending: waiting until a supervisor keeps each mount in use")
        # The sockets stay until then: pods that end meanwhile have their volumes unpublished.
        keeper.close()
    finally:
        watcher.close()
