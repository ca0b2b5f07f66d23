"""This machine as a Kubernetes node, and whether a Dataset's nodeAffinity admits it.

`this_node` looks at the machine; the rest is pure.
"""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.jobs.usage import query_nvidia_smi
from penstock.specs.dataset import NodeAffinity, NodeSelectorTerm, Requirement

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NVIDIA = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, Any], ...] = field(default=())


def this_node(given: Mapping[str, str]) -> Node:
    """Return this machine with the labels found on it; `given` labels take precedence."""
    name = platform.node() or "localhost"
    machine = platform.machine()
    found = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _ARCHITECTURES.get(machine, machine),
        **accelerator_labels(_accelerators()),
    }
    return Node(name, {**found, **given})


def accelerator_labels(models: list[str]) -> dict[str, str]:
    """Return labels as NVIDIA's feature discovery and Alibaba's device plugin write them."""
    if not models:
        return {}
    product, count = models[0].replace(" ", "-"), str(len(models))
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": count,
        "aliyun.accelerator/nvidia_name": product,
        "aliyun.accelerator/nvidia_count": count,
    }


def node_mismatch(affinity: NodeAffinity | None, node: Node) -> str | None:
    """Return why the node is excluded; None if it is admitted.

    As in Kubernetes one term must match, and a term matches if all its expressions do.
    """
    if affinity is None or affinity.required is None:
        return None
    terms = affinity.required.node_selector_terms
    if not terms:
        return f"node {node.name}: nodeSelectorTerms is empty, which matches no node"
    reasons = [_why_not(term, node) for term in terms]
    if None in reasons:
        return None
    return f"node {node.name}: " + ", and ".join(reason for reason in reasons if reason)


def _why_not(term: NodeSelectorTerm, node: Node) -> str | None:
    if not term.match_expressions and not term.match_fields:
        return "an empty term matches no node"
    checks = [(one, node.labels, "label") for one in term.match_expressions]
    checks += [(one, {"metadata.name": node.name}, "field") for one in term.match_fields]
    for wanted, values, what in checks:
        value = values.get(wanted.key)
        meets = _OPERATORS.get(wanted.operator)
        if meets is None or not meets(value, wanted.values):
            has = "is not set" if value is None else f"is {value!r}"
            return f"{what} {wanted.key} {has}, wanted: {_describe(wanted)}"
    return None


def _describe(wanted: Requirement) -> str:
    values = wanted.values
    return {
        "In": "one of " + ", ".join(values),
        "NotIn": "none of " + ", ".join(values),
        "Exists": "any value",
        "DoesNotExist": "no such label",
        "Gt": "more than " + ", ".join(values),
        "Lt": "less than " + ", ".join(values),
    }.get(wanted.operator, f"{wanted.operator}, an unknown operator")


def _compare(value: str | None, values: list[str], sign: int) -> bool:
    try:
        return len(values) == 1 and sign * (int(value or "") - int(values[0])) > 0
    except ValueError:
        return False


_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
    "Gt": lambda value, values: _compare(value, values, 1),
    "Lt": lambda value, values: _compare(value, values, -1),
}


def _accelerators() -> list[str]:
    """Return the model of each NVIDIA GPU, as the driver reports it.

    `nvidia-smi` is asked where the driver has no /proc files (WSL, some sandboxes).
    """
    found: list[str] = []
    try:
        for gpu in sorted(os.listdir(_NVIDIA)):
            for line in (_NVIDIA / gpu / "information").read_text().splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "Model":
                    found.append(value.strip())
    except OSError:
        found = []
    return found or [name for (name,) in query_nvidia_smi("name")]
