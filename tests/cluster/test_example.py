"""examples/10-kubernetes, as its README says."""

import re

import pytest

from tests.cluster.kit import ROOT
from tests.cluster.kube import Kube
from tests.cluster.playground import fill_in
from tests.cluster.volumes import fill
from tests.support.s3 import S3

pytestmark = pytest.mark.cluster
EXAMPLE = ROOT / "examples" / "10-kubernetes"


def test_the_example_trains_two_epochs_and_is_deleted(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    dataset, trainer = (
        fill_in((EXAMPLE / name).read_text(), cluster_s3.endpoint, kube.namespace)
        for name in ("dataset.yaml", "trainer.yaml")
    )
    kube.apply(dataset)
    kube.wait_for_phase("dataset", "images", "Bound")
    kube.apply(trainer)
    kube.wait_for_phase("pod", "trainer", "Succeeded", timeout_s=90)
    epochs = re.findall(r"epoch (\d): (\d+) files, (\d+) bytes", kube("logs", "trainer"))
    assert [(number, files) for number, files, _ in epochs] == [
        ("0", str(len(contents))),
        ("1", str(len(contents))),
    ]
    assert epochs[0][2] == epochs[1][2]
    kube(
        "delete",
        "-f",
        "-",
        "--timeout=60s",
        "--ignore-not-found",
        stdin=f"{trainer}\n---\n{dataset}",
    )
    assert kube.find("dataset", "images") is None
