"""This machine, judged: each rule over facts that were made up, and what the kernel writes."""

import os
import threading
from dataclasses import replace

import pytest

from penstock.resources.diagnosis.deadline import TooSlow, each_within, within
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
from tests.support.declared_samples import only

WELL = Machine(
    release="6.18.1", kernel=(6, 18), is_root=True, fuse_error=None, fusermount=None,
    user_allow_other=False, memory=Memory(64 * GIB, 32 * GIB, 0.0, 0),
)  # fmt: skip
USER = replace(WELL, is_root=False, fusermount="/bin/fusermount3")
SMALL = Memory(4 * GIB, 600 * MIB, 0.0, 0)


@pytest.mark.parametrize(
    ("severity", "findings", "says"),
    [
        ("bad", judge_machine(replace(WELL, fuse_error="No such file")),
         "No such file|modprobe fuse"),
        ("bad", judge_machine(replace(USER, fusermount=None)), "fusermount3"),
        ("bad", judge_machine(USER, wants_allow_other=True), "user_allow_other"),
        ("note", judge_machine(replace(WELL, kernel=(6, 8))), "no passthrough"),
        ("note", judge_machine(replace(WELL, kernel=(6, 12))), "listing"),
        ("slow", judge_machine(replace(WELL, memory=Memory(64 * GIB, GIB, 0.42, 0))), "42%"),
        ("slow", judge_machine(replace(WELL, memory=Memory(64 * GIB, GIB, None, 0))),
         "1.0 GiB of 64.0 GiB available"),
        ("slow", judge_thrashing(200 * MIB, 2.0), "100.0 MiB a second"),
        ("slow", judge_cgroup("x", Cgroup(512 * MIB, 0, 0), GIB), "--memory 256.0MiB"),
        ("bad", judge_cgroup("x", Cgroup(None, 0, 3), GIB), "oom_kill 3"),
        ("slow", judge_room("x", SMALL, 200 * MIB, GIB), "it may take 824.0 MiB more"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_to_do(
    severity: str, findings: list[Finding], says: str
) -> None:
    found = only(findings, severity)
    for words in says.split("|"):
        assert words in f"{found.what}\n{found.why}\n{found.remedy}"


@pytest.mark.parametrize(
    ("findings", "count"),
    [
        (judge_machine(WELL), 3),
        (judge_machine(replace(USER, user_allow_other=True), wants_allow_other=True), 3),
        (judge_thrashing(MIB, 2.0), 1),
        (judge_thrashing(None, 2.0), 0),
        (judge_cgroup("x", Cgroup(None, 5, 0), GIB), 1),
        (judge_room("x", SMALL, 500 * MIB, GIB), 1),
    ],
)
def test_nothing_is_said_of_a_machine_that_is_well(findings: list[Finding], count: int) -> None:
    assert [one.severity for one in findings] == ["ok"] * count


def test_what_the_kernel_writes_is_read() -> None:
    assert meminfo("MemTotal:  100 kB\nMemFree: 3 kB\nMemAvailable: 50 kB\n") == (102400, 51200)
    pressure = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0 total=0\n"
    assert stalled_share(pressure) == 0.125
    assert stalled_share("") is None
    assert refaults("nr_free_pages 1\nworkingset_refault_file 77\n") == 77
    assert allows_other("# user_allow_other\n") is False
    assert allows_other("mount_max = 9\n user_allow_other\n") is True
    machine = look_at_machine()
    assert machine.memory.total_bytes > machine.memory.available_bytes > 0
    assert machine.kernel >= (5, 0)
    before, after = replace(SMALL, refaults=5), replace(SMALL, refaults=7)
    assert refaulted_bytes(before, after) == 2 * os.sysconf("SC_PAGE_SIZE")
    assert look_at_cgroup(2**22 + 1) is None


def test_the_worst_comes_first_and_decides_how_the_command_ends() -> None:
    slow, note = Finding("slow", "x", "a"), Finding("note", "x", "b")
    bad = Finding("bad", "x", "c")
    away = Finding("bad", "x", "d", unreachable=True)
    assert worst_first([ok("x", "e"), note, slow, bad])[0] is bad
    assert [exit_code(some) for some in ([], [slow, note], [bad, slow], [bad, away])] == [
        0, 0, 2, 3,
    ]  # fmt: skip


def test_a_look_that_never_returns_costs_its_deadline_and_nothing_more() -> None:
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)
    released = threading.Event()
    with pytest.raises(TooSlow):
        within(0.01, lambda: released.wait(30))
    found = each_within(1.0, {"hangs": lambda: released.wait(30), "well": lambda: True})
    assert found == {"hangs": None, "well": True}
    released.set()
    # More than fit at once are all looked at.
    looks = {number: (lambda number=number: number * 2) for number in range(10)}
    assert each_within(5, looks, at_once=3) == {number: number * 2 for number in range(10)}
