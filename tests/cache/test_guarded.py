"""A cache directory that fails is taken out, costs nobody a read, and comes back by itself."""

import errno
import gc
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.cache import files
from penstock.cache.build import build_tier
from penstock.cache.guarded import HUNG_S, GuardedDirectory
from penstock.cache.identity import CachedObject, block_of, object_path
from penstock.cache.indexfile import stored_bytes
from penstock.cache.sweep import sweep_unopened
from penstock.cache.tier import TierSpec
from penstock.metrics import Counters
from tests.support.cache_samples import BLOCK, Disk, put, sample
from tests.support.cache_samples import get as get_range
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "cache")


@pytest.fixture
def guarded(disk: Disk) -> Iterator[GuardedDirectory]:
    guarded = disk.guard()
    yield guarded
    guarded.close()


def get(tier: GuardedDirectory, obj: CachedObject) -> bytes | None:
    return get_range(tier, obj, 0, min(BLOCK, obj.size_bytes))


def settle(tier: GuardedDirectory) -> None:
    """Returns when what was written is in the index: asking that makes it so."""
    tier.cached_bytes(b"")


WHAT, DATA = sample("one", 5000)
LARGE, LARGE_DATA = sample("large", 3 * BLOCK)


def test_a_failing_directory_is_probed_ever_more_rarely_and_comes_back(
    disk: Disk, guarded: GuardedDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    assert put(guarded, WHAT, DATA)
    settle(guarded)
    disk.error = OSError(errno.EIO, "Input/output error")
    shutil.rmtree(disk.path / "objects")
    caplog.set_level(logging.INFO)
    assert not put(guarded, *sample("other", 100))
    probed_at: list[float] = []
    for _ in range(20_000):
        before = disk.probes
        assert get(guarded, WHAT) is None
        assert not put(guarded, WHAT, DATA)
        if disk.probes > before:
            probed_at.append(disk.now_s - 1000)
        disk.now_s += 0.01
    assert [round(at) for at in probed_at] == [1, 3, 7, 15, 31, 63, 123, 183]
    status = guarded.status()
    assert (status.state, status.error) == ("out", "[Errno 5] Input/output error")
    assert status.out_s == pytest.approx(200, abs=0.1)
    # Who asks it goes on to the next tier and to the store.
    assert not guarded.has(block_of(WHAT, 0, BLOCK))
    assert guarded.cached_bytes(WHAT.digest) == guarded.free_beside(0) == 0
    assert guarded.cached_sizes([WHAT.digest]) == {}
    assert disk.counters.total("cache_warnings") == 1
    disk.error = None
    disk.now_s += 60
    guarded.status()
    assert guarded.status()[1:4] == ("ok", None, None)
    assert put(guarded, WHAT, DATA)
    assert get(guarded, WHAT) == DATA
    said = [record.message for record in caplog.records if "cache directory" in record.message]
    assert len(said) == 2, "one line when it goes out, one when it is back"
    assert "is out" in said[0]
    assert "is back" in said[1]


def test_a_directory_that_fails_on_first_use_is_not_probed_every_second(
    disk: Disk, guarded: GuardedDirectory
) -> None:
    failed_at: list[float] = []
    for _ in range(600):
        if guarded.status().state == "ok":
            shutil.rmtree(disk.path)
            put(guarded, WHAT, DATA)
            failed_at.append(disk.now_s - 1000)
        disk.now_s += 1
    assert failed_at == [0, 1, 3, 7, 15, 31, 63, *range(123, 600, 60)]


def test_a_server_that_takes_over_starts_without_a_failing_directory(disk: Disk) -> None:
    disk.error = OSError(errno.EROFS, "Read-only file system")
    with pytest.raises(OSError, match="Read-only"):
        disk.guard()
    guarded = disk.guard(must_open=False)
    assert guarded.status().state == "out"
    disk.error = None
    disk.now_s += 1
    guarded.status()
    assert put(guarded, WHAT, DATA)
    guarded.close()


def test_an_unused_directory_comes_back_too(disk: Disk, guarded: GuardedDirectory) -> None:
    """Workers ask a directory that is out for nothing."""
    guarded.report_failure(OSError(errno.EIO, "Input/output error"))
    guarded.check_for_hang()
    assert not guarded.is_available, "its time has not come"
    disk.now_s += 1
    guarded.check_for_hang()
    assert guarded.is_available


def no_answers(guarded: GuardedDirectory) -> None:
    """Whatever is asked of a directory that is out, or about to be, nothing is raised."""
    guarded.read(block_of(LARGE, 1, BLOCK), 0, 100)
    guarded.has(block_of(LARGE, 1, BLOCK))
    guarded.complete_file(LARGE)
    guarded.cached_bytes(LARGE.digest)
    guarded.source_bytes("s3://b")
    guarded.mark_outdated([LARGE.digest])
    guarded.status()


def delete_locks(path: Path) -> None:
    for lock in path.glob("*.lock"):
        lock.unlink()


def delete_all_but_index(path: Path) -> None:
    """As `rm -r` does when the index is made while it runs."""
    shutil.rmtree(path / "objects")
    delete_locks(path)


def link_index(path: Path) -> None:
    (path / "index.sqlite").rename(path / "elsewhere")
    (path / "index.sqlite").symlink_to(path / "elsewhere")


def run_sql(path: Path, statement: str) -> None:
    database = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    database.execute(statement)
    database.close()


def overwrite_index(path: Path, byte: bytes, page: int | None = None) -> None:
    """All of it, or one page."""
    # Not by this process: closing a descriptor would let go of SQLite's own locks.
    file = path / "index.sqlite"
    start, length = (0, file.stat().st_size) if page is None else (4096 * (page - 1), 4096)
    assert start + length <= file.stat().st_size
    code = f"import os, sys; os.pwrite(os.open(sys.argv[1], 1), {byte!r} * {length}, {start})"
    words = [sys.executable, "-Sc", code, file]
    subprocess.run(words, check=True, timeout=30)


def move_log_into_database(path: Path) -> None:
    run_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")


HARM: dict[str, Callable[[Path], object]] = {
    "delete_all": shutil.rmtree,
    "delete_objects": lambda path: shutil.rmtree(path / "objects"),
    "delete_index": lambda path: (path / "index.sqlite").unlink(),
    "delete_all_but_index": delete_all_but_index,
    "delete_log": lambda path: (path / "index.sqlite-wal").unlink(),
    "delete_locks": delete_locks,
    "zero_index": lambda path: overwrite_index(path, b"\0"),
    "garbage_in_index": lambda path: overwrite_index(path, b"\xa5"),
    "truncate_index": lambda path: os.truncate(path / "index.sqlite", 5000),
    "empty_index": lambda path: os.truncate(path / "index.sqlite", 0),
    "index_is_a_link": link_index,
    "other_tables": lambda path: run_sql(path, "DROP TABLE blocks"),
    "other_version": lambda path: run_sql(path, "PRAGMA user_version = 77"),
    "wrong_counts": lambda path: run_sql(path, "UPDATE sources SET bytes = 0.5"),
}


@pytest.mark.parametrize("harm", [name for name in HARM if name != "other_version"])
def test_a_directory_in_use_recovers_from_any_damage_without_a_restart(
    disk: Disk, guarded: GuardedDirectory, harm: str
) -> None:
    for obj, data in (sample(f"o{number}", 2000) for number in range(300)):
        assert put(guarded, obj, data)
    assert put(guarded, LARGE, LARGE_DATA)
    settle(guarded)
    move_log_into_database(disk.path)
    HARM[harm](disk.path)
    for number in range(300):
        obj, data = sample(f"o{number}", 2000)
        assert get(guarded, obj) in (None, data)
    for round_number in range(5):
        no_answers(guarded)
        for number in range(10):  # writes are what finds out about a file without a name
            put(guarded, *sample(f"new{round_number}-{number}", 500))
        settle(guarded)
        disk.now_s += 60
    assert guarded.status().state == "ok"
    assert put(guarded, WHAT, DATA)
    assert put(guarded, LARGE, LARGE_DATA)
    settle(guarded)
    assert guarded.complete_file(LARGE) is not None
    # And what it says now is on disk under its own name: another process sees it.
    other = disk.open(None)
    assert other.cached_bytes(WHAT.digest) == len(DATA)
    assert other.cached_bytes(LARGE.digest) == len(LARGE_DATA)
    assert other.complete_file(LARGE) is not None
    other.close()


@pytest.mark.parametrize(
    "harm", [name for name in HARM if name != "delete_log"]
)  # a closed index has none
def test_a_damaged_directory_can_be_opened(disk: Disk, harm: str) -> None:
    guarded = disk.guard()
    for number in range(300):
        put(guarded, *sample(f"o{number}", 2000))
    guarded.close()
    HARM[harm](disk.path)
    assert stored_bytes(disk.path / "index.sqlite") in (0, 300 * 2000)
    guarded = disk.guard()
    no_answers(guarded)
    disk.now_s += 1
    for number in range(300):
        obj, data = sample(f"o{number}", 2000)
        assert get(guarded, obj) in (None, data)
        assert put(guarded, obj, data)
    settle(guarded)
    status = guarded.status()
    assert (status.state, status.used_bytes) == ("ok", 300 * 2000)
    guarded.close()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the cache logs, as text. pytest keeps records, and with the tracebacks of their errors
    what was in use then: a connection that a server would close would stay open."""
    said: list[str] = []

    def keep_text(record: logging.LogRecord) -> bool:
        record.msg, record.args = record.getMessage(), None
        said.append(record.msg)
        return True

    with caplog.filtering(keep_text):
        yield said


def close_abandoned_indexes() -> None:
    """What happens within the second before the next probe."""
    for thread in threading.enumerate():
        if thread.name == "index":
            thread.join(PATIENCE_S)
    gc.collect()


@pytest.mark.parametrize("moment", ["before it is opened", "while it is in use"])
def test_an_index_with_one_damaged_page_is_rebuilt_once_and_used_again(
    disk: Disk, said: list[str], moment: str
) -> None:
    """Its header and its schema are good, so it can be opened like a sound one."""
    guarded = disk.guard()
    for number in range(1000):
        assert put(guarded, *sample(f"o{number}", 100))
    settle(guarded)
    move_log_into_database(disk.path)
    if moment == "before it is opened":
        guarded.close()
        del guarded
        overwrite_index(disk.path, b"\xa5", page=20)
        guarded = disk.guard()
    else:
        overwrite_index(disk.path, b"\xa5", page=20)
    for _ in range(5):
        for number in range(1000):
            get(guarded, sample(f"o{number}", 100)[0])
            put(guarded, *sample(f"o{number}", 100))
        settle(guarded)
        if guarded.status().state == "out":
            close_abandoned_indexes()
        disk.now_s += 60
    status = guarded.status()
    assert (status.state, status.used_bytes) == ("ok", 1000 * 100)
    for words in ("is out", "rebuilt empty", "is back"):
        assert sum(words in one for one in said) == 1, said
    guarded.close()


def test_two_mounts_that_find_the_same_damage_rebuild_the_index_once(disk: Disk) -> None:
    one, two = disk.guard(), disk.guard()
    put(one, LARGE, LARGE_DATA)
    settle(one)
    move_log_into_database(disk.path)
    HARM["garbage_in_index"](disk.path)
    for guarded in (one, two):
        for number in range(50):
            get(guarded, sample(f"o{number}", 10)[0])
            put(guarded, *sample(f"o{number}", 10))
            settle(guarded)
        assert guarded.status().state == "out"
    disk.now_s += 1
    for guarded in (one, two):
        guarded.status()
    assert put(one, WHAT, DATA)
    settle(one)
    assert get(two, WHAT) == DATA, "they share the new one"
    assert two.status().used_bytes == len(DATA)
    assert disk.counters.total("cache_warnings") == 2
    one.close()
    two.close()


def test_one_bad_disk_of_a_tier_does_not_disable_the_others(tmp_path: Path) -> None:
    counters = Counters()
    spec = TierSpec("SSD", (tmp_path / "a", tmp_path / "b"), 1 << 30)
    tier = build_tier(spec, "keep", counters)
    objects = [sample(f"o{number}", 1000) for number in range(40)]
    for obj, data in objects:
        assert tier.write(obj, BLOCK, block_of(obj, 0, BLOCK), data)
    (tmp_path / "a").rename(tmp_path / "was-a")
    (tmp_path / "a").write_text("in the way")
    stored = [tier.write(obj, BLOCK, block_of(obj, 0, BLOCK), data) for obj, data in objects]
    found = [tier.read(block_of(obj, 0, BLOCK), 0, 1000) for obj, _ in objects]
    assert stored == [obj.digest[0] % 2 == 1 for obj, _ in objects]
    assert [one is not None for one in found] == stored
    described = tier.describe()
    assert described["state"] == "out"
    assert [one["state"] for one in described["directories"]] == ["out", "ok"]
    assert tier.source_bytes("s3://b") == 1000 * sum(stored)
    tier.close()


def test_a_full_disk_does_not_count_as_failing(
    disk: Disk, guarded: GuardedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(guarded, WHAT, DATA)
    settle(guarded)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        other, data = sample("other", 100)
        assert not put(guarded, other, data)
        file = disk.path / "objects" / other.digest.hex()[:2] / other.digest.hex()
        assert not file.exists(), "half of it would only take room"
    assert guarded.status()[1:] == ("ok", None, None, 1 << 30, len(DATA)), "its room is given back"
    assert get(guarded, WHAT) == DATA


def test_an_unreadable_block_is_dropped_and_the_directory_comes_back(
    disk: Disk, guarded: GuardedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(guarded, WHAT, DATA)
    put(guarded, *sample("other", 100))
    disk.now_s += 100

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", broken)
        assert get(guarded, WHAT) is None
    assert (guarded.status().state, guarded.status().out_s) == ("out", 0)
    disk.now_s += 1
    guarded.status()
    assert guarded.status().state == "ok"
    assert guarded.cached_bytes(WHAT.digest) == 0
    assert get(guarded, sample("other", 100)[0]) == sample("other", 100)[1]


def test_a_directory_on_an_unmounted_disk_is_not_recreated_on_the_disk_below(
    disk: Disk, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place = tmp_path / "disk"
    place.mkdir()
    disk.path = place / "cache"

    def mount() -> None:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True, timeout=30)

    def umount() -> None:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)

    mount()
    guarded = disk.guard()
    assert put(guarded, WHAT, DATA)
    umount()
    for _ in range(3):
        assert not put(guarded, *sample("other", 100))
        disk.now_s += 60
    assert "not mounted" in str(guarded.status().error)
    assert not disk.path.exists()
    mount()
    try:
        disk.path.mkdir()
        disk.now_s += 60
        guarded.status()
        assert put(guarded, WHAT, DATA)
    finally:
        guarded.close()
        umount()


def test_a_disk_full_of_files_without_rows_is_swept_and_used(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place = tmp_path / "disk"
    place.mkdir()
    spec = TierSpec("SSD", (place / "cache",), 3 << 20)
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    subprocess.run(words, check=True, timeout=30)
    try:
        (guarded,) = build_tier(spec, "keep", Counters()).directories
        put(guarded, WHAT, DATA)
        guarded.close()
        # The index was made anew under a server that was killed before it had swept.
        with pytest.raises(OSError, match="No space left"):
            _fill_with_orphans(place / "cache")
        (guarded,) = build_tier(spec, "keep", Counters(), must_open=False).directories
        assert guarded.status().state == "ok"
        assert get(guarded, WHAT) == DATA
        assert put(guarded, *sample("another", BLOCK))
        guarded.close()
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def test_a_full_disk_is_not_swept_when_its_index_cannot_be_read(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = disk.guard()
    put(guarded, WHAT, DATA)
    guarded.close()
    del guarded

    def fail(*_: object) -> sqlite3.Connection:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", fail)
        assert sweep_unopened(disk.path) == 0
    assert (disk.path / object_path(WHAT.digest)).exists()


def _fill_with_orphans(cache: Path) -> None:
    for number in range(100):
        orphan, data = sample(f"orphan {number}", BLOCK)
        (cache / object_path(orphan.digest)).write_bytes(data)


def test_files_of_a_killed_server_are_removed_when_the_directory_is_opened(
    disk: Disk,
) -> None:
    killed = disk.open(None)
    files.write_file(killed.file(WHAT.digest), WHAT.size_bytes, 0, memoryview(DATA))
    killed.abandon()
    guarded = disk.guard()
    assert not list(disk.path.glob("objects/*/*"))
    guarded.close()


def test_a_probe_does_not_block_a_reader(disk: Disk) -> None:
    waiting: list[Callable[[], None]] = []
    guarded = GuardedDirectory(
        disk.path, "SSD", disk.open, disk.counters, clock=lambda: disk.now_s, start=waiting.append
    )
    waiting.clear()
    shutil.rmtree(disk.path)
    put(guarded, WHAT, DATA)
    disk.now_s += 1
    assert [get(guarded, WHAT) for _ in range(3)] == [None] * 3
    (probe,) = waiting
    probe()
    assert put(guarded, WHAT, DATA)
    shutil.rmtree(disk.path)
    put(guarded, WHAT, DATA)
    disk.now_s += 60
    guarded.status()
    guarded.close()
    assert waiting[-1] is not probe
    waiting[-1]()
    assert guarded.status().state == "out", "a probe that ends after the mount has left"


# -- disks that do not answer -----------------------------------------------------------------


class Hang:
    """A call that does not return until it is let."""

    def __init__(
        self, guarded: GuardedDirectory, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()
        directory = guarded._directory
        assert directory is not None
        self._call: Callable[..., object] = getattr(directory, name)
        monkeypatch.setattr(directory, name, self)

    def __call__(self, *arguments: object) -> object:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        return self._call(*arguments)


ASK: dict[str, Callable[[GuardedDirectory], object]] = {
    "read": lambda guarded: get(guarded, WHAT),
    "write_into_reserved": lambda guarded: put(guarded, WHAT, DATA),
    "has": lambda guarded: guarded.has(block_of(WHAT, 0, BLOCK)),
}


@pytest.mark.parametrize("ask", ASK)
def test_a_disk_that_hangs_is_disabled_and_blocks_only_readers_already_in_it(
    disk: Disk, guarded: GuardedDirectory, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    assert put(guarded, WHAT, DATA)
    settle(guarded)
    hang = Hang(guarded, monkeypatch, ask)
    with ThreadPoolExecutor(1) as thread:
        try:
            hanging = thread.submit(ASK[ask], guarded)
            assert hang.entered.wait(PATIENCE_S)
            disk.now_s += HUNG_S
            guarded.check_for_hang()
            assert guarded._directory is not None, "a busy disk needs that"
            disk.now_s += 0.1
            guarded.check_for_hang()
            guarded.check_for_hang()
            assert guarded.status()[1:4] == (
                "out",
                f"[Errno {errno.ETIMEDOUT}] the disk has not answered for 5.1 s: '{disk.path}'",
                0,
            )
            assert get(guarded, WHAT) is None
            assert not put(guarded, WHAT, DATA)
            assert not guarded.has(block_of(WHAT, 0, BLOCK))
            assert disk.counters.total("cache_warnings") == 1
            assert not hanging.done()
        finally:
            hang.gate.set()
        hanging.result(PATIENCE_S)
    disk.now_s += 1
    guarded.status()
    guarded.check_for_hang()
    assert guarded.status().state == "ok", "it answers again"
    assert get(guarded, WHAT) == DATA


def test_a_returned_call_or_a_long_operation_does_not_count_as_a_hang(
    disk: Disk, guarded: GuardedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(guarded, LARGE, LARGE_DATA)
    no_answers(guarded)
    guarded.verify(LARGE.digest)
    guarded.flush()
    disk.now_s += 100
    guarded.check_for_hang(0)
    assert guarded.status().state == "ok"
    for name in ("verify", "complete_file"):
        hang = Hang(guarded, monkeypatch, name)
        argument = LARGE.digest if name == "verify" else LARGE
        with ThreadPoolExecutor(1) as thread:
            thread.submit(getattr(guarded, name), argument)
            assert hang.entered.wait(PATIENCE_S)
            disk.now_s += 100
            guarded.check_for_hang()
            hang.gate.set()
        assert guarded.status().state == "ok", "every byte of it is read"
