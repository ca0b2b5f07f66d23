"""What the kubelet does: calls the services of the node plugin on their Unix sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node.proto import csi_pb2, pluginregistration_pb2
from penstock.kubernetes.node.volume_context import PublishedVolume, VolumeUsage

Answer = TypeVar("Answer", bound=Message)
IMAGENET = ServedKey("default", "imagenet")
CLAIM = {
    names.FLUID_PATH: "/runtime-mnt/alluxio/default/imagenet/alluxio-fuse",
    names.MOUNT_TYPE: "alluxio",
    names.RUNTIME_NAMESPACE: "default",
    names.RUNTIME_NAME: "imagenet",
    names.POD_NAMESPACE: "default",
    names.POD_NAME: "reader",
    names.POD_UID: "6a5f",
    names.EPHEMERAL: "false",
}
INLINE = {
    names.ROLE: "state",
    names.DATASET: "imagenet",
    names.POD_NAMESPACE: "default",
    names.POD_NAME: "imagenet-fuse-x7k2p",
    names.POD_UID: "0b1c",
    names.EPHEMERAL: "true",
}
_METHODS = {
    method.name: (service, method)
    for file in (csi_pb2, pluginregistration_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Kubelet:
    """Calls the plugin behind a socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def call(self, request: Message, kind: type[Answer], *, timeout_s: float = 20.0) -> Answer:
        """Send a request of type METHODRequest; raise grpc.RpcError where the plugin does."""
        answer = self.send(type(request).__name__.removesuffix("Request"), request, timeout_s)
        assert isinstance(answer, kind)
        return answer

    def send(self, method: str, request: Message, timeout_s: float = 20.0) -> Message:
        # A channel for each call, as the kubelet has it: the socket may be another one by now.
        with grpc.insecure_channel(f"unix:{self._path}") as channel:
            if method in _METHODS:
                service, found = _METHODS[method]
                path, answer = service.full_name, GetMessageClass(found.output_type)
            else:  # of the specification, but not of our .proto
                path, answer = "csi.v1.Node", csi_pb2.ProbeResponse
            call = channel.unary_unary(
                f"/{path}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return call(request, timeout=timeout_s)

    def publish(
        self, target: Path, context: dict[str, str], *, timeout_s: float = 20.0
    ) -> csi_pb2.NodePublishVolumeResponse:
        request = publish_request(target, context)
        return self.call(request, csi_pb2.NodePublishVolumeResponse, timeout_s=timeout_s)

    def unpublish(self, target: Path) -> csi_pb2.NodeUnpublishVolumeResponse:
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id="v", target_path=str(target))
        return self.call(request, csi_pb2.NodeUnpublishVolumeResponse)

    def stats(self, target: Path) -> csi_pb2.NodeGetVolumeStatsResponse:
        request = csi_pb2.NodeGetVolumeStatsRequest(volume_id="v", volume_path=str(target))
        return self.call(request, csi_pb2.NodeGetVolumeStatsResponse)


def publish_request(
    target: Path | str, context: dict[str, str]
) -> csi_pb2.NodePublishVolumeRequest:
    return csi_pb2.NodePublishVolumeRequest(
        volume_id="default-imagenet",
        target_path=str(target),
        volume_capability=csi_pb2.VolumeCapability(
            mount=csi_pb2.VolumeCapability.MountVolume(),
            access_mode=csi_pb2.VolumeCapability.AccessMode(
                mode=csi_pb2.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY
            ),
        ),
        readonly=True,
        volume_context=context,
    )


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    call = cast("grpc.Call", error)
    return call.code(), call.details()


class ScriptedKeeper:
    """Remembers what is published; a function replaces a call to make it fail or wait."""

    def __init__(self) -> None:
        self.published: dict[Path, PublishedVolume] = {}
        self.timeouts_s: list[float] = []
        self.usages: dict[Path, VolumeUsage] = {}

    def publish(self, volume: PublishedVolume, target: Path, *, timeout_s: float) -> None:
        self.timeouts_s.append(timeout_s)
        self.published[target] = volume

    def unpublish(self, target: Path) -> None:
        self.published.pop(target, None)

    def usage(self, target: Path) -> VolumeUsage:
        return self.usages[target]


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder with a path short enough for sockets in it: they may have 107 characters."""
    folder = tempfile.mkdtemp(prefix="kubelet-", dir="/tmp")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)
