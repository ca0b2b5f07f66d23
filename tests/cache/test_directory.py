"""One cache directory: what is stored comes back, checked, and within its quota."""

import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import files, index
from penstock.cache.identity import block_of, identify
from penstock.cache.indexfile import IndexDamaged
from penstock.cache.policy import LeastRecentlyUsed
from tests.support.cache_samples import BLOCK, Opener, get, put, sample

KIB = 1024


def test_what_was_written_is_read_back_in_any_piece(opened: Opener) -> None:
    cache = opened()
    what, data = sample("large", 3 * BLOCK + 12345)
    put(cache, what, data)
    for start, stop in ((0, 1), (100, 300_000), (BLOCK, 2 * BLOCK), (3 * BLOCK, len(data))):
        assert get(cache, what, start, stop) == data[start:stop]


def test_another_version_is_another_object(opened: Opener) -> None:
    cache = opened()
    old, data = sample("x", 1000, "old")
    put(cache, old, data)
    new, _ = sample("x", 1000, "new")
    assert get(cache, new, 0, 1000) is None


def test_a_complete_object_is_one_plain_file(opened: Opener) -> None:
    cache = opened()
    what, data = sample("plain", 2 * BLOCK + 7)
    cache.write(what, BLOCK, block_of(what, 2, BLOCK), data[2 * BLOCK :])
    assert cache.complete_file(what) is None
    put(cache, what, data)
    path = cache.complete_file(what)
    assert path is not None
    assert path.read_bytes() == data


def test_the_cache_survives_a_restart(opened: Opener) -> None:
    first = opened()
    what, data = sample("kept", 5000)
    put(first, what, data)
    first.close()
    second = opened()
    assert get(second, what, 0, 5000) == data
    assert second.used_bytes == 5000


def test_two_processes_share_it(opened: Opener) -> None:
    one, two = opened(), opened()
    what, data = sample("shared", 5000)
    put(one, what, data)
    put(two, what, data)
    one.index.flush()
    two.index.flush()
    assert get(two, what, 0, 5000) == data
    assert two.used_bytes == 5000


def test_what_is_being_noted_counts_once(opened: Opener) -> None:
    """Counted twice for a moment, a tier that is almost full would evict for nothing."""
    cache = opened()
    done = threading.Event()

    def flush() -> None:
        while not done.is_set():
            cache.index.flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    counted: list[int] = []
    for number in range(300):
        put(cache, *sample(f"o{number}", 1000))
        cache.index.reread_usage(least_interval_s=0)
        counted.append(cache.used_bytes)
    done.set()
    flusher.join()
    assert counted == [1000 * (number + 1) for number in range(300)]


def test_a_damaged_block_is_found_and_dropped(opened: Opener) -> None:
    cache = opened()
    what, data = sample("bad", 300 * KIB)
    put(cache, what, data)
    with open(cache.file(what.digest), "r+b") as stream:
        stream.seek(200 * KIB)
        stream.write(bytes([data[200 * KIB] ^ 1]))
    assert get(cache, what, 0, 100 * KIB) == data[: 100 * KIB], "only what is read is checked"
    assert get(cache, what, 0, len(data)) is None
    assert cache.cached_bytes(what.digest) == 0
    assert cache.used_bytes == 0
    assert cache._counters.total("corrupt_blocks") == 1


def test_keep_stops_at_the_high_watermark_and_drops_nothing(opened: Opener) -> None:
    cache = opened(quota=100 * KIB, high=0.8)
    samples = [sample(f"o{number}", 10 * KIB) for number in range(12)]
    stored = [put(cache, what, data) for what, data in samples]
    assert stored == [True] * 8 + [False] * 4
    assert all(get(cache, what, 0, 10 * KIB) == data for what, data in samples[:8])


def test_keep_lets_go_of_what_the_bucket_has_no_more(opened: Opener) -> None:
    cache = opened(quota=20 * KIB)
    old, data = sample("x", 20 * KIB, "old")
    put(cache, old, data)
    new, fresh = sample("x", 20 * KIB, "new")
    assert not put(cache, new, fresh)
    cache.outdate([old.digest])
    assert get(cache, old, 0, 100) == data[:100], "who reads the old version still can"
    assert put(cache, new, fresh)
    assert get(cache, old, 0, 100) is None
    assert not os.path.exists(cache.file(old.digest))


def test_lru_evicts_the_oldest_down_to_the_low_watermark(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000]
    monkeypatch.setattr("penstock.cache.index.time.time", lambda: now[0])
    cache = opened(LeastRecentlyUsed(), quota=100 * KIB, high=1.0, low=0.5)
    samples = [sample(f"o{number}", 10 * KIB) for number in range(10)]
    for what, data in samples:
        now[0] += 1
        put(cache, what, data)
        cache.index.flush()
    now[0] += 1
    get(cache, samples[0][0], 0, 100)
    cache.index.flush()
    what, data = sample("new", 10 * KIB)
    assert put(cache, what, data)
    assert cache.used_bytes == 50 * KIB
    left = [number for number, (one, _) in enumerate(samples) if cache.has(block_of(one, 0, BLOCK))]
    assert left == [0, 7, 8, 9], "the first was used again, the last are the newest"


def test_what_is_wanted_counts_as_used(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000]
    monkeypatch.setattr("penstock.cache.index.time.time", lambda: now[0])
    cache = opened(LeastRecentlyUsed(), quota=20 * KIB, low=1.0)
    samples = [sample(f"o{number}", 10 * KIB) for number in range(3)]
    for what, data in samples[:2]:
        now[0] += 1
        put(cache, what, data)
        cache.index.flush()
    now[0] += 1
    cache.use([samples[0][0].digest])
    cache.index.flush()
    assert put(cache, *samples[2])
    assert [cache.has(block_of(what, 0, BLOCK)) for what, _ in samples] == [True, False, True]


