"""docs/guides/kubernetes.md is true: its manifests, and what it says of an uninstallation."""

import re
import subprocess

import pytest

from tests.cluster.helm import CHART, RELEASE
from tests.cluster.inside import install
from tests.cluster.kit import ROOT
from tests.cluster.kube import SYSTEM, Kube
from tests.cluster.volumes import (
    READ_EVERYTHING,
    bucket_mount,
    checksums,
    dataset,
    fill,
    keys_secret,
    pod,
    runtime,
)
from tests.support.s3 import S3

pytestmark = pytest.mark.cluster
GUIDE = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()


def test_the_api_server_takes_every_manifest_of_the_guide(kube: Kube) -> None:
    manifests = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    assert len(manifests) >= 4
    for manifest in manifests:
        kube("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=manifest)


def test_every_value_that_the_guide_names_exists() -> None:
    for setting in re.findall(r"--set ([\w.]+)=", GUIDE):
        done = subprocess.run(
            ["helm", "template", CHART, f"--set-string={setting}=here"], capture_output=True
        )
        assert b"here" in done.stdout, setting


@pytest.mark.alone  # the other tests need Penstock
def test_data_sets_outlive_an_uninstallation(kube: Kube, cluster_s3: S3, nodes: list[str]) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
        dataset("idle", bucket_mount(cluster_s3, kube.namespace)),
        runtime("idle"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    kube.wait_for_phase("dataset", "idle", "Bound")
    for name in ("trainer", "ended"):
        kube.apply(pod(name, "images", "ls /data >/dev/null; sleep 3000", node="node-1"))
    for name in ("trainer", "ended"):
        kube.wait_for_phase("pod", name, "Running", timeout_s=90)

    def read() -> dict[str, str]:
        return checksums(kube("exec", "trainer", "--", "sh", "-c", READ_EVERYTHING))

    subprocess.run(
        ["helm", "uninstall", RELEASE, f"--namespace={SYSTEM}", "--wait"],
        check=True,
        capture_output=True,
    )
    try:
        kube.wait_for(lambda: not Kube(SYSTEM).list("pods"), "pods stay", timeout_s=90)
        assert kube.get("dataset", "images")["status"]["phase"] == "Bound"
        assert read() == contents
        kube("delete", "pod", "ended", "--wait=false")
        kube.apply(pod("late", "images", READ_EVERYTHING, node="node-1"))
        kube("delete", "dataset", "idle", "--wait=false")
        kube.wait_for(
            lambda: "not found in the list of registered CSI drivers" in kube("get", "events"),
            "no event says that the driver is missing",
        )
        assert kube.get("pod", "late")["status"]["phase"] == "Pending"
        assert kube.find("dataset", "idle") is not None
        assert kube.find("pod", "ended") is not None
    finally:
        install(len(nodes))
    assert read() == contents
    kube.wait_for_phase("pod", "late", "Succeeded", timeout_s=150)
    kube.wait_for(lambda: kube.find("dataset", "idle") is None, "the data set stays")
    kube.wait_for(lambda: kube.find("pod", "ended") is None, "the pod stays", timeout_s=150)
