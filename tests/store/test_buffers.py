"""Memory for blocks is used again once nobody has a view of it."""

import ctypes
import threading

from penstock.store.buffers import POOLED_MULTIPLE, Buffers


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_a_buffer_is_reused_only_after_its_last_view_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(POOLED_MULTIPLE)
    assert len(first) == POOLED_MULTIPLE
    where, part = address(first), first[100:200]
    del first
    second = buffers.take(POOLED_MULTIPLE)
    assert address(second) != where, "a part of it is in use"
    second[:] = b"2" * POOLED_MULTIPLE
    assert bytes(part) != b"2" * 100
    del part
    assert address(buffers.take(POOLED_MULTIPLE)) == where
    assert buffers.kept_bytes == 2 * POOLED_MULTIPLE


def test_unused_buffers_are_freed_and_replaced_by_other_sizes() -> None:
    buffers = Buffers(most_bytes=4 * POOLED_MULTIPLE)
    held = buffers.take(POOLED_MULTIPLE)
    for units in (3, 2, 1, 4):
        assert len(buffers.take(units * POOLED_MULTIPLE)) == units * POOLED_MULTIPLE
        assert buffers.kept_bytes <= 4 * POOLED_MULTIPLE
    buffers.trim()
    assert buffers.kept_bytes == POOLED_MULTIPLE, "what is in use stays"
    del held
    buffers.trim()
    assert buffers.kept_bytes == 0


def test_buffers_of_rare_lengths_are_not_kept() -> None:
    buffers = Buffers()
    lengths = [0, 110_000, POOLED_MULTIPLE - 1, POOLED_MULTIPLE + 1]
    assert [len(buffers.take(length)) for length in lengths] == lengths
    assert buffers.kept_bytes == 0


def test_no_two_threads_get_the_same_memory() -> None:
    buffers = Buffers()
    wrong: list[bytes] = []

    def work(mark: bytes) -> None:
        for _ in range(200):
            view = buffers.take(POOLED_MULTIPLE)
            view[:100] = mark * 100
            if bytes(view[:100]) != mark * 100:
                wrong.append(mark)
            del view

    threads = [threading.Thread(target=work, args=(bytes([n]),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert buffers.kept_bytes <= 4 * POOLED_MULTIPLE
