"""What outlives a killed server: requests without an answer, and the files that are open."""

import os
from collections.abc import Callable, Iterator

import pytest

from penstock.fuse import journal
from penstock.fuse.journal import (
    BACKING,
    DAEMON_OPENS,
    USERS,
    Journal,
    Ledger,
    Open,
    new_journal,
    new_ledger,
)
from penstock.fuse.protocol import IN_HEADER


@pytest.fixture
def memory() -> Iterator[Callable[[Callable[[], int]], int]]:
    made: list[int] = []

    def make(new: Callable[[], int]) -> int:
        made.append(new())
        return made[-1]

    yield make
    for descriptor in made:
        os.close(descriptor)


Make = Callable[[Callable[[], int]], int]


def take(one: Journal, unique: int, body: bytes = b"") -> int:
    """What the kernel and a server do with a request: it is written, and then noted."""
    slot, buffer = one.take_slot()
    request = IN_HEADER.pack(IN_HEADER.size + len(body), 15, unique, 7, 0, 0, 0, 0, 0) + body
    buffer[: len(request)] = request
    one.note(unique, slot)
    return slot


def test_the_next_server_finds_unanswered_requests(memory: Make) -> None:
    descriptor = memory(new_journal)
    first = Journal(descriptor)
    for unique in (10, 11, 12):
        take(first, unique, b"name\0")
    first.answered(11)
    first.answered(99)  # of no request that it knows
    second = Journal(descriptor)
    found = {one.unique: one for one in second.unanswered()}
    assert set(found) == {10, 12}
    assert found[10].length == len(found[10].request) == IN_HEADER.size + 5
    assert bytes(found[10].request[-5:]) == b"name\0"
    resent = IN_HEADER.unpack_from(found[10].request)[2]
    assert resent == 10 | 1 << 63, "marked as the kernel marks what it sends again"
    for unique in found:
        second.answered(unique)
    assert list(Journal(descriptor).unanswered()) == []


def test_slots_are_reused_except_those_of_an_earlier_server(
    memory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SLOTS", 4)
    descriptor = memory(new_journal)
    first = Journal(descriptor)
    kept = take(first, 1)
    second = Journal(descriptor)
    slots = [second.take_slot()[0] for _ in range(3)]
    assert sorted([*slots, kept]) == [0, 1, 2, 3]
    second.put_back(slots[1])
    assert second.take_slot()[0] == slots[1]
    # All are taken: the next waits until one is answered.
    waited: list[float] = []
    monkeypatch.setattr(
        journal.time, "sleep", lambda seconds: (waited.append(seconds), second.answered(1))
    )
    assert second.take_slot()[0] == kept
    assert len(waited) == 1


def test_the_next_server_knows_the_open_files(memory: Make) -> None:
    descriptor = memory(new_ledger)
    first = Ledger(descriptor)
    one, two, gone = first.enter(101), first.enter(102), first.enter(103)
    first.write(one, BACKING, 5)
    first.write(one, USERS, 2)
    first.write(two, DAEMON_OPENS, 1)
    first.write(gone, USERS, 9)
    first.leave(gone)
    second = Ledger(descriptor)
    assert sorted(second.opens()) == sorted([Open(one, 101, 5, 2, 0), Open(two, 102, 0, 0, 1)])
    slots = [second.enter(200 + number) for number in range(3)]
    assert not {one, two} & set(slots)
    assert all(second.read(slot, USERS) == 0 for slot in slots)
    again = first.enter(104)
    assert again == gone
    assert first.read(gone, USERS) == 0, "counts of the one before are gone"


def test_the_kept_memory_grows_without_losing_anything(
    memory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_FIRST_RECORDS", 2)
    descriptor = memory(new_ledger)
    one = Ledger(descriptor)
    slots = [one.enter(100 + number) for number in range(9)]
    assert len(set(slots)) == 9
    for slot in slots:
        one.write(slot, USERS, slot + 1)
    found = {entry.ino: entry.users for entry in Ledger(descriptor).opens()}
    assert found == {100 + number: slot + 1 for number, slot in enumerate(slots)}
