"""Cache directories, and objects with random bytes that are put into them block by block."""

import random
from pathlib import Path

from penstock.cache.build import open_directory
from penstock.cache.directory import CacheDirectory
from penstock.cache.guarded import GuardedDirectory
from penstock.cache.identity import CachedObject, block_of, identify
from penstock.cache.indexfile import IndexIdentity
from penstock.cache.policy import Keep
from penstock.metrics import Counters

BLOCK = 1 << 20


def sample(name: str, size: int, version: str = "1") -> tuple[CachedObject, bytes]:
    data = random.Random(name + version).randbytes(size)
    return identify("s3://b", name, version, size, BLOCK), data


def put(cache: CacheDirectory | GuardedDirectory, obj: CachedObject, data: bytes) -> bool:
    blocks = [block_of(obj, number, BLOCK) for number in range(-(-len(data) // BLOCK))]
    stored = [
        cache.write(obj, BLOCK, block, data[block.start : block.start + block.length])
        for block in blocks
    ]
    return all(stored)


def get(
    cache: CacheDirectory | GuardedDirectory, obj: CachedObject, start: int, stop: int
) -> bytes | None:
    block = block_of(obj, start // BLOCK, BLOCK)
    found = cache.read(block, start - block.start, stop - block.start)
    return None if found is None else bytes(found)


class Disk:
    """Opens a directory, unless it is told to fail; its clock stands still until it is moved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_s = 1000.0
        self.error: Exception | None = None
        self.probes = 0
        self.counters = Counters()

    def open(self, damaged: IndexIdentity | None) -> CacheDirectory:
        self.probes += 1
        if self.error is not None:
            raise self.error
        return open_directory(
            self.path,
            name="SSD",
            quota_bytes=1 << 30,
            high=1,
            low=1,
            policy=Keep(),
            counters=self.counters,
            damaged=damaged,
        )

    def guard(self, *, must_open: bool = True) -> GuardedDirectory:
        return GuardedDirectory(
            self.path,
            "SSD",
            self.open,
            self.counters,
            must_open=must_open,
            clock=lambda: self.now_s,
            start=lambda work: work(),
            sweep_pause_s=0,
        )
