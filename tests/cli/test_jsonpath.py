"""Templates of `kubectl get -o jsonpath=…`, as people write them."""

import pytest

from penstock.api.jsonpath import column, render
from penstock.errors import OptionError

DATASET = {
    "metadata": {"name": "imagenet", "labels": {"team.io/name": "vision"}},
    "spec": {"mounts": [{"mountPoint": "s3://a"}, {"mountPoint": "s3://b"}]},
    "status": {
        "phase": "Bound",
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "UpdateReady", "status": "False"},
        ],
    },
}
LIST = {"items": [DATASET, {"metadata": {"name": "empty"}}]}


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{.status.phase}", "Bound"),
        (".status.phase", "Bound"),
        ("{$.spec.mounts[*].mountPoint}", "s3://a s3://b"),
        ("{.spec.mounts[-1].mountPoint}", "s3://b"),
        ("{.spec.mounts[0:1]}", '{"mountPoint": "s3://a"}'),
        ("{.metadata.labels['team.io/name']}", "vision"),
        (r"{.metadata.labels.team\.io/name}", "vision"),
        ('{.status.conditions[?(@.type=="Ready")].status}', "True"),
        ('{.status.conditions[?(@.type != "Ready")].status}', "False"),
        ("{..mountPoint}", "s3://a s3://b"),
        ("phase: {.status.phase}, {.status.none}", "phase: Bound, "),
    ],
)
def test_a_template_prints_what_kubectl_prints(template: str, shown: str) -> None:
    assert render(template, DATASET) == shown


def test_a_range_repeats_its_body() -> None:
    template = r'{range .items[*]}{.metadata.name}{"\t"}{.status.phase}{"\n"}{end}'
    assert render(template, LIST) == "imagenet\tBound\nempty\t\n"


@pytest.mark.parametrize("template", ["{.a", "{range .items[*]}", "{end}", "{.a[}", "{.a[b]}"])
def test_a_template_with_a_mistake_is_refused(template: str) -> None:
    with pytest.raises(OptionError) as refused:
        render(template, LIST)
    assert (refused.value.hint or "").startswith("write it like")


def test_a_column_without_a_value_says_so() -> None:
    shown = [column(".status.phase")(one) for one in LIST["items"]]
    assert shown == ["Bound", "<none>"]
    assert column(".spec.mounts[*].mountPoint")(DATASET) == "s3://a,s3://b"
