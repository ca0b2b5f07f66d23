"""A plan in shared memory, as both sides see it."""

import fcntl
import os
from array import array
from pathlib import Path

import pytest

from penstock.errors import PlanError
from penstock.warm.order import NOT_ON_MOUNT, OrderReader, OrderWriter

NAMES = [b"a/1.jpg", "ü/2.jpg".encode(), b"3"]


def test_the_reader_sees_names_order_and_cursor() -> None:
    writer = OrderWriter(NAMES, capacity=10)
    reader = OrderReader(writer.descriptor)
    writer.add(array("I", [2, 0, NOT_ON_MOUNT, 1]))
    writer.move(3, 1)
    assert [reader.name(number) for number in range(3)] == NAMES
    assert reader.files == 3
    assert reader.files_at(0, reader.end) == [2, 0, NOT_ON_MOUNT, 1]
    assert (reader.handed_out, reader.done, reader.end) == (3, 1, 4)
    before = reader.generation
    writer.cut()
    writer.add(array("I", [2, 2]))
    assert reader.generation != before
    assert reader.files_at(0, reader.end) == [2, 0, NOT_ON_MOUNT, 2, 2], "from what was handed out"
    assert writer.missing[0] == 0
    reader.note_missing(2)
    reader.note_missing(1)
    assert writer.missing == (2, NAMES[2])
    # Positions go round in the ring.
    writer = OrderWriter(NAMES, capacity=4)
    reader = OrderReader(writer.descriptor)
    writer.add(array("I", [0, 1, 2]))
    assert writer.room == 1
    writer.move(3, 3)
    assert writer.room == 4
    writer.add(array("I", [2, 1, 0, 2]))
    assert reader.files_at(3, reader.end) == [2, 1, 0, 2]
    assert reader.files_at(3, 1) == reader.files_at(6, 3) == [], "cut between two looks"


def test_memory_that_may_shrink_or_is_read_only_is_rejected(tmp_path: Path) -> None:
    plan = os.pread(OrderWriter(NAMES, capacity=10).descriptor, 1 << 20, 0)
    (tmp_path / "plan").write_bytes(plan)
    plain = os.open(tmp_path / "plan", os.O_RDWR)
    unsealed, unwritable = (os.memfd_create(name, os.MFD_ALLOW_SEALING) for name in "ab")
    for descriptor in (unsealed, unwritable):
        os.write(descriptor, plan)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(unwritable, fcntl.F_ADD_SEALS, seals)
    refused = {plain: "sealed", unsealed: "sealed", unwritable: "cannot be mapped"}
    for descriptor, why in refused.items():
        with pytest.raises(PlanError, match=why):
            OrderReader(descriptor)
        os.close(descriptor)


def test_a_plan_with_a_wrong_size_or_paths_outside_the_mount_is_rejected() -> None:
    for word in range(4):
        writer = OrderWriter(NAMES, capacity=10)
        os.pwrite(writer.descriptor, (1 << 40).to_bytes(8, "little"), word * 8)
        with pytest.raises(PlanError, match="not an epoch plan"):
            OrderReader(writer.descriptor)
    for name in (b"../secret", b"a/../../b", b"a\0b", b"..", b""):
        reader = OrderReader(OrderWriter([b"a", name, b"..b"], capacity=1).descriptor)
        assert [reader.name(number) for number in range(3)] == [b"a", b"", b"..b"]
    # Ends of names that lie anywhere.
    writer = OrderWriter([b"a" * 5000, b"b", b"c"], capacity=1)
    os.pwrite(writer.descriptor, (2**64 - 1).to_bytes(8, "little") * 2, 4096)
    reader = OrderReader(writer.descriptor)
    assert [len(reader.name(number)) for number in range(3)] == [4096, 0, 0]
