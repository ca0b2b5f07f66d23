"""A small fill of a cache directory, and what must hold of it whatever has happened since."""

import gc
import random
from pathlib import Path

from penstock.cache.directory import CacheDirectory
from penstock.cache.guarded import GuardedDirectory
from penstock.cache.identity import Block, CachedObject, block_of, identify
from penstock.cache.policy import Keep
from penstock.metrics import Counters
from tests.support.cache_samples import Disk

BLOCK = 64 * 1024
SIZES = {"a": 1000, "b": 5000, "c": 70, "large": 2 * BLOCK + 777}
DATA = {name: random.Random(name).randbytes(size) for name, size in SIZES.items()}
OBJECTS = {name: identify("s3://b", name, "1", size, BLOCK) for name, size in SIZES.items()}
OUTDATED = "c"


def open_cache(path: Path) -> CacheDirectory:
    return CacheDirectory(
        path, name="SSD", quota_bytes=1 << 30, high=1, low=1, policy=Keep(), counters=Counters()
    )


def blocks_of(obj: CachedObject) -> list[Block]:
    return [block_of(obj, number, BLOCK) for number in range(-(-obj.size_bytes // BLOCK))]


def fill(cache: CacheDirectory) -> None:
    for name in SIZES:
        for block in blocks_of(OBJECTS[name]):
            data = DATA[name][block.start : block.start + block.length]
            assert cache.write(OBJECTS[name], BLOCK, block, data)
        cache.index.flush()


def fill_in_full(path: Path) -> None:
    """Everything that is ever done to a directory: opened, filled, something evicted, closed."""
    cache = open_cache(path)
    fill(cache)
    cache.mark_outdated([OBJECTS[OUTDATED].digest])
    cache.evict_outdated(0)
    cache.close()
    del cache  # with its last connection SQLite empties the log into the database


def check_comes_up_clean(path: Path) -> int:
    """Opens the directory and checks every claim that it makes; returns how many bytes of what
    was filled are still there."""
    cache = open_cache(path)
    try:
        survived = 0
        for name, obj in OBJECTS.items():
            whole = cache.complete_file(obj)
            if whole is not None:
                assert whole.read_bytes() == DATA[name]
            for block in blocks_of(obj):
                found = cache.read(block, 0, block.length)
                wanted = DATA[name][block.start : block.start + block.length]
                assert found is None or found == wanted, f"wrong bytes in {name}"
                survived += len(found or b"")
        cache.sweep()
        _check_counts(cache)
        fill(cache)
        for name, obj in OBJECTS.items():
            whole = cache.complete_file(obj)
            assert whole is not None, f"{name} cannot be completed"
            assert whole.read_bytes() == DATA[name]
        assert cache.used_bytes == sum(SIZES.values())
        _check_counts(cache)
        cache.index.check()
    finally:
        cache.close()
        del cache
        let_go_of_connections()
    return survived


def let_go_of_connections() -> None:
    """A connection of Python's sqlite3 refers to itself, so it is closed when garbage is collected,
    whenever that is: one that belonged to the directory before would take away the log of this one,
    which has the same name."""
    gc.collect()


def _check_counts(cache: CacheDirectory) -> None:
    entries = list(cache.index.entries())
    assert cache.used_bytes == sum(entry.cached_bytes for entry in entries), "counted twice"
    for entry in entries:
        lengths = [
            min(entry.block_bytes, entry.size_bytes - number * entry.block_bytes)
            for number in cache.index.block_numbers(entry.digest)
        ]
        whole = entry.size_bytes <= entry.block_bytes
        assert entry.cached_bytes == (entry.size_bytes if whole else sum(lengths))
    names = {file.name for file in (cache.path / "objects").glob("*/*")}
    assert names == {entry.digest.hex() for entry in entries}, "files that nobody knows"
    assert not list(cache.path.glob(".penstock-*"))


def empty(path: Path) -> None:
    """The folders stay: making 256 of them takes longer than everything else."""
    for file in (*path.iterdir(), *path.glob("objects/*/*")):
        if file.name != "objects":
            file.unlink(missing_ok=True)  # SQLite may be faster


def use(guarded: GuardedDirectory, disk: Disk, *, rounds: int) -> None:
    """Reads and fills a cache that may be damaged: what it gives is right, or nothing."""
    for _ in range(rounds):
        for name, obj in OBJECTS.items():
            whole = guarded.complete_file(obj)
            assert whole is None or whole.read_bytes() == DATA[name]
            for block in blocks_of(obj):
                wanted = DATA[name][block.start : block.start + block.length]
                assert guarded.read(block, 0, block.length) in (None, wanted)
                guarded.write(obj, BLOCK, block, wanted)
        guarded.source_bytes("s3://b")
        guarded.status()
        disk.now_s += 60
