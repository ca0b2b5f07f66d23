"""Every field of Fluid's kinds is known by name."""

from pathlib import Path

import pytest

from penstock.specs.models import MODELS
from penstock.specs.shapes import find
from tests.support.manifests import level, manifest, problem, problems, read_one

# From the custom resource definitions of Fluid 1.1, down to where Kubernetes' own objects (volumes,
# probes, a pod's spec) begin. Each line: kind, path, and the fields at that path.
LINES = [
    line.split() for line in (Path(__file__).parent / "fluid-fields.txt").read_text().splitlines()
]
FIELDS = [(kind, f"{above}.{name}") for kind, above, *names in LINES for name in names]


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in FIELDS}))
def test_every_field_of_fluid_is_known(kind: str) -> None:
    assert [path for other, path in FIELDS if other == kind and not _known(kind, path)] == []


def _known(kind: str, path: str) -> bool:
    """At its place, or inside something that is taken as it is."""
    if find(MODELS[kind], path) is not None:
        return True
    above = find(MODELS[kind], path.rpartition(".")[0])
    return above is not None and above.model is None and (above.is_list or above.is_map)


@pytest.mark.parametrize(
    ("spec", "where", "hint"),
    [("fuse:\n  image_tag: v1", "f.yaml:7: spec.fuse.image_tag", "did you mean imageTag?"),
     ("fuse:\n  Options: {}", "f.yaml:7: spec.fuse.Options", "did you mean options?"),
     ("levels: []", "f.yaml:6: spec.levels", "another place: spec.tieredstore.levels"),
     ("fuse:\n  jvmOptions: []", "f.yaml:7: spec.fuse.jvmOptions", "a field of AlluxioRuntime"),
     ("fuse:\n  zebra: 1", "f.yaml:7: spec.fuse.zebra", "fields of spec.fuse: ")],
)  # fmt: skip
def test_an_unknown_field_is_an_error_that_names_the_nearest(
    spec: str, where: str, hint: str
) -> None:
    what, found = problem(manifest("JuiceFSRuntime", spec))
    assert what == f"{where}: unknown field"
    assert hint in found


def test_a_field_under_a_wrong_name_is_not_said_to_be_missing_as_well() -> None:
    what, hint = problem(manifest("Dataset", "mounts:\n- mountpoint: s3://bucket\n"))
    assert what == "f.yaml:7: spec.mounts.0.mountpoint: unknown field"
    assert hint == "did you mean mountPoint?"


ADDED_BY_A_SERVER = """status: {phase: Bound, ufsTotal: 5}
metadata: {uid: x, resourceVersion: '5', creationTimestamp: null, finalizers: [a], generation: 2,
  managedFields: [{manager: kubectl}], ownerReferences: [], name: imagenet}
"""


@pytest.mark.parametrize(
    "text",
    [manifest("AlluxioRuntime", "volumes: [{name: x, whatever: {deep: 1}}]\n"
              "fuse: {resources: {limits: {nvidia.com/gpu: 1}}, podMetadata: {labels: {a: b}}}"),
     manifest("AlluxioRuntime", "dataReplicas: 3\nfuse: {shortCircuitPolicy: x, global: true}\n"
              "tieredstore: {levels: [{mediumtype: MEM, storageType: Memory}]}"),
     manifest("Dataset", "mounts: [{mountPoint: s3://b}]").replace(
         "metadata:\n  name: imagenet\n", ADDED_BY_A_SERVER)],
    ids=["objects of Kubernetes", "fields of older releases", "what a server adds"],
)  # fmt: skip
def test_a_manifest_is_taken_with(text: str) -> None:
    assert problems(text) == ()


@pytest.mark.parametrize(
    ("written", "high", "quota_bytes"),
    [('high: "0.95"\nquota: 2Gi', "0.95", 2**31), ("high: 0.95\nquota: 2", "0.95", 2),
     ('high: 1\nquota: "2"', "1", 2), ("quota: 1e9", "", 10**9)],
)  # fmt: skip
def test_numbers_may_stand_without_quotes_where_people_leave_them_out(
    written: str, high: str, quota_bytes: int
) -> None:
    spec = read_one(level(f"mediumtype: SSD\npath: /a\n{written}")).resource.spec  # type: ignore[attr-defined]
    assert spec.tieredstore.levels[0].high == high
    assert spec.tieredstore.levels[0].quota_bytes == quota_bytes
