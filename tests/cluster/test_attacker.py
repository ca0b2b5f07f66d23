"""What somebody can reach who runs code in a server pod: docs/threat-model.md, on a cluster."""

import json

import pytest

from tests.cluster.kube import SYSTEM, Json, Kube
from tests.cluster.volumes import (
    READ_EVERYTHING,
    bucket_mount,
    dataset,
    fill,
    keys_secret,
    pod,
    runtime,
)
from tests.support.s3 import S3

pytestmark = pytest.mark.cluster
# Runs in the server pod, and prints what it has found as JSON.
_LOOK = r"""
import ctypes, json, os, socket, ssl, urllib.error, urllib.request
def attempt(action):
    try:
        return f"done: {action()!r}"
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
def api(path):
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    context = ssl._create_unverified_context()
    try:
        return urllib.request.urlopen(f"https://{host}{path}", context=context, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
libc = ctypes.CDLL(None, use_errno=True)
def mount():
    if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
status = dict(line.split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
lines = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps({
    "user": os.getuid(), "capabilities": [status[one].strip() for one in ("CapBnd", "CapEff")],
    "no_new_privileges": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "volumes": [[line[3], line[4]] for line in lines],
    "secrets": sorted(os.listdir("/etc/penstock/secrets")),
    "sockets": os.listdir("/run/penstock"),
    "token": os.path.exists("/var/run/secrets/kubernetes.io"),
    "write": attempt(lambda: open("/etc/new", "w")), "mount": attempt(mount),
    "fuse": attempt(lambda: os.open("/dev/fuse", os.O_RDWR)),
    "api": [api(path) for path in ("/api/v1/secrets", "/api/v1/namespaces/default/pods",
            "/apis/data.fluid.io/v1alpha1/datasets")],
}))
"""


@pytest.fixture
def look(kube: Kube, cluster_s3: S3) -> Json:
    fill(cluster_s3.bucket(kube.namespace), files=2)
    for name in ("images", "other"):
        kube.apply(
            keys_secret(), dataset(name, bucket_mount(cluster_s3, kube.namespace)), runtime(name)
        )
        kube.wait_for_phase("dataset", name, "Bound")
        kube.run_pod(pod(f"reader-{name}", name, READ_EVERYTHING))
    kube.apply(keys_secret("not-for-this-data-set"))
    (server,) = (
        one["metadata"]["name"]
        for one in kube.list("pods", "--selector=penstock.dev/server")
        if one["metadata"]["name"].startswith("images-fuse")
    )
    return json.loads(kube("exec", server, "--", "python3", "-c", _LOOK))


def test_an_attacker_in_a_server_pod_reaches_nothing_but_its_own_data_set(
    kube: Kube, look: Json
) -> None:
    assert look["user"] == 65532
    assert look["capabilities"] == ["0000000000000000"] * 2
    assert (look["no_new_privileges"], look["seccomp"]) == ("1", "2")
    own = f"/{kube.namespace}/images"
    places = {place: root for root, place in look["volumes"] if own in root}
    assert set(places) == {"/run/penstock", "/var/lib/penstock", "/cache/mem-0"}
    others = [root for root, _ in look["volumes"] if "/other" in root or "/sets" in root]
    assert others == [places["/var/lib/penstock"]], "folders of other data sets"
    assert look["sockets"] == ["node.sock"]
    assert look["secrets"] == ["keys"]
    assert not look["token"]
    assert look["write"] == "Read-only file system"
    assert look["mount"] == "Operation not permitted"
    assert look["fuse"] in ("No such file or directory", "Operation not permitted")
    assert set(look["api"]) <= {401, 403}


def test_a_pod_gets_no_folder_of_a_data_set_in_another_namespace(
    kube: Kube, other_kube: Kube
) -> None:
    """The kubelet names the pod's namespace, whatever the attributes of its volume say."""
    volume: Json = {
        "name": "stolen",
        "csi": {
            "driver": "fuse.csi.fluid.io",
            "volumeAttributes": {
                "penstock.dev/role": "state",
                "penstock.dev/dataset": "images",
                "csi.storage.k8s.io/pod.namespace": other_kube.namespace,
            },
        },
    }
    thief = pod("thief", "", "cat /proc/self/mountinfo")
    thief["spec"]["volumes"] = [volume]
    thief["spec"]["containers"][0]["volumeMounts"] = [{"name": "stolen", "mountPath": "/stolen"}]
    (line,) = [one for one in kube.run_pod(thief).splitlines() if " /stolen " in one]
    assert f"/{kube.namespace}/images" in line
    assert other_kube.namespace not in line


def test_no_role_of_penstock_may_read_a_secret_or_run_a_pod(kube: Kube) -> None:
    for account in ("penstock-operator", "penstock-node"):
        who = f"--as=system:serviceaccount:{SYSTEM}:{account}"
        for verb, what in (
            ("get", "secrets"), ("list", "secrets"), ("create", "pods"), ("create", "pods/exec"),
            ("escalate", "clusterroles"), ("create", "clusterrolebindings"),
        ):  # fmt: skip
            answer = kube.attempt("auth", "can-i", verb, what, who, "--all-namespaces")
            assert answer.stdout.strip() == "no", (account, verb, what)
    node = f"--as=system:serviceaccount:{SYSTEM}:penstock-node"
    assert kube.attempt("auth", "can-i", "get", "persistentvolumes", node).stdout.strip() == "yes"
    for verb, what in (("list", "persistentvolumes"), ("patch", "nodes"), ("get", "datasets")):
        assert kube.attempt("auth", "can-i", verb, what, node).stdout.strip() == "no", what
