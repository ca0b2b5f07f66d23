"""Puts files and rows of a cache directory in accord again, after a process or a disk has died.

A file that no row knows was being written when its process died; a row that has no file is left
of files that someone deleted. Both only cost room. One folder of 256 at a time, with a pause in
between: of 1.28 million files that is 5,000 names and 5,000 digests in memory.
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

# Readers wait for the interpreter's lock while a folder is compared; this lets them go first.
PAUSE_S = 0.01
# A mount that shares the directory notes a file within a second of writing it.
YOUNG_S = 60.0


class SweepResult(NamedTuple):
    files: int
    rows: int


class Sweepable(Protocol):
    """What is seen of a cache directory here."""

    @property
    def path(self) -> Path: ...

    @property
    def index(self) -> Index: ...


def sweep(directory: Sweepable, before_s: float, *, pause_s: float) -> SweepResult:
    """Removes files older than `before_s` that no row knows, and rows that have no file. Stops
    early when the index is closed."""
    index = directory.index
    index.flush()
    lost_files = lost_rows = 0
    for number in range(256):
        if index.closing.wait(pause_s if number else 0):
            break
        folder = directory.path / "objects" / f"{number:02x}"
        # Files are made before their rows, so rows are asked for after the names, or a row that
        # came in between would look as if it had no file.
        found = {bytes.fromhex(name) for name in files.names(folder)}
        known = index.digests(number)
        for digest in found - known:
            lost_files += _sweep_file(index, f"{folder}/{digest.hex()}", digest, before_s)
        for digest in known - found:
            lost_rows += index.drop_lost(digest, f"{folder}/{digest.hex()}")
    return SweepResult(lost_files, lost_rows)


def sweep_unopened(path: Path) -> int:
    """Remove files that no row knows from a directory whose disk is full, so that its index cannot
    be opened. Nothing is removed while someone else uses the directory, whose rows may not be on
    disk yet, nor where its index cannot be read. Return how many files that were."""
    membership = join(path / "users.lock")
    try:
        if not membership.alone:
            return 0
        try:
            known, removed = digests_on_disk(path / "index.sqlite"), 0
        except (OSError, sqlite3.Error) as error:
            log.warning("%s: cannot read its index: %s", path, error)
            return 0
        for number in range(256):
            folder = path / "objects" / f"{number:02x}"
            for name in list(files.names(folder)) if folder.is_dir() else []:
                if bytes.fromhex(name) not in known:
                    files.remove(f"{folder}/{name}")
                    removed += 1
        return removed
    finally:
        os.close(membership.descriptor)


def _sweep_file(index: Index, path: str, digest: bytes, before_s: float) -> bool:
    try:
        changed_s = os.lstat(path).st_mtime
    except FileNotFoundError:
        return False
    # What comes from the future is dated wrong, and would stay for ever.
    if before_s <= changed_s <= time.time() + YOUNG_S:
        return False
    index.flush()
    if index.entry(digest) is not None:
        return False
    files.remove(path)
    return True
