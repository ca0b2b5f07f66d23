"""csi-sanity, the conformance suite of CSI, against the real node plugin.

The suite asks a controller for volumes. We have none: the operator and users write volumes. So a
front stands between: it makes volumes of a given shape and passes all other calls on to the plugin.
"""

import itertools
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node import rpc
from penstock.kubernetes.node.registration import csi_socket
from tests.support.csi import status_of
from tests.support.node import Node, ServerPod, claim_context, open_node

KEY = ServedKey("default", "demo")
INLINE = {
    names.DATASET: KEY.name,
    names.POD_NAMESPACE: KEY.namespace,
    names.POD_NAME: "demo-fuse-x7k2p",
    names.POD_UID: "0b1c",
    names.EPHEMERAL: "true",
}
# Specs of these words are for what the plugin does not do, and says so.
NOT_OFFERED = (
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodeExpandVolume",
    "NodeGetVolumeHealth",
    "NodeGetStorageHealth",
    "single node multi writer",
)


class _Front(grpc.GenericRpcHandler):
    def __init__(self, plugin: Path, context: dict[str, str]) -> None:
        self._channel = grpc.insecure_channel(f"unix:{plugin}")
        self._context = context
        self._numbers = itertools.count()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        answers = {
            "/csi.v1.Identity/GetPluginCapabilities": lambda: _capability(1),  # CONTROLLER_SERVICE
            "/csi.v1.Controller/ControllerGetCapabilities": lambda: _capability(1),  # CREATE_DELETE
            "/csi.v1.Controller/CreateVolume": self._volume,
            "/csi.v1.Controller/DeleteVolume": bytes,
        }
        if method in answers:
            return grpc.unary_unary_rpc_method_handler(lambda *_: answers[method]())
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._pass_on(method, request, context)
        )

    def _pass_on(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return self._channel.unary_unary(method)(request, timeout=60)
        except grpc.RpcError as error:
            context.abort(*status_of(error))

    def _volume(self) -> bytes:
        """Encode a CreateVolumeResponse: the volume's id, and its attributes."""
        attributes = b"".join(
            _field(3, _field(1, key.encode()) + _field(2, value.encode()))
            for key, value in self._context.items()
        )
        return _field(1, _field(2, b"volume-%d" % next(self._numbers)) + attributes)

    def close(self) -> None:
        self._channel.close()


def _capability(kind: int) -> bytes:
    return _field(1, _field(1, bytes([1 << 3, kind])))


def _field(number: int, content: bytes) -> bytes:
    """Encode a field as protobuf does: messages and strings, below 16 KiB."""
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + content


@pytest.fixture
def node() -> Iterator[Node]:
    with open_node() as made:
        yield made


@pytest.fixture
def server(node: Node) -> Iterator[ServerPod]:
    """A server pod of the data set, as the claim needs one."""
    data = node.folder / "data"
    data.mkdir()
    (data / "file").write_text("content")
    node.run("mkdir", "-p", "/host")
    node.run("mount", "--rbind", "/", "/host")
    node.set_volume(KEY, exists=True)
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    served = {
        "dataset": {
            "apiVersion": "data.fluid.io/v1alpha1",
            "kind": "Dataset",
            "metadata": metadata,
            "spec": {"mounts": [{"mountPoint": f"local://{data}", "name": "data", "path": "/"}]},
        },
        "runtime": {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "PenstockRuntime",
            "metadata": metadata,
            "spec": {
                "tieredstore": {"levels": [{"mediumtype": "SSD", "path": "/x", "quota": "64Mi"}]}
            },
        },
        "references": [],
    }
    pod = ServerPod(node, "demo-fuse-0", served, node.folder / "server.log")
    node.publish(KEY, "before")  # as soon as it is served
    node.kubelet.unpublish(node.kubelet_dir / "pods/before/volumes/data/mount")
    yield pod
    pod.kill()


def run_suite(node: Node, context: dict[str, str]) -> dict[str, str]:
    """Run the suites of the services that we have; return each spec's outcome."""
    front = _Front(csi_socket(node.kubelet_dir), context)
    endpoint = rpc.Endpoint(node.folder / "front.sock", [front], threads=8)
    endpoint.open()
    report = node.folder / "report.xml"
    (node.kubelet_dir / "pods" / "sanity").mkdir()
    try:
        # Outside of the node's namespace: it sees the folders that the plugin makes and removes.
        done = subprocess.run(
            [
                "csi-sanity",  # in PATH, as all of the kit
                f"-csi.endpoint=unix://{endpoint.path}",
                f"-csi.mountdir={node.kubelet_dir}/pods/sanity/mount",
                f"-csi.stagingdir={node.kubelet_dir}/pods/sanity/staging",
                "-ginkgo.focus=Identity Service|Node Service",
                f"-ginkgo.junit-report={report}",
                "-ginkgo.no-color",
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        endpoint.close()
        front.close()
    assert done.returncode == 0, f"{done.stdout}\n{node.plugin_log()}"
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {
        case.attrib["name"]: case.attrib["status"]
        for case in cases
        if "Identity Service" in case.attrib["name"] or "Node Service" in case.attrib["name"]
    }


def check(node: Node, context: dict[str, str]) -> None:
    outcomes = run_suite(node, context)
    skipped = [name for name, status in outcomes.items() if status == "skipped"]
    assert [name for name in skipped if not any(word in name for word in NOT_OFFERED)] == []
    passed = [name for name, status in outcomes.items() if status == "passed"]
    assert sorted([*passed, *skipped]) == sorted(outcomes)
    for spec in ("should work", "should be idempotent", "should remove target path"):
        assert any(name.endswith(spec) for name in passed), spec
    assert node.mounts("pods/sanity") == []


@pytest.mark.cluster
@pytest.mark.usefixtures("server")
def test_a_claim_conforms_to_csi(node: Node):
    check(node, claim_context(KEY, "reader"))


@pytest.mark.cluster
@pytest.mark.parametrize("role", ["link", "state", "cache"])
def test_a_folder_of_a_server_pod_conforms_to_csi(node: Node, role: str):
    root = {names.CACHE_ROOT: str(node.folder / "caches")} if role == "cache" else {}
    check(node, {**INLINE, names.ROLE: role, **root})
