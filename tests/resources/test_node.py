import platform
from typing import Any

import pytest

from penstock.resources.node import Node, accelerator_labels, this_node, why_not_here
from penstock.specs.dataset import NodeAffinity

V100 = Node("gpu-1", {"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-16GB", "disks": "4"})


def affinity(*terms: dict[str, Any]) -> NodeAffinity:
    return NodeAffinity.model_validate({"required": {"nodeSelectorTerms": list(terms)}})


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "here"),
    [
        (label("disks", "In", "2", "4"), True),
        (label("disks", "In", "2"), False),
        (label("absent", "In", "2"), False),
        (label("disks", "NotIn", "2"), True),
        (label("disks", "NotIn", "4"), False),
        (label("absent", "NotIn", "4"), True),
        (label("disks", "Exists"), True),
        (label("absent", "Exists"), False),
        (label("absent", "DoesNotExist"), True),
        (label("disks", "DoesNotExist"), False),
        (label("disks", "Gt", "3"), True),
        (label("disks", "Gt", "4"), False),
        (label("disks", "Lt", "5"), True),
        (label("disks", "Lt", "4"), False),
        (label("absent", "Gt", "1"), False),
        (label("aliyun.accelerator/nvidia_name", "Gt", "1"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}, False),
        ({}, False),
    ],
)
def test_every_operator_of_kubernetes_decides_as_kubernetes_does(
    term: dict[str, Any], here: bool
) -> None:
    assert (why_not_here(affinity(term), V100) is None) is here


def test_the_reason_names_label_value_and_wish() -> None:
    assert why_not_here(affinity(label("disks", "In", "2", "8")), V100) == (
        "node gpu-1: label disks is '4', wanted: one of 2, 8"
    )


def test_one_of_several_terms_is_enough_and_all_of_a_term_is_needed() -> None:
    right, wrong = label("disks", "In", "4"), label("absent", "Exists")
    both = {"matchExpressions": right["matchExpressions"] + wrong["matchExpressions"]}
    assert why_not_here(affinity(wrong, right), V100) is None
    assert why_not_here(affinity(both), V100) is not None
    assert why_not_here(affinity(), V100) is not None
    assert why_not_here(None, V100) is None
    assert why_not_here(NodeAffinity(), V100) is None


def test_this_node_has_the_usual_labels_and_those_it_was_given() -> None:
    node = this_node({"zone": "a", "kubernetes.io/arch": "mine"})
    assert node.name == platform.node()
    assert node.labels["kubernetes.io/hostname"] == node.name
    assert node.labels["kubernetes.io/os"] == "linux"
    assert node.labels["kubernetes.io/arch"] == "mine"
    assert node.labels["zone"] == "a"


def test_accelerators_are_labelled_as_device_plugins_do() -> None:
    labels = accelerator_labels(["Tesla V100-SXM2-16GB"] * 8)
    assert labels["aliyun.accelerator/nvidia_name"] == "Tesla-V100-SXM2-16GB"
    assert labels["nvidia.com/gpu.product"] == "Tesla-V100-SXM2-16GB"
    assert labels["nvidia.com/gpu.count"] == "8"
    assert accelerator_labels([]) == {}
