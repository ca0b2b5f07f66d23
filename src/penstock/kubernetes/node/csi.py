"""The CSI services Identity and Node, as the kubelet calls them.

Each method decodes and checks its request, calls the keeper and encodes the result. What a request
means for mounts, folders and descriptors is the keeper's. Errors become codes in `rpc`.

Threading: methods run in the threads of one pool. A publish waits until its data set has a server,
which can take minutes, so only some of the threads may publish at a time: the others remain for
what ends quickly, such as unpublish.
"""

import logging
import posixpath
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

import grpc
from google.protobuf.wrappers_pb2 import BoolValue

from penstock.errors import VolumeBusy, VolumeProblem
from penstock.kubernetes import names
from penstock.kubernetes.node import rpc, volume_context
from penstock.kubernetes.node.proto import csi_pb2 as csi
from penstock.kubernetes.node.volume_context import PublishedVolume, VolumeUsage
from penstock.release import __version__

log = logging.getLogger(__name__)

# A node runs 110 pods by default. Threads are started when they are first needed.
THREADS: Final = 256
_PUBLISHING_THREADS: Final = 192
# A call without a deadline: the kubelet's own are 2 minutes.
_TIMEOUT_S: Final = 120.0
# Sooner than the caller's deadline, so that it gets our answer and not only its own.
_ANSWER_S: Final = 2.0
_SHORTEST_S: Final = 0.1


class VolumeKeeper(Protocol):
    """Makes the mounts and folders that the kubelet asks for. Any thread may call it."""

    def publish(self, volume: PublishedVolume, target: Path, *, timeout_s: float) -> None:
        """Mount a volume at `target`, which is made if it is missing; idempotent.

        Returns once the volume can be read. Raises NotServedInTime if it has no server by then.
        """
        ...

    def unpublish(self, target: Path) -> None:
        """Unmount `target`, dead or not, and remove the folder; idempotent."""
        ...

    def usage(self, target: Path) -> VolumeUsage:
        """Return the use of the volume at `target`; never waits for a server that does not answer.

        Raises NoSuchVolume if nothing is published there.
        """
        ...


class IdentityService:
    def GetPluginInfo(
        self, request: csi.GetPluginInfoRequest, context: grpc.ServicerContext
    ) -> csi.GetPluginInfoResponse:
        return csi.GetPluginInfoResponse(name=names.DRIVER, vendor_version=__version__)

    def GetPluginCapabilities(
        self, request: csi.GetPluginCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi.GetPluginCapabilitiesResponse:
        return csi.GetPluginCapabilitiesResponse()

    def Probe(self, request: csi.ProbeRequest, context: grpc.ServicerContext) -> csi.ProbeResponse:
        return csi.ProbeResponse(ready=BoolValue(value=True))


class NodeService:
    def __init__(
        self,
        keeper: VolumeKeeper,
        *,
        node_id: str,
        kubelet_dir: PurePosixPath = names.KUBELET_ROOT,
        publishing_threads: int = _PUBLISHING_THREADS,
    ) -> None:
        self._keeper = keeper
        self._node_id = node_id
        self._kubelet_dir = kubelet_dir
        self._free_publishers = threading.BoundedSemaphore(publishing_threads)
        self._lock = threading.Lock()  # guards _busy
        self._busy: set[Path] = set()

    def NodeGetInfo(
        self, request: csi.NodeGetInfoRequest, context: grpc.ServicerContext
    ) -> csi.NodeGetInfoResponse:
        return csi.NodeGetInfoResponse(node_id=self._node_id)

    def NodeGetCapabilities(
        self, request: csi.NodeGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi.NodeGetCapabilitiesResponse:
        rpcs = csi.NodeServiceCapability.RPC
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=rpcs(type=one))
                for one in (rpcs.GET_VOLUME_STATS, rpcs.VOLUME_CONDITION)
            ]
        )

    def NodePublishVolume(
        self, request: csi.NodePublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi.NodePublishVolumeResponse:
        began_s = time.monotonic()
        _require("volume_id", request.volume_id)
        target = _path("target_path", request.target_path)
        if not request.HasField("volume_capability"):
            raise VolumeProblem("volume_capability", "is missing")
        if not request.volume_capability.HasField("mount"):
            raise VolumeProblem(
                "volume_capability", "only volumes of files exist, no block devices"
            )
        volume = volume_context.parse(request.volume_context, kubelet_dir=self._kubelet_dir)
        left_s = min(context.time_remaining(), _TIMEOUT_S)  # years, without a deadline
        timeout_s = max(left_s - _ANSWER_S, _SHORTEST_S)
        with self._publishing(target):
            self._keeper.publish(volume, target, timeout_s=timeout_s)
        log.info("published %s at %s, %.1f s", volume, target, time.monotonic() - began_s)
        return csi.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: csi.NodeUnpublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi.NodeUnpublishVolumeResponse:
        _require("volume_id", request.volume_id)
        target = _path("target_path", request.target_path)
        with self._alone_at(target):
            self._keeper.unpublish(target)
        log.info("unpublished %s", target)
        return csi.NodeUnpublishVolumeResponse()

    def NodeGetVolumeStats(
        self, request: csi.NodeGetVolumeStatsRequest, context: grpc.ServicerContext
    ) -> csi.NodeGetVolumeStatsResponse:
        _require("volume_id", request.volume_id)
        _require("volume_path", request.volume_path)
        usage = self._keeper.usage(Path(request.volume_path))  # any other path has no volume
        return csi.NodeGetVolumeStatsResponse(
            usage=[
                csi.VolumeUsage(
                    total=usage.total_bytes,
                    used=usage.used_bytes,
                    available=max(0, usage.total_bytes - usage.used_bytes),
                    unit=csi.VolumeUsage.BYTES,
                ),
                csi.VolumeUsage(total=usage.files, used=usage.files, unit=csi.VolumeUsage.INODES),
            ],
            volume_condition=csi.VolumeCondition(
                abnormal=usage.abnormal is not None, message=usage.abnormal or "readable"
            ),
        )

    @contextmanager
    def _publishing(self, target: Path) -> Iterator[None]:
        if not self._free_publishers.acquire(blocking=False):
            raise VolumeBusy(f"{target}: too many volumes wait for their servers")
        try:
            with self._alone_at(target):
                yield
        finally:
            self._free_publishers.release()

    @contextmanager
    def _alone_at(self, target: Path) -> Iterator[None]:
        """Refuse a second request about a target: a restarted kubelet repeats what it had asked."""
        with self._lock:
            if target in self._busy:
                raise VolumeBusy(f"{target}: an earlier request has not ended")
            self._busy.add(target)
        try:
            yield
        finally:
            with self._lock:
                self._busy.remove(target)


def csi_endpoint(path: Path, node: NodeService) -> rpc.Endpoint:
    services = csi.DESCRIPTOR.services_by_name
    handlers = [
        rpc.handler_of(services["Identity"], IdentityService()),
        rpc.handler_of(services["Node"], node),
    ]
    return rpc.Endpoint(path, handlers, threads=THREADS)


def _require(field: str, value: str) -> None:
    if not value:
        raise VolumeProblem(field, "is missing")


def _path(field: str, value: str) -> Path:
    _require(field, value)
    if not value.startswith("/") or posixpath.normpath(value) != value or "\0" in value:
        raise VolumeProblem(field, f"{value!r} is not an absolute, normalised path")
    return Path(value)
