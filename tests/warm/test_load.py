"""A load without its prefetcher: what it gives out, and what becomes of it."""

from pathlib import Path

import pytest

from penstock.cache.fetch import FetchOutcome, FetchResult
from penstock.cache.tier import TierSpec
from penstock.errors import ObjectChanged, StoreError
from penstock.vfs.filesystem import FileSystem
from penstock.warm import load as load_module
from penstock.warm.load import Load, TierRoom
from penstock.warm.pace import RateLimit
from penstock.warm.prefetcher import Wanted
from penstock.warm.selection import select
from tests.support.gated_set import BLOCK, MakeSet

LARGE = bytes(3 * BLOCK - 1000)
FILES = {**{f"d/{n:03}": bytes([n]) * 1000 for n in range(150)}, "large": LARGE}


@pytest.fixture
def files(make_set: MakeSet, tmp_path: Path) -> FileSystem:
    return make_set(FILES, TierSpec("SSD", (tmp_path / "cache",), 1 << 20)).files


def load_of(
    files: FileSystem,
    *paths: str,
    room: TierRoom | None = None,
    rate_limit: RateLimit | None = None,
    concurrency: int | None = None,
) -> Load:
    selection = select(files.tree, paths, [], "name", everything=not paths)
    load = Load(
        files,
        selection,
        room=room,
        push=None,
        rate_limit=rate_limit,
        concurrency=concurrency,
        wake=lambda: None,
    )
    while load.progress.looked_files < len(selection.inos):
        assert load.advance(0)
    return load


def fetch_ahead(files: FileSystem, wanted: Wanted) -> None:
    file = files.file(wanted.ino)
    wanted.ended(
        files.cache.fetch_ahead(file.obj, file.get, wanted.number, None, wanted.missing_since_s)
    )


def test_a_load_hands_out_blocks_within_concurrency_and_rate(files: FileSystem) -> None:
    load = load_of(files, concurrency=3)
    first = load.take(50)
    assert len(first) == 3
    assert load.take(50) == []
    fetch_ahead(files, first[0])
    assert len(load.take(50)) == 1
    files.cache.buffer_bytes = 2 * BLOCK
    assert len(load_of(files, "large").take(50)) == 1, "half of the memory is left to readers"
    now = [0.0]
    load = load_of(files, "d", rate_limit=RateLimit(100_000, lambda: now[0]))
    assert len(load.take(50)) == 10, "what the bucket holds"
    now[0] += 0.05
    out = load.take(50)
    assert len(out) == 5
    out[0].ended(FetchResult(FetchOutcome.CACHED, 1000))
    assert len(load.take(50)) == 1, "what was cached meanwhile does not count"


def test_a_load_fetches_everything_once_and_ends(files: FileSystem) -> None:
    load = load_of(files)
    brought = 0
    while load.advance(0):
        for wanted in load.take(7):
            fetch_ahead(files, wanted)
            brought += 1
    assert brought == len(FILES) - 1 + 3
    assert load.progress.done_files == load.progress.fetched_files == len(FILES)
    assert load.progress.done_bytes == sum(map(len, FILES.values()))
    files.cache.wait_until_stored()
    again = load_of(files)
    assert again.take(50) == []
    assert not again.advance(0)
    assert again.progress.done_bytes == load.progress.done_bytes


def test_a_block_fetched_by_another_reader_is_requested_again(files: FileSystem) -> None:
    load = load_of(files, "d/001")
    (wanted,) = load.take(50)
    wanted.ended(FetchResult(FetchOutcome.JOINED, 1000))
    assert load.take(50) == []
    assert load.advance(0), "it is not over"
    (again,) = load.take(50)
    fetch_ahead(files, again)
    assert not load.advance(0)
    assert load.progress.done_files == 1


def test_a_block_fetched_by_another_machine_is_requested_again_a_moment_later(
    files: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once it would be asked for thousands of times a second until that machine has it."""
    load = load_of(files, "d/001", "d/002")
    moments = iter((0.0, 3600.0))
    for wanted in load.take(50):
        monkeypatch.setattr(load_module, "_ELSEWHERE_S", next(moments))
        wanted.ended(FetchResult(FetchOutcome.ELSEWHERE, 1000))
    for _ in range(10):
        assert load.advance(0), "it is not over"
    (again,) = load.take(50)
    fetch_ahead(files, again)
    assert load.advance(0), "the other one is left"
    assert load.take(50) == []
    load.stop()
    assert not load.advance(0)


def test_blocks_that_do_not_fit_are_not_handed_out(files: FileSystem) -> None:
    tiers = files.cache.tiers
    free = tiers[0].free_beside(lambda _share: 0)[0]
    room = TierRoom(tiers, lambda _tier, _share: 0)
    assert room.take(b"\0", [free - 50_500])
    load = load_of(files, room=room)
    assert len(load.take(500)) == 50
    assert (load.progress.unfit_files, load.progress.unfit_bytes) == (101, 100_000 + len(LARGE))


def test_a_failed_file_is_named_once_and_a_stopped_load_ends(
    files: FileSystem,
) -> None:
    load = load_of(files, "large", "d/001")
    for wanted in load.take(50):
        wanted.ended(FetchResult(FetchOutcome.FAILED, 0, error=ObjectChanged("it is another")))
    assert not load.advance(0)
    assert load.progress.failed_files == 2
    assert {failure["path"] for failure in load.progress.failures} == {"large", "d/001"}
    load, failed = load_of(files), 0
    while load.advance(0):
        for wanted in load.take(10):
            wanted.ended(FetchResult(FetchOutcome.FAILED, 0, error=StoreError("down")))
            failed += 1
    assert load.progress.gave_up
    assert (failed, len(load.progress.failures)) == (100, 10)
    # One that was stopped gives out nothing more.
    load = load_of(files)
    (wanted,) = load.take(1)
    load.stop()
    assert load.take(50) == []
    assert not wanted.is_wanted()
    wanted.ended(FetchResult(FetchOutcome.FAILED, 0))
    assert load.progress.failed_files == 0
    assert not load.advance(0)
