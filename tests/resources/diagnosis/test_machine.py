"""This machine, judged: each rule over facts that were made up, and what the kernel writes."""

import os
from dataclasses import replace

import pytest

from penstock.resources.diagnosis.facts.machine import (
    Cgroup,
    Machine,
    Memory,
    allows_other,
    look_at_cgroup,
    look_at_machine,
    meminfo,
    refaulted_bytes,
    refaults,
    stalled_share,
)
from penstock.resources.diagnosis.finding import Finding, exit_code, ok, worst_first
from penstock.resources.diagnosis.rules.machine import (
    judge_cgroup,
    judge_machine,
    judge_room,
    judge_thrashing,
)
from penstock.units import GIB, MIB

WELL = Machine(
    release="6.18.1", kernel=(6, 18), is_root=True, fuse_error=None, fusermount=None,
    user_allow_other=False, memory=Memory(64 * GIB, 32 * GIB, 0.0, 0),
)  # fmt: skip


def judged(**changes: object) -> list[Finding]:
    return [one for one in judge_machine(replace(WELL, **changes)) if one.severity != "ok"]


def test_nothing_is_said_of_a_machine_that_is_well() -> None:
    assert judged() == []
    assert len(judge_machine(WELL)) == 3


def test_fuse_that_cannot_be_opened_is_wrong() -> None:
    (found,) = judged(fuse_error="No such file or directory")
    assert (found.severity, found.why) == ("bad", "No such file or directory")
    assert "modprobe fuse" in found.remedy
    assert exit_code([found]) == 2


def test_only_an_ordinary_user_needs_fusermount_and_leave_to_let_others_read() -> None:
    assert judged(fusermount=None) == []
    (found,) = judged(is_root=False, fusermount=None)
    assert "fusermount3" in found.what
    user = replace(WELL, is_root=False, fusermount="/bin/fusermount3")
    found = [one for one in judge_machine(user, wants_allow_other=True) if one.severity == "bad"]
    assert "user_allow_other" in found[0].why
    user = replace(user, user_allow_other=True)
    assert all(one.severity == "ok" for one in judge_machine(user, wants_allow_other=True))


@pytest.mark.parametrize(
    ("kernel", "says"), [((6, 8), "no passthrough"), ((6, 9), "listing"), ((6, 12), "listing")]
)
def test_kernels_that_lack_something_are_noted(kernel: tuple[int, int], says: str) -> None:
    (found,) = judged(kernel=kernel)
    assert (found.severity, says in found.what) == ("note", True)
    assert exit_code([found]) == 0


def test_memory_that_programs_wait_for_is_slow_with_the_share() -> None:
    (found,) = judged(memory=Memory(64 * GIB, GIB, 0.42, 0))
    assert (found.severity, "42%" in found.why) == ("slow", True)
    (found,) = judged(memory=Memory(64 * GIB, GIB, None, 0))
    assert "1.0 GiB of 64.0 GiB available" in found.why


def test_a_page_cache_that_loses_what_it_had_is_slow() -> None:
    (found,) = judge_thrashing(200 * MIB, 2.0)
    assert (found.severity, "100.0 MiB a second" in found.why) == ("slow", True)
    assert [one.severity for one in judge_thrashing(MIB, 2.0)] == ["ok"]
    assert judge_thrashing(None, 2.0) == []


def test_a_cgroup_that_is_smaller_than_the_server_may_be_or_has_killed() -> None:
    (found,) = judge_cgroup("x", Cgroup(512 * MIB, 0, 0), GIB)
    assert (found.severity, "--memory 256.0MiB" in found.remedy) == ("slow", True)
    (found,) = judge_cgroup("x", Cgroup(None, 0, 3), GIB)
    assert (found.severity, "oom_kill 3" in found.why) == ("bad", True)
    assert [one.severity for one in judge_cgroup("x", Cgroup(None, 5, 0), GIB)] == ["ok"]


def test_a_machine_that_has_not_what_a_server_may_take_is_slow() -> None:
    memory = Memory(4 * GIB, 600 * MIB, 0.0, 0)
    (found,) = judge_room("x", memory, 200 * MIB, GIB)
    assert (found.severity, "it may take 824.0 MiB more" in found.why) == ("slow", True)
    assert [one.severity for one in judge_room("x", memory, 500 * MIB, GIB)] == ["ok"]


def test_what_the_kernel_writes_is_read() -> None:
    assert meminfo("MemTotal:  100 kB\nMemFree: 3 kB\nMemAvailable: 50 kB\n") == (102400, 51200)
    pressure = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0 total=0\n"
    assert stalled_share(pressure) == 0.125
    assert stalled_share("") is None
    assert refaults("nr_free_pages 1\nworkingset_refault_file 77\n") == 77
    assert allows_other("# user_allow_other\n") is False
    assert allows_other("mount_max = 9\n user_allow_other\n") is True


def test_this_very_machine_can_be_looked_at() -> None:
    machine = look_at_machine()
    assert machine.memory.total_bytes > machine.memory.available_bytes > 0
    assert machine.kernel >= (5, 0)
    later = replace(machine.memory, refaults=(machine.memory.refaults or 0) + 2)
    if machine.memory.refaults is not None:
        assert refaulted_bytes(machine.memory, later) == 2 * os.sysconf("SC_PAGE_SIZE")
    assert look_at_cgroup(2**22 + 1) is None


def test_the_worst_comes_first_and_decides_how_the_command_ends() -> None:
    slow, note = Finding("slow", "x", "a"), Finding("note", "x", "b")
    bad = Finding("bad", "x", "c")
    away = Finding("bad", "x", "d", unreachable=True)
    assert worst_first([ok("x", "e"), note, slow, bad])[0] is bad
    assert [exit_code(some) for some in ([], [slow, note], [bad, slow], [bad, away])] == [
        0, 0, 2, 3,
    ]  # fmt: skip
