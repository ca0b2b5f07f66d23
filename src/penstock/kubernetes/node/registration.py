"""Registers the node plugin with the kubelet, without the usual sidecar container.

The kubelet watches its folder `plugins_registry`. It asks a socket that appears there which plugin
that is and where its own socket lies, and takes the plugin back out when the socket is removed.
A kubelet that starts looks at the sockets that are there. `SocketWatcher` makes sockets again that
were removed: some kubelets empty the folder when they start, and so do people who repair a node.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from penstock.errors import PenstockError
from penstock.kubernetes import names
from penstock.kubernetes.node import rpc
from penstock.kubernetes.node.proto import pluginregistration_pb2 as registration

log = logging.getLogger(__name__)

_CSI_VERSION: Final = "1.0.0"  # the kubelet compares the major version
_THREADS: Final = 2
_CHECK_S: Final = 1.0


def csi_socket(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins" / names.DRIVER / "csi.sock"


def registration_socket(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins_registry" / f"{names.DRIVER}-reg.sock"


class RegistrationService:
    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint

    def GetInfo(
        self, request: registration.InfoRequest, context: grpc.ServicerContext
    ) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="CSIPlugin",
            name=names.DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[_CSI_VERSION],
        )

    def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("registered with the kubelet as %s", names.DRIVER)
        else:
            # It retries as long as the socket is there, with a growing delay.
            log.warning("the kubelet did not register %s: %s", names.DRIVER, request.error)
        return registration.RegistrationStatusResponse()


def registration_endpoint(kubelet_dir: Path) -> rpc.Endpoint:
    service = registration.DESCRIPTOR.services_by_name["Registration"]
    handler = rpc.handler_of(service, RegistrationService(csi_socket(kubelet_dir)))
    return rpc.Endpoint(registration_socket(kubelet_dir), [handler], threads=_THREADS)


class SocketWatcher:
    """Opens endpoints, opens them again while their sockets vanish, and closes them at the end."""

    def __init__(self, endpoints: Sequence[rpc.Endpoint], *, check_s: float = _CHECK_S) -> None:
        self._endpoints = endpoints
        self._check_s = check_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="socket-watcher", daemon=True)

    def start(self) -> None:
        """Open the endpoints in their order: the registration last."""
        for endpoint in self._endpoints:
            endpoint.open()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for endpoint in reversed(self._endpoints):
            endpoint.close()

    def _run(self) -> None:
        while not self._closing.wait(self._check_s):
            for endpoint in self._endpoints:
                if not endpoint.is_reachable():
                    self._open_again(endpoint)

    def _open_again(self, endpoint: rpc.Endpoint) -> None:
        try:
            endpoint.open()
        except (OSError, PenstockError) as error:
            log.warning("%s was removed, and cannot be made again: %s", endpoint.path, error)
        else:
            log.warning("%s was removed; made it again", endpoint.path)
