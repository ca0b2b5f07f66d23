import platform
from typing import Any

import pytest

from penstock.reconcile.node_affinity import Node, accelerator_labels, node_mismatch, this_node
from penstock.specs.dataset import NodeAffinity

V100 = Node("gpu-1", {"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-16GB", "disks": "4"})


def affinity(*terms: dict[str, Any]) -> NodeAffinity:
    return NodeAffinity.model_validate({"required": {"nodeSelectorTerms": list(terms)}})


def matching(expression: str, what: str = "matchExpressions") -> dict[str, Any]:
    key, operator, *values = expression.split()
    return {what: [{"key": key, "operator": operator, "values": values}]}


HERE = (
    "disks In 2 4",
    "disks NotIn 2",
    "absent NotIn 4",
    "disks Exists",
    "absent DoesNotExist",
    "disks Gt 3",
    "disks Lt 5",
)
NOT_HERE = (
    "disks In 2",
    "absent In 2",
    "disks NotIn 4",
    "absent Exists",
    "disks DoesNotExist",
    "disks Gt 4",
    "disks Lt 4",
    "absent Gt 1",
    "aliyun.accelerator/nvidia_name Gt 1",
)


@pytest.mark.parametrize("expression", [*HERE, *NOT_HERE])
def test_every_operator_decides_as_in_kubernetes(expression: str) -> None:
    assert (node_mismatch(affinity(matching(expression)), V100) is None) is (expression in HERE)


def test_one_matching_term_suffices_and_all_of_a_term_must_match() -> None:
    right, wrong = matching("disks In 4"), matching("disks In 2 8")
    both = {"matchExpressions": right["matchExpressions"] + wrong["matchExpressions"]}
    reason = "node gpu-1: label disks is '4', wanted: one of 2, 8"
    assert node_mismatch(affinity(wrong), V100) == reason
    assert node_mismatch(affinity(wrong, right), V100) is None
    assert node_mismatch(affinity(both), V100) == reason
    assert node_mismatch(affinity(matching("metadata.name In gpu-1", "matchFields")), V100) is None
    for terms in ([], [{}], [matching("metadata.name In b", "matchFields")]):
        assert node_mismatch(affinity(*terms), V100) is not None
    assert node_mismatch(None, V100) is None
    assert node_mismatch(NodeAffinity(), V100) is None


def test_this_node_has_the_usual_labels_and_the_given_ones() -> None:
    node = this_node({"zone": "a", "kubernetes.io/arch": "mine"})
    assert node.name == platform.node()
    assert (
        node.labels.items()
        >= {
            "kubernetes.io/hostname": node.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "mine",
            "zone": "a",
        }.items()
    )
    model = "Tesla-V100-SXM2-16GB"
    assert (
        accelerator_labels(["Tesla V100-SXM2-16GB"] * 8).items()
        >= {
            "aliyun.accelerator/nvidia_name": model,
            "nvidia.com/gpu.product": model,
            "nvidia.com/gpu.count": "8",
        }.items()
    )
    assert accelerator_labels([]) == {}
