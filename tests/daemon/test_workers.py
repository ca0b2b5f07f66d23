"""How a worker starts to serve, and how much room of a cache directory workers hold in advance."""

import os
from typing import cast

import pytest

from penstock.cache.directory import CacheDirectory
from penstock.daemon.channel import Channel
from penstock.daemon.worker import receive_go
from penstock.daemon.worker_pool import reserve_for_worker
from penstock.units import GIB, KIB, MIB


class Directory:
    """The part of CacheDirectory that matters here."""

    def __init__(self, free_bytes: int) -> None:
        self.high_bytes = free_bytes
        self.used_bytes = 0

    def reserve(self, length: int) -> bool:
        if self.used_bytes + length > self.high_bytes:
            return False
        self.used_bytes += length
        return True


def reserve(directory: Directory, length: int, held: int, workers: int = 8) -> int:
    return reserve_for_worker(
        cast(CacheDirectory, directory), length=length, held=held, workers=workers
    )


@pytest.mark.parametrize(
    ("free", "length", "held", "granted"),
    [
        (100 * GIB, 0, 0, 64 * MIB),  # plenty: no need to ask for each file
        (100 * GIB, 110 * KIB, 0, 64 * MIB),
        (100 * GIB, 0, 60 * MIB, 0),  # most of its share is left
        (100 * GIB, 0, 40 * MIB, 24 * MIB),
        (320 * MIB, 0, 0, 10 * MIB),  # a quarter of what is free, for eight workers
        (320 * MIB, 20 * MIB, 0, 20 * MIB),  # what is needed now is had in any case
        (1 * MIB, 110 * KIB, 0, 110 * KIB),
        (100 * KIB, 110 * KIB, 0, 0),
    ],
)
def test_a_worker_gets_room_in_advance_while_there_is_much(
    free: int, length: int, held: int, granted: int
) -> None:
    assert reserve(Directory(free), length, held) == granted


def test_all_workers_together_hold_a_quarter_of_the_free_room() -> None:
    directory = Directory(256 * MIB)
    held = [0] * 4
    for _ in range(20):
        for worker in range(4):
            held[worker] += reserve(directory, 0, held[worker], workers=4)
    assert 40 * MIB < sum(held) <= 64 * MIB


def test_messages_that_overtake_go_are_kept_for_later() -> None:
    server, theirs = Channel.pair()
    worker = Channel(theirs)
    early = [{"ahead": True}, {"room": [[0, 4096]]}]
    for message in early:
        server.send(message)
    server.send({"go": {"workers": 3}}, [0])
    server.send({"sync": [1, None]})
    received = receive_go(worker)
    assert received is not None
    go, descriptors, kept = received
    for descriptor in descriptors:
        os.close(descriptor)
    assert (go, len(descriptors), kept) == ({"workers": 3}, 1, early)
    assert worker.receive() == ({"sync": [1, None]}, [])
    server.close()
    assert receive_go(worker) is None
    worker.close()
