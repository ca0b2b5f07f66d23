"""One cache directory: what is stored comes back, checked, and within its quota. What lies where
its files should be, and is not what it left there, is never used."""

import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import files, index
from penstock.cache.directory import CacheDirectory
from penstock.cache.identity import block_of, identify
from penstock.cache.indexfile import IndexDamaged, IndexReplaced, Opened
from penstock.cache.policy import Keep, LeastRecentlyUsed, Policy
from penstock.metrics import Counters
from tests.support.cache_samples import BLOCK, get, put, sample
from tests.support.waiting import wait_until

KIB = 1024
Opener = Callable[..., CacheDirectory]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    caches: list[CacheDirectory] = []

    def open_cache(
        policy: Policy | None = None, quota: int = 1 << 30, **marks: float
    ) -> CacheDirectory:
        cache = CacheDirectory(
            tmp_path / "cache",
            name="SSD",
            quota_bytes=quota,
            high=marks.get("high", 1.0),
            low=marks.get("low", 0.5),
            policy=policy or Keep(),
            counters=Counters(),
        )
        caches.append(cache)
        return cache

    yield open_cache
    for cache in caches:
        cache.close()


def test_the_sweep_keeps_a_file_that_is_stored_again_while_its_row_is_swept(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    obj, data = sample("deleted", 5000)
    put(cache, obj, data)
    cache.index.flush()
    os.unlink(cache.file(obj.digest))

    def look_and_store(_path: str) -> bool:
        monkeypatch.undo()
        put(cache, obj, data)
        return False  # it was not there when the sweep looked

    monkeypatch.setattr(os.path, "lexists", look_and_store)
    cache.sweep()
    assert get(cache, obj, 0, 5000) == data
    cache.index.flush()
    assert cache.cached_bytes(obj.digest) == 5000


def test_the_sweep_keeps_an_old_file_that_is_overwritten_while_its_row_is_looked_up(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    obj, data = sample("abandoned", 5000)
    path = Path(cache.file(obj.digest))
    path.write_bytes(b"x" * 5000)
    os.utime(path, (1_000_000_000, 1_000_000_000))

    def find_no_row_and_store(_digest: bytes) -> None:
        monkeypatch.undo()
        put(cache, obj, data)

    monkeypatch.setattr(cache.index, "entry", find_no_row_and_store)
    assert cache.sweep() == (0, 0)
    assert get(cache, obj, 0, 5000) == data


def test_two_processes_share_a_directory(opened: Opener) -> None:
    one, two = opened(), opened()
    obj, data = sample("shared", 5000)
    put(one, obj, data)
    put(two, obj, data)
    one.index.flush()
    two.index.flush()
    assert get(two, obj, 0, 5000) == data
    assert two.used_bytes == 5000


def test_two_processes_that_create_a_directory_at_once_share_it(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folders = files.make_folders
    others: list[CacheDirectory] = []

    def make_while_another_opens(path: Path) -> bool:
        all_new = make_folders(path)
        monkeypatch.undo()
        others.append(opened())
        return all_new

    monkeypatch.setattr(files, "make_folders", make_while_another_opens)
    one = opened()
    (other,) = others
    obj, data = sample("shared", 5000)
    assert put(other, obj, data)
    assert wait_until(lambda: get(one, obj, 0, 5000), "no row without a flush") == data


def test_a_block_that_is_being_recorded_counts_once(opened: Opener) -> None:
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


@pytest.mark.parametrize("damaged", ["file", "checksums"])
def test_a_damaged_block_is_detected_and_dropped(opened: Opener, damaged: str) -> None:
    cache = opened()
    obj, data = sample("bad", 300 * KIB)
    put(cache, obj, data)
    if damaged == "file":
        flip(Path(cache.file(obj.digest)))
    else:
        path, name = cache.file(obj.digest), "user.penstock.sums"
        os.setxattr(path, name, os.getxattr(path, name)[:8])
    assert get(cache, obj, 0, 100 * KIB) == data[: 100 * KIB], "only what is read is checked"
    assert get(cache, obj, 0, len(data)) is None
    assert cache.cached_bytes(obj.digest) == 0
    assert cache.used_bytes == 0
    assert cache._counters.total("corrupt_blocks") == 1


@pytest.mark.parametrize("size", [5000, 2 * BLOCK])
def test_a_damaged_block_that_another_thread_has_refilled_is_kept(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    cache = opened()
    obj, data = sample("object", size)
    put(cache, obj, data)
    file = Path(cache.file(obj.digest))
    file.write_bytes(bytes(size))
    pread = os.pread

    def read_before_another_fills_it(*place: int) -> bytes:
        wrong = pread(*place)
        monkeypatch.undo()
        assert get(cache, obj, 0, 1000) is None
        assert put(cache, obj, data)
        return wrong

    monkeypatch.setattr(os, "pread", read_before_another_fills_it)
    assert get(cache, obj, 0, 1000) == data[:1000]
    assert cache._counters.total("corrupt_blocks") == 1
    assert cache.has(block_of(obj, 0, BLOCK))


def test_the_keep_policy_stops_at_the_high_watermark_and_evicts_nothing(opened: Opener) -> None:
    cache = opened(quota=100 * KIB, high=0.8)
    samples = [sample(f"o{number}", 10 * KIB) for number in range(12)]
    stored = [put(cache, obj, data) for obj, data in samples]
    assert stored == [True] * 8 + [False] * 4
    assert all(get(cache, obj, 0, 10 * KIB) == data for obj, data in samples[:8])


def test_the_keep_policy_evicts_objects_that_left_the_bucket(opened: Opener) -> None:
    cache = opened(quota=20 * KIB)
    old, data = sample("x", 20 * KIB, "old")
    put(cache, old, data)
    new, fresh = sample("x", 20 * KIB, "new")
    assert not put(cache, new, fresh)
    cache.mark_outdated([old.digest])
    assert get(cache, old, 0, 100) == data[:100], "who reads the old version still can"
    assert put(cache, new, fresh)
    assert get(cache, old, 0, 100) is None
    assert not os.path.exists(cache.file(old.digest))


def test_the_lru_policy_evicts_the_oldest_down_to_the_low_watermark(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000]
    monkeypatch.setattr("penstock.cache.index.time.time", lambda: now[0])
    cache = opened(LeastRecentlyUsed(), quota=100 * KIB, high=1.0, low=0.5)
    samples = [sample(f"o{number}", 10 * KIB) for number in range(10)]
    for obj, data in samples:
        now[0] += 1
        put(cache, obj, data)
        cache.index.flush()
    now[0] += 1
    get(cache, samples[0][0], 0, 100)
    cache.mark_used([samples[1][0].digest])
    cache.index.flush()
    obj, data = sample("new", 10 * KIB)
    assert put(cache, obj, data)
    assert cache.used_bytes == 50 * KIB
    left = [number for number, (one, _) in enumerate(samples) if cache.has(block_of(one, 0, BLOCK))]
    assert left == [0, 1, 8, 9], "the first was read again, the second is wanted"
    assert cache.reserve(60 * KIB)
    assert not cache.reserve(50 * KIB), "what is being written cannot be evicted"


def test_a_row_whose_file_is_missing_or_truncated_does_not_count_as_cached(opened: Opener) -> None:
    cache = opened()
    whole, gone, cut = (sample(name, 1000) for name in ("whole", "gone", "cut"))
    for obj, data in (whole, gone, cut):
        put(cache, obj, data)
    cache.index.flush()
    os.unlink(cache.file(gone[0].digest))
    os.truncate(cache.file(cut[0].digest), 10)
    unknown = sample("unknown", 10)[0]
    digests = [obj.digest for obj in (whole[0], gone[0], cut[0], unknown)]
    assert cache.cached_sizes(digests) == {whole[0].digest: 1000}
    assert [cache.verify(digest) for digest in digests] == [[]] * 4
    assert cache.used_bytes == 1000


def test_blocks_of_a_deleted_file_are_forgotten_when_another_of_them_is_stored(
    opened: Opener,
) -> None:
    """In the new file they would be holes."""
    cache = opened()
    obj, data = sample("object", 3 * BLOCK)
    assert put(cache, obj, data)
    assert cache.cached_bytes(obj.digest) == 3 * BLOCK
    os.unlink(cache.file(obj.digest))
    assert cache.write(obj, BLOCK, block_of(obj, 1, BLOCK), data[BLOCK : 2 * BLOCK])
    assert cache.cached_bytes(obj.digest) == cache.used_bytes == BLOCK
    assert get(cache, obj, 0, 1000) is None
    assert get(cache, obj, BLOCK, BLOCK + 1000) == data[BLOCK : BLOCK + 1000]
    assert cache._counters.total("corrupt_blocks") == 0


def test_a_file_that_lost_blocks_before_they_were_recorded_is_not_complete(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    monkeypatch.setattr(cache.index, "_write_batch", lambda: None)
    obj, data = sample("holes", 2 * BLOCK)
    assert put(cache, obj, data)
    os.unlink(cache.file(obj.digest))
    assert cache.write(obj, BLOCK, block_of(obj, 1, BLOCK), data[BLOCK:])
    assert cache.cached_bytes(obj.digest) == cache.used_bytes == BLOCK
    assert cache.complete_file(obj) is None
    assert get(cache, obj, 0, 1000) is None, "and not zeros"
    assert put(cache, obj, data)
    assert (cache.complete_file(obj) or Path()).read_bytes() == data


@pytest.mark.parametrize(
    ("code", "stays"), [(sqlite3.SQLITE_FULL, True), (sqlite3.SQLITE_CORRUPT, False)]
)
def test_rows_that_cannot_be_written_are_not_counted(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, code: int, stays: bool
) -> None:
    """A full disk is none that fails; one whose index is damaged is."""
    cache = opened()
    error = sqlite3.OperationalError("cannot")
    error.sqlite_errorcode = code

    def fail() -> None:
        raise error

    obj, data = sample("x", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(cache.index, "flush", fail)
        put(cache, obj, data)
        cache.index._write_batch()
    assert cache.used_bytes == 0
    if stays:
        assert cache.cached_bytes(obj.digest) == 0
        assert put(cache, obj, data)
        assert get(cache, obj, 0, 1000) == data
    else:
        with pytest.raises(IndexDamaged):
            cache.index.entry(obj.digest)


def test_bytes_are_counted_by_source(opened: Opener) -> None:
    cache = opened()
    put(cache, *sample("a", 1000))
    other = identify("s3://other", "a", "1", 500, BLOCK)
    cache.write(other, BLOCK, block_of(other, 0, BLOCK), bytes(500))
    for _ in range(2):  # before and after the rows are written
        assert [cache.index.source_bytes(source) for source in ("s3://b", "s3://other")] == [
            1000,
            500,
        ]
        cache.index.flush()


def test_bytes_without_a_row_are_not_served(opened: Opener, tmp_path: Path) -> None:
    """A process that dies after the bytes and before the row leaves nothing that is believed."""
    cache = opened()
    obj, data = sample("torn", 5000)
    files.write_file(cache.file(obj.digest), obj.size_bytes, 0, memoryview(data))
    assert get(cache, obj, 0, 5000) is None
    assert cache.sweep() == (0, 0), "it is young: its row may still come"
    assert cache.sweep(young_s=0) == (1, 0)
    assert not os.path.exists(cache.file(obj.digest))
    with sqlite3.connect(tmp_path / "cache" / "index.sqlite") as database:
        assert database.execute("SELECT count(*) FROM objects").fetchone() == (0,)
    database.close()


def test_a_dropped_row_is_not_written_again_by_a_batch_of_another_thread(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    obj, data = sample("dropped", BLOCK)
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
    cache.write(obj, BLOCK, block_of(obj, 0, BLOCK), data)
    first = threading.Thread(target=cache.index.flush, name="first")
    first.start()
    assert begun.wait(10)
    drop = threading.Thread(target=cache.index.drop_object, args=(obj.digest,))
    drop.start()
    drop.join(0.3)  # it is through, or waits for the first
    go_on.set()
    for thread in (drop, first):
        thread.join()
    assert list(cache.index.entries()) == []
    assert cache.used_bytes == 0


def test_bytes_stored_after_an_object_is_outdated_count_as_outdated(
    opened: Opener,
) -> None:
    cache = opened()
    obj, data = sample("late", 2 * BLOCK)
    first, second = (block_of(obj, number, BLOCK) for number in range(2))
    cache.write(obj, BLOCK, first, data[:BLOCK])
    cache.mark_outdated([obj.digest])
    cache.write(obj, BLOCK, second, data[BLOCK:])
    assert cache.index.source_bytes("s3://b") == 0
    assert cache.used_bytes == 2 * BLOCK
    (entry,) = cache.index.entries()
    assert obj.digest in cache._verified
    cache.remove(entry)
    assert cache.used_bytes == 0
    assert not cache._verified, "nothing is remembered of what is gone"


# -- files that are not as they were left ---------------------------------------------------

SIZES = {"small": 300 * 1024, "large": 2 * BLOCK + 7}


def flip(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(200 * 1024)
        byte = stream.read(1)[0]
        stream.seek(200 * 1024)
        stream.write(bytes([byte ^ 1]))


def grow(file: Path) -> None:
    with open(file, "ab") as stream:
        stream.write(b"more")


def link(file: Path) -> None:
    """To a file outside with the very bytes: it must not be followed all the same."""
    target = file.parents[3] / "outside"
    file.rename(target)
    file.symlink_to(target)


def bind(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(file.name)  # a whole path would be too long


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda file: (file.unlink(), make(file))


HARM: dict[str, Callable[[Path], object]] = {
    "flip": flip,
    "remove": Path.unlink,
    "cut": lambda file: os.truncate(file, 100),
    "empty": lambda file: os.truncate(file, 0),
    "grow": grow,
    "folder": replaced_by(Path.mkdir),
    "link": link,
    "dangling_link": replaced_by(lambda file: file.symlink_to(file.parents[3] / "outside")),
    "pipe": replaced_by(os.mkfifo),
    "unix_socket": replaced_by(bind),
}


def outside(cache: CacheDirectory) -> bytes | None:
    file = cache.path.parent / "outside"
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("harm", HARM)
def test_a_changed_file_is_not_served_or_passed_through_and_is_refilled(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, harm: str, size: int
) -> None:
    cache = opened()
    obj, data = sample("object", size)
    assert put(cache, obj, data)
    assert cache.complete_file(obj) is not None
    monkeypatch.chdir(Path(cache.file(obj.digest)).parent)
    HARM[harm](Path(cache.file(obj.digest)))
    before = outside(cache)
    assert cache.complete_file(obj) is None, "verified before, and changed since"
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        assert get(cache, obj, start, stop) in (None, data[start:stop])
    for _ in range(2):  # the first may only clear what is in the way
        put(cache, obj, data)
    path = cache.complete_file(obj)
    assert path is not None
    assert not path.is_symlink()
    assert path.read_bytes() == data
    assert get(cache, obj, 0, 1000) == data[:1000]
    assert cache.used_bytes == size
    assert outside(cache) == before, "nothing was written through a link"


def test_a_file_that_changes_during_verification_is_not_passed_through(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    obj, data = sample("object", SIZES["small"])
    assert put(cache, obj, data)
    verify = cache.verify

    def verify_and_flip(digest: bytes) -> list[int]:
        bad = verify(digest)
        flip(Path(cache.file(digest)))
        return bad

    with monkeypatch.context() as patched:
        patched.setattr(cache, "verify", verify_and_flip)
        assert cache.complete_file(obj) is None
    assert cache.complete_file(obj) is None, "its bytes are wrong now"


def test_a_file_replaced_while_its_last_block_is_recorded_is_not_passed_through(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    obj, data = sample("object", 2 * BLOCK)
    stamp_of = files.stamp_of

    def replace_and_stamp(path: str) -> files.FileStamp | None:
        monkeypatch.undo()
        other = cache.path / "other"
        other.write_bytes(bytes(2 * BLOCK))
        other.rename(path)
        return stamp_of(path)

    monkeypatch.setattr(files, "stamp_of", replace_and_stamp)
    assert put(cache, obj, data)
    assert cache.complete_file(obj) is None


def test_a_directory_in_place_of_a_file_is_left_alone_and_costs_one_object(opened: Opener) -> None:
    cache = opened()
    obj, data = sample("object", 1000)
    folder = Path(cache.file(obj.digest))
    folder.mkdir()
    (folder / "mine").touch()
    assert not put(cache, obj, data)
    assert get(cache, obj, 0, 1000) is None
    assert (folder / "mine").exists()
    assert put(cache, *sample("other", 1000))


@pytest.mark.parametrize("planted", ["objects", "objects/ab"])
def test_a_symlink_in_place_of_a_folder_is_not_followed(
    opened: Opener, tmp_path: Path, planted: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ("ab" * 16)).touch()
    place = tmp_path / "cache" / planted
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    cache = opened()
    for number in range(300):
        put(cache, *sample(f"o{number}", 10))
    cache.sweep(young_s=-100)
    assert os.listdir(elsewhere) == ["ab" * 16], "nothing written there, nothing swept there"


def test_files_without_rows_and_rows_without_files_are_swept_and_other_names_kept(
    opened: Opener,
) -> None:
    cache = opened()
    for number in range(20):
        put(cache, *sample(f"o{number}", 1000))
    cache.index.flush()
    for number in range(15):
        os.unlink(cache.file(sample(f"o{number}", 1000)[0].digest))
    for name in ("README", "ab" * 15, "cd" * 16, "AB" * 16, "zz" * 16, "ab" * 16):
        (cache.path / "objects" / "ab" / name).touch()
    assert cache.sweep(young_s=-100) == (1, 15)
    assert cache.used_bytes == 5000
    cache.close()
    (cache.path / "objects" / "ab" / ("ab" * 16)).touch()
    assert cache.sweep(young_s=-100) == (0, 0), "a sweep ends early when the mount leaves"


def test_the_sweep_keeps_a_file_whose_row_comes_while_its_folder_is_swept(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    obj, data = sample("new", 1000)
    put(cache, obj, data)
    monkeypatch.setattr(cache.index, "digests", lambda _first: set[bytes]())  # read before the row
    assert cache.sweep(young_s=-100) == (0, 0)
    assert get(cache, obj, 0, 1000) == data


def test_files_of_a_dead_process_are_swept_by_the_next_and_not_by_a_sharer(
    opened: Opener,
) -> None:
    first = opened()
    obj, data = sample("torn", 5000)
    files.write_file(first.file(obj.digest), obj.size_bytes, 0, memoryview(data))
    sharer = opened()
    assert sharer.sweep() == (0, 0), "the first may note it in a moment"
    sharer.close()
    first.abandon()  # as a kill does: the kernel lets go of its locks
    assert opened().sweep() == (1, 0)


def test_a_thread_that_finds_the_index_replaced_uses_neither_and_closes_the_new_one(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, connect, made = opened(), index.connect, list[Opened]()
    for file in cache.path.glob("index.sqlite*"):
        file.unlink()
    opened()
    monkeypatch.setattr(index, "connect", lambda path: made.append(connect(path)) or made[-1])
    with pytest.raises(IndexReplaced):
        cache.index.entry(b"")
    (new,) = made
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        new.connection.execute("SELECT 1")


def test_an_earlier_usage_count_never_replaces_a_later_one(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    put(cache, *sample("object", 1000))
    cache.index.flush()
    asked, dropped = threading.Event(), threading.Event()
    count = index._usage  # pyright: ignore

    def count_and_linger(run: sqlite3.Connection) -> int:
        found = count(run)
        if threading.current_thread() is early:
            asked.set()
            dropped.wait(0.2)
        return found

    monkeypatch.setattr(index, "_usage", count_and_linger)
    early = threading.Thread(target=cache.index.reread_usage, args=(0,))
    early.start()
    assert asked.wait(20)
    cache.remove_objects([sample("object", 1000)[0].digest])
    dropped.set()
    early.join()
    assert cache.used_bytes == 0