def test_a_row_whose_file_is_gone_or_cut_says_nothing_of_what_is_cached(opened: Opener) -> None:
    cache = opened()
    whole, gone, cut = (sample(name, 1000) for name in ("whole", "gone", "cut"))
    for what, data in (whole, gone, cut):
        put(cache, what, data)
    cache.index.flush()
    os.unlink(cache.file(gone[0].digest))
    os.truncate(cache.file(cut[0].digest), 10)
    unknown = sample("unknown", 10)[0]
    digests = [what.digest for what in (whole[0], gone[0], cut[0], unknown)]
    assert cache.cached_sizes(digests) == {whole[0].digest: 1000}
    assert cache.used_bytes == 1000


@pytest.mark.parametrize(
    ("code", "stays"), [(sqlite3.SQLITE_FULL, True), (sqlite3.SQLITE_CORRUPT, False)]
)
def test_rows_that_cannot_be_written_are_not_cached(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, code: int, stays: bool
) -> None:
    """A full disk is none that fails; one whose index is damaged is."""
    cache = opened()
    error = sqlite3.OperationalError("cannot")
    error.sqlite_errorcode = code

    def fail() -> None:
        raise error

    what, data = sample("x", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(cache.index, "flush", fail)
        put(cache, what, data)
        cache.index._write_batch()
    if stays:
        assert get(cache, what, 0, 1000) is None
        assert put(cache, what, data)
        assert get(cache, what, 0, 1000) == data
    else:
        with pytest.raises(IndexDamaged):
            cache.index.entry(what.digest)


def test_bytes_are_counted_by_source(opened: Opener) -> None:
    cache = opened()
    put(cache, *sample("a", 1000))
    other = identify("s3://other", "a", "1", 500, BLOCK)
    cache.write(other, BLOCK, block_of(other, 0, BLOCK), bytes(500))
    for _ in range(2):  # before and after the rows are written
        assert [cache.index.source_bytes(source) for source in ("s3://b", "s3://other")] == [
            1000, 500,
        ]  # fmt: skip
        cache.index.flush()


def test_bytes_without_their_row_are_not_believed(opened: Opener, tmp_path: Path) -> None:
    """A process that dies after the bytes and before the row leaves nothing that is believed."""
    cache = opened()
    what, data = sample("torn", 5000)
    files.write_file(cache.file(what.digest), what.size_bytes, 0, memoryview(data))
    assert get(cache, what, 0, 5000) is None
    assert cache.sweep() == (0, 0), "it is young: its row may still come"
    assert cache.sweep(young_s=0) == (1, 0)
    assert not os.path.exists(cache.file(what.digest))
    with sqlite3.connect(tmp_path / "cache" / "index.sqlite") as database:
        assert database.execute("SELECT count(*) FROM objects").fetchone() == (0,)
    database.close()


def test_a_file_that_lost_blocks_on_the_way_is_never_taken_for_complete(
    opened: Opener, tmp_path: Path
) -> None:
    """Removed by another process between two blocks: what is missing would read as zeros."""
    cache = opened()
    what, data = sample("holes", 4 * BLOCK)
    blocks = [block_of(what, number, BLOCK) for number in range(4)]
    for block in blocks[:2]:
        cache.write(what, BLOCK, block, data[block.start : block.start + BLOCK])
    os.unlink(cache.file(what.digest))
    for block in blocks[2:]:
        cache.write(what, BLOCK, block, data[block.start : block.start + BLOCK])
    assert cache.complete_file(what) is None
    put(cache, what, data)
    path = cache.complete_file(what)
    assert path is not None
    assert path.read_bytes() == data


def test_what_was_dropped_does_not_come_back_with_a_batch_that_another_thread_holds(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    what, data = sample("dropped", BLOCK)
    begun, go_on = threading.Event(), threading.Event()
    identity_of = index.identity_of

    def held_back(path: Path) -> Any:
        """Comes behind the choice of what is written, and before the transaction."""
        if threading.current_thread().name == "first" and not begun.is_set():
            begun.set()
            go_on.wait(10)
        return identity_of(path)

    monkeypatch.setattr(index, "identity_of", held_back)
    # The index's own writer is kept out of it.
    monkeypatch.setattr(cache.index, "_write_batch", lambda: None)
    cache.write(what, BLOCK, block_of(what, 0, BLOCK), data)
    first = threading.Thread(target=cache.index.flush, name="first")
    first.start()
    assert begun.wait(10)
    drop = threading.Thread(target=cache.index.drop_object, args=(what.digest,))
    drop.start()
    drop.join(0.3)  # it is through, or waits for the first
    go_on.set()
    for thread in (drop, first):
        thread.join()
    assert list(cache.index.entries()) == []
    assert cache.used_bytes == 0


def test_bytes_that_come_after_an_object_is_outdated_are_counted_as_outdated(
    opened: Opener,
) -> None:
    cache = opened()
    what, data = sample("late", 2 * BLOCK)
    first, second = (block_of(what, number, BLOCK) for number in range(2))
    cache.write(what, BLOCK, first, data[:BLOCK])
    cache.outdate([what.digest])
    cache.write(what, BLOCK, second, data[BLOCK:])
    assert cache.index.source_bytes("s3://b") == 0
    assert cache.used_bytes == 2 * BLOCK
    (entry,) = cache.index.entries()
    cache.remove(entry)
    assert cache.used_bytes == 0
