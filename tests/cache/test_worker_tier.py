"""A tier's directory as a worker uses it, without a server behind it."""

import sqlite3
from pathlib import Path

import pytest

from penstock.cache import worker_tier
from penstock.cache.files import FileStamp
from penstock.cache.identity import Block, CachedObject, block_of
from penstock.cache.worker_tier import WorkerDirectory
from tests.support.cache_samples import BLOCK, sample

WHAT, _ = sample("one", 5000)
BLOCK_OF_IT = block_of(WHAT, 0, BLOCK)


class Reports:
    """Notes which errors the server is told of; see Reporter."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def stored(
        self,
        directory: int,
        obj: CachedObject,
        block: Block,
        sums: bytes,
        stamp: FileStamp | None,
        is_new: bool,
    ) -> None: ...

    def wants_room(self, directory: int, length: int) -> None: ...

    def wrong(self, directory: int, block: Block) -> None: ...

    def lost(self, directory: int, digest: bytes) -> None: ...

    def used(self, directory: int, digest: bytes) -> None: ...

    def failed(self, directory: int, error: Exception) -> None:
        self.errors.append(str(error))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_late_error_of_an_earlier_index_does_not_disable_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    reports = Reports()
    directory = WorkerDirectory(0, tmp_path, reports, tracks_use=False)
    directory.enable()

    def fail(*_: object) -> None:
        if is_late:  # meanwhile the server has made another index
            directory.disable()
            directory.enable()
        raise sqlite3.DatabaseError("malformed")

    monkeypatch.setattr(worker_tier, "load_units", fail)
    assert directory.read(BLOCK_OF_IT, 0, 100) is None
    assert reports.errors == ([] if is_late else ["malformed"])
