"""Objects with random bytes, put into a cache directory block by block and read from it."""

import random
from collections.abc import Callable

from penstock.cache.directory import CacheDirectory
from penstock.cache.identity import CachedObject, block_of, identify

BLOCK = 1 << 20

Opener = Callable[..., CacheDirectory]


def sample(name: str, size: int, version: str = "1") -> tuple[CachedObject, bytes]:
    data = random.Random(name + version).randbytes(size)
    return identify("s3://b", name, version, size, BLOCK), data


def put(cache: CacheDirectory, what: CachedObject, data: bytes) -> bool:
    blocks = [block_of(what, number, BLOCK) for number in range(-(-len(data) // BLOCK))]
    stored = [
        cache.write(what, BLOCK, block, data[block.start : block.start + block.length])
        for block in blocks
    ]
    return all(stored)


def get(cache: CacheDirectory, what: CachedObject, start: int, stop: int) -> bytes | None:
    block = block_of(what, start // BLOCK, BLOCK)
    found = cache.read(block, start - block.start, stop - block.start)
    return None if found is None else bytes(found)
