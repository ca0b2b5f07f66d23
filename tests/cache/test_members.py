"""The members of a shared tier, and which one has a block."""

from collections import Counter
from pathlib import Path

import pytest

from penstock.cache.members import (
    Address,
    MemberList,
    MemberSource,
    member_of,
    parse_member_file,
    parse_members,
)
from penstock.errors import OptionError

KEYS = [number.to_bytes(8, "little") for number in range(10_000)]
NAMES = [f"10.0.0.{number}:11211".encode() for number in range(4)]


def test_addresses_are_hosts_with_or_without_a_port() -> None:
    found = parse_members("memcached://a:1, b.example ,[::1]:7").addresses
    assert [str(address) for address in found] == ["a:1", "b.example:11211", "[::1]:7"]


def test_members_come_from_a_file_or_from_a_name_as_well() -> None:
    assert parse_members("memcached:///etc/members").file == Path("/etc/members")
    assert parse_members("memcached+dns://w.ns.svc:11212").name == Address("w.ns.svc", 11212)


@pytest.mark.parametrize(
    "text",
    [
        "host:11211",
        "redis://host",
        "memcached://",
        "memcached://a:0",
        "memcached://a:70000",
        "memcached://a b",
        "memcached://a,a:11211",
        "memcached+dns://",
        "memcached+dns://a,b",
        # Python encodes names before it looks them up, and these cannot be.
        "memcached://a..b",
        "memcached://.a",
        "memcached://" + 64 * "a",
    ],
)
def test_other_addresses_are_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_members(text)
    assert text in str(caught.value)
    assert caught.value.hint


def test_a_member_file_has_a_member_a_line_and_comments() -> None:
    text = "# workers\nb:2  # the second\n\na\nb:2\n"
    assert [str(one) for one in parse_member_file(text)] == ["a:11211", "b:2"]


def test_keys_are_spread_evenly() -> None:
    shares = Counter(member_of(NAMES, key) for key in KEYS)
    assert all(2300 < shares[number] < 2700 for number in range(4)), shares


def test_a_lost_member_moves_only_its_own_keys() -> None:
    left = NAMES[:1] + NAMES[2:]
    for key in KEYS:
        before, after = NAMES[member_of(NAMES, key)], left[member_of(left, key)]
        assert before in (after, NAMES[1])


def test_a_changed_file_changes_the_list(tmp_path: Path) -> None:
    file = tmp_path / "members"
    file.write_text("a\n")
    members = MemberList(parse_members(f"memcached://{file}"))
    assert members.read()
    assert not members.read()
    file.write_text("a\nb\n")
    assert members.read()
    assert [str(one) for one in members.addresses] == ["a:11211", "b:11211"]


def test_a_list_that_cannot_be_read_keeps_the_last_one(tmp_path: Path) -> None:
    file = tmp_path / "members"
    file.write_text("a\n")
    members = MemberList(MemberSource(file=file))
    members.read()
    for damage in (lambda: file.write_text("not a member!\n"), file.unlink):
        damage()
        assert not members.read()
        assert [str(one) for one in members.addresses] == ["a:11211"]
        assert members.problem


def test_a_name_that_cannot_be_resolved_keeps_the_last_list() -> None:
    answers: list[set[Address] | OSError] = [{Address("10.0.0.2", 5)}, OSError("no such name")]

    def resolve(name: Address) -> set[Address]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    members = MemberList(MemberSource(name=Address("workers", 5)), resolve)
    assert members.read()
    assert not members.read()
    assert [str(one) for one in members.addresses] == ["10.0.0.2:5"]
