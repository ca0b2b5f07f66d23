"""A Dataset that names the members of a shared tier: its runtime's tieredstore is theirs."""

import pytest
from tests.support.planning import S3_DATASET, plan, runtime

from penstock.cache.members import Address
from penstock.errors import SpecProblem
from penstock.fluid.members import MemberPlan
from penstock.member.options import Flash
from penstock.units import GIB

MEMBERS = "memcached://10.0.0.5:11211,10.0.0.6"
TIERS = """
  replicas: 2
  tieredstore:
    levels:
      - {mediumtype: MEM, path: /dev/shm, quota: 8Gi}
      - {mediumtype: SSD, path: /nvme, quota: 200Gi}
"""
OPTIONS = f"  options: {{shared: '{MEMBERS}'}}\n"
KINDS = ["AlluxioRuntime", "JindoRuntime", "JuiceFSRuntime", "PenstockRuntime"]


def dataset(**annotations: str) -> str:
    written = "".join(
        f'\n    "penstock.dev/{name.replace("_", "-")}": "{value}"'
        for name, value in annotations.items()
    )
    return S3_DATASET.replace(
        "{name: imagenet}", f"\n  name: imagenet\n  annotations:{written or ' {}'}"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tieredstore_becomes_the_size_of_each_member(kind: str) -> None:
    found = plan(dataset(shared=MEMBERS, shared_key="/etc/k") + runtime(kind, TIERS))
    assert found.members == MemberPlan(
        (Address("10.0.0.5", 11211), Address("10.0.0.6", 11211)), 8 * GIB, Flash("/nvme", 200 * GIB)
    )
    assert (found.settings.shared, found.settings.shared_key) == (MEMBERS, "/etc/k")
    assert found.settings.tiers == ()
    assert [one for one in found.of_runtime if "replicas" in one.path] == []
    assert "each member of the shared tier holds as much" in found.notes[-1]


@pytest.mark.parametrize("kind", KINDS[:3])
def test_without_the_annotation_replicas_and_tieredstore_mean_what_they_did(kind: str) -> None:
    found = plan(S3_DATASET + runtime(kind, TIERS))
    assert found.members is None
    assert found.settings.shared is None
    assert [tier.quota_bytes for tier in found.settings.tiers] == [8 * GIB, 200 * GIB]
    assert [one.path for one in found.of_runtime if "replicas" in one.path] == ["spec.replicas"]


def test_another_number_of_replicas_than_of_members_is_noted() -> None:
    text = dataset(shared=MEMBERS) + runtime("JindoRuntime", TIERS.replace("2", "3", 1))
    assert plan(text).notes[-1] == ("spec.replicas: 3, but penstock.dev/shared names 2 members")


def test_an_option_of_our_runtime_leaves_its_tiers_to_the_mount() -> None:
    found = plan(S3_DATASET + runtime("PenstockRuntime", TIERS + OPTIONS))
    assert (found.members, found.settings.shared) == (None, MEMBERS)
    assert len(found.settings.tiers) == 2


@pytest.mark.parametrize(
    ("annotations", "spec", "says"),
    [({"shared": "redis://h"}, TIERS, "not the address of a shared tier"),
     ({"shared": "memcached:///etc/members"}, TIERS, "a list of members is needed"),
     ({"shared_key": "/etc/k"}, TIERS, "shared-key without penstock.dev/shared"),
     ({"shared": MEMBERS, "shared_key": "k"}, TIERS, "not an absolute path"),
     ({"shared": MEMBERS}, "", "a level of memory"),
     ({"shared": MEMBERS}, TIERS.replace("MEM", "HDD"), "a level of memory"),
     ({"shared": MEMBERS}, TIERS.replace(", quota: 8Gi", ""), "a member needs a quota"),
     ({"shared": MEMBERS}, TIERS.replace("8Gi", "8Mi"), "8.0 MiB of memory"),
     ({"shared": MEMBERS}, TIERS.replace("/nvme", "'/a,/b'"), "one folder is needed")],
)  # fmt: skip
def test_what_no_member_can_be_made_from_is_refused(
    annotations: dict[str, str], spec: str, says: str
) -> None:
    with pytest.raises(SpecProblem, match=says):
        plan(dataset(**annotations) + runtime("AlluxioRuntime", spec))


def test_an_option_and_the_annotation_exclude_each_other() -> None:
    with pytest.raises(SpecProblem, match="exclude each other"):
        plan(dataset(shared=MEMBERS) + runtime("PenstockRuntime", TIERS + OPTIONS))
