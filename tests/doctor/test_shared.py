"""The shared tier of a mount, judged: each rule over facts that were made up, and a real mount."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cache.member_stats import MemberStats
from penstock.doctor.findings import Finding
from penstock.doctor.rules.shared import Member, judge_members, members_of
from penstock.units import GIB, KIB, MIB
from tests.support.members import Client, StartMember, status
from tests.support.memcached import address_of, memcached
from tests.support.mounts import Mounter, penstock, succeed
from tests.support.trees import write_tree

STATS = MemberStats(
    version="1.6.18",
    items=100_000,
    bytes=2 * GIB,
    limit_bytes=8 * GIB,
    item_limit_bytes=2 * MIB,
    connections=20,
    connection_limit=8192,
)
HERE, THERE = "127.0.0.1:11211", "10.0.0.5:11211"
WELL = Member(HERE, STATS)


def judged(*members: Member, **given: object) -> list[Finding]:
    """What is not `ok`."""
    found = judge_members(members, "imagenet", **given)  # type: ignore[arg-type]
    return [one for one in found if one.severity != "ok"]


def having(address: str = HERE, **changes: object) -> Member:
    return Member(address, replace(STATS, **changes))  # type: ignore[arg-type]


def test_members_that_are_well_are_no_finding() -> None:
    assert judged(WELL, having("127.0.0.1:11212"), data_bytes=10 * GIB) == []
    (fine,) = judge_members([WELL], "imagenet", data_bytes=GIB)
    assert (fine.severity, fine.why) == ("ok", "1 member, 2.0 GiB of 8.0 GiB")


@pytest.mark.parametrize(
    ("severity", "member", "says"),
    [("slow", Member(HERE, None, "timed out"),
      "127.0.0.1:11211 of its shared tier does not answer|timed out|penstock shared start"),
     ("slow", Member(HERE, None, "it answered b'ERROR Too many open connections' to stats"),
      "has no connection left|memcached -c"),
     ("slow", having(item_limit_bytes=512 * KIB), "refuses large values|512.0 KiB|-I 2m"),
     ("bad", having(version="1.5.22"), "too old|memcached 1.5.22|1.6 or later"),
     ("slow", having(connections_refused=3), "too few connections|3 refused"),
     ("slow", having(connections=8000), "too few connections|8,000 of 8,192"),
     ("slow", having(evictions=2000), "evict values|127.0.0.1:11211: 2,000|--memory or --flash"),
     ("slow", having(flash_evictions=2000), "evict values|2,000"),
     ("note", having(THERE), "not sealed|10.0.0.5:11211|--shared-key FILE")],
)  # fmt: skip
def test_what_is_wrong_with_a_member_is_found_with_a_remedy(
    severity: str, member: Member, says: str
) -> None:
    (found,) = judged(member)
    assert found.severity == severity
    text = f"{found.what} {found.why} {found.remedy}"
    assert [one for one in says.split("|") if one not in text] == []


def test_a_few_evictions_are_no_finding() -> None:
    assert judged(having(evictions=1000)) == []


def test_a_sealed_tier_is_no_finding() -> None:
    assert judged(having(THERE), sealed=True) == []


def test_memory_and_flash_of_all_members_are_compared_with_the_data_set() -> None:
    small = having(limit_bytes=4 * GIB, flash_limit_bytes=6 * GIB)
    assert judged(small, having("127.0.0.1:2", limit_bytes=10 * GIB), data_bytes=15 * GIB) == []
    (found,) = judged(small, Member("127.0.0.1:2", STATS), data_bytes=16 * GIB)
    assert "too small for the data set" in found.what
    assert "18.0 GiB in 2 members" in found.why
    assert "20.0 GiB are needed" in found.remedy


def test_a_list_of_members_that_cannot_be_read_is_found() -> None:
    (found,) = judged(WELL, problem="no such file")
    assert (found.severity, found.why) == ("slow", "no such file")
    assert "the last one is in use" in found.what


def test_facts_of_an_older_server_or_of_none_are_no_members() -> None:
    assert members_of({"notes": []}) == members_of(None) == []


def test_a_mount_reports_its_members_and_the_doctor_judges_them(
    mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path / "source", {"file": b"bytes"})
    with memcached("-m", "64", "-I", "512k") as small, memcached() as dead:
        mount = mounter(f"file://{tmp_path}/source", "--shared", address_of(small, dead))
        dead.kill()
        answer = json.loads(penstock("doctor", mount.path, "-o", "json").stdout)
    assert [one["member"] for one in answer["shared"]] == [small.address, dead.address]
    assert [one["reachable"] for one in answer["shared"]] == [True, False]
    assert answer["shared"][0]["stats"]["item_limit_bytes"] == 512 << 10
    found = {one["what"] for one in answer["findings"] if one["severity"] == "slow"}
    assert f"the member {small.address} of its shared tier refuses large values" in found
    assert f"the member {dead.address} of its shared tier does not answer" in found


def test_a_member_that_penstock_started_is_well(
    member: StartMember, mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path / "source", {"file": b"bytes"})
    port = member()
    mount = mounter(f"file://{tmp_path}/source", "--shared", f"memcached://127.0.0.1:{port}")
    text = succeed("doctor", mount.path, "-v")
    assert "its shared tier works" in text
    assert "1 member, " in text


def test_members_full_of_other_data_are_found(
    member: StartMember, mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path / "source", {"file": b"bytes"})
    port = member()
    with Client(port) as client:
        for number in range(250):  # 119 MiB
            assert client.set(f"k{number}", bytes(500_000))
    assert status(port)["stats"]["evictions"] > 20
    mount = mounter(f"file://{tmp_path}/source", "--shared", f"memcached://127.0.0.1:{port}")
    assert "evict values to make room for others" in succeed("doctor", mount.path)
