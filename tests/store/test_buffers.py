"""Memory for blocks is used again once nobody has a view of it."""

import ctypes
import threading

from penstock.store.buffers import SMALLEST_BYTES, Buffers


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_a_buffer_is_used_again_only_after_its_last_view_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(SMALLEST_BYTES)
    assert len(first) == SMALLEST_BYTES
    where, part = address(first), first[100:200]
    del first
    second = buffers.take(SMALLEST_BYTES)
    assert address(second) != where, "a part of it is in use"
    second[:] = b"2" * SMALLEST_BYTES
    assert bytes(part) != b"2" * 100
    del part
    assert address(buffers.take(SMALLEST_BYTES)) == where
    assert buffers.kept_bytes == 2 * SMALLEST_BYTES


def test_what_is_unused_is_given_back_and_other_sizes_make_way() -> None:
    buffers = Buffers(most=2)
    held = buffers.take(SMALLEST_BYTES)
    for extra in range(1, 5):
        buffers.take(SMALLEST_BYTES + extra)
    assert buffers.kept_bytes <= 2 * SMALLEST_BYTES + 4
    small = [buffers.take(SMALLEST_BYTES - 1), buffers.take(0)]
    assert [len(view) for view in small] == [SMALLEST_BYTES - 1, 0]
    buffers.trim()
    assert buffers.kept_bytes == SMALLEST_BYTES, "what is in use stays"
    del held
    buffers.trim()
    assert buffers.kept_bytes == 0


def test_no_two_threads_get_the_same_memory() -> None:
    buffers = Buffers()
    wrong: list[bytes] = []

    def work(mark: bytes) -> None:
        for _ in range(200):
            view = buffers.take(SMALLEST_BYTES)
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
    assert buffers.kept_bytes <= 4 * SMALLEST_BYTES
