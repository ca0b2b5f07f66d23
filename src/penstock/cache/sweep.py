"""Make files and rows of a cache directory consistent again, after a process or a disk has died.

A file without a row was being written when its process died; a row without a file is left when
someone deletes files. Both only cost space. The sweep checks one of 256 folders at a time, with a
pause in between: for 1.28 million files that is 5,000 names and 5,000 digests in memory.
"""

import logging
import os
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.cache import files
from penstock.cache.index import Index
from penstock.cache.indexfile import digests_on_disk
from penstock.cache.locks import join

log = logging.getLogger(__name__)

# Readers wait for the interpreter's lock while a folder is compared; the pause lets them run.
PAUSE_S = 0.01
# A mount that shares the directory records a file within a second of writing it.
YOUNG_S = 60.0


class SweepResult(NamedTuple):
    files: int
    rows: int


class Sweepable(Protocol):
    """What the sweep needs of a cache directory."""

    @property
    def path(self) -> Path: ...

    @property
    def index(self) -> Index: ...


def sweep(directory: Sweepable, before_s: float, *, pause_s: float) -> SweepResult:
    """Remove files older than `before_s` without a row, and rows without a file. Stops early when
    the index is closed."""
    index = directory.index
    index.flush()
    lost_files = lost_rows = 0
    for number in range(256):
        if index.closing.wait(pause_s if number else 0):
            break
        folder = directory.path / "objects" / f"{number:02x}"
        # A file is created before its row, so rows are read after the names: otherwise a row that
        # was added in between would seem to have no file.
        found = {bytes.fromhex(name) for name in files.object_names(folder)}
        known = index.digests(number)
        for digest in found - known:
            lost_files += _sweep_file(index, f"{folder}/{digest.hex()}", digest, before_s)
        for digest in known - found:
            lost_rows += index.drop_lost(digest, f"{folder}/{digest.hex()}")
    return SweepResult(lost_files, lost_rows)


def sweep_unopened(path: Path) -> int:
    """Remove files without a row from a directory whose disk is full, so that its index cannot be
    opened; return how many.

    Removes nothing while another process uses the directory, since its rows may not be on disk yet,
    and nothing if the index cannot be read.
    """
    membership = join(path / "users.lock")
    try:
        if not membership.was_alone:
            return 0
        try:
            known, removed = digests_on_disk(path / "index.sqlite"), 0
        except (OSError, sqlite3.Error) as error:
            log.warning("%s: cannot read its index: %s", path, error)
            return 0
        for number in range(256):
            folder = path / "objects" / f"{number:02x}"
            for name in list(files.object_names(folder)) if folder.is_dir() else []:
                if bytes.fromhex(name) not in known:
                    files.remove(f"{folder}/{name}")
                    removed += 1
        return removed
    finally:
        os.close(membership.descriptor)


def _sweep_file(index: Index, path: str, digest: bytes, before_s: float) -> bool:
    if not _is_abandoned(path, before_s):
        return False
    index.flush()
    # The row first: a block that is stored again over the old file is young before it has a row.
    if index.entry(digest) is not None or not _is_abandoned(path, before_s):
        return False
    files.remove(path)
    return True


def _is_abandoned(path: str, before_s: float) -> bool:
    """Whether the file is there, and no living process can be about to record it."""
    try:
        changed_s = os.lstat(path).st_mtime
    except FileNotFoundError:
        return False
    # A file from the future has a wrong date, and would stay for ever.
    return not before_s <= changed_s <= time.time() + YOUNG_S
