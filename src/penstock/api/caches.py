"""The contents of cache directories: list them, verify them, clear them.

Safe while mounts use the directory: what is removed here is fetched again when it is read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.cache.build import open_directory
from penstock.cache.directory import CacheDirectory
from penstock.cache.policy import Keep
from penstock.errors import CacheDirError
from penstock.metrics import Counters
from penstock.paths import default_cache_dir


@dataclass(frozen=True, slots=True)
class CacheEntry:
    source: str
    key: str
    version: str
    size_bytes: int
    cached_bytes: int
    outdated: bool  # the store has another version by now
    file: str  # where its bytes are


@dataclass(frozen=True, slots=True)
class Verified:
    source: str
    key: str
    damaged_blocks: int  # dropped; they are fetched again when they are read


def cached_objects(
    directories: Sequence[Path] = (), *, source: str | None = None
) -> Iterator[CacheEntry]:
    """What is cached of `source` (like `s3://bucket`), or of all sources, in these directories or
    the default one."""
    for directory in _open_all(directories):
        for entry in directory.index.entries():
            if _is_of(entry.source, source):
                yield CacheEntry(
                    entry.source,
                    entry.key,
                    entry.version,
                    entry.size_bytes,
                    entry.cached_bytes,
                    entry.used_s == 0,
                    directory.file(entry.digest),
                )


def clear(directories: Sequence[Path] = (), *, source: str | None = None) -> tuple[int, int]:
    """Remove what is cached; return the number of objects and bytes removed."""
    count = freed = 0
    for directory in _open_all(directories):
        for entry in list(directory.index.entries()):
            if _is_of(entry.source, source):
                directory.remove(entry)
                freed += entry.cached_bytes
                count += 1
        directory.sweep()
    return count, freed


def verify(directories: Sequence[Path] = (), *, source: str | None = None) -> Iterator[Verified]:
    """Read every cached object and compare its checksums; drop the blocks that do not match."""
    for directory in _open_all(directories):
        for entry in list(directory.index.entries()):
            if _is_of(entry.source, source):
                yield Verified(entry.source, entry.key, len(directory.verify(entry.digest)))
        directory.sweep()


def _is_of(found: str, wanted: str | None) -> bool:
    """`s3://data` matches all of that bucket, and nothing of `s3://data-2`."""
    if wanted is None:
        return True
    rest = found.removeprefix(wanted.rstrip("/"))
    return found.startswith(wanted.rstrip("/")) and rest[:1] in ("", "/", "?")


def _open_all(directories: Sequence[Path]) -> Iterator[CacheDirectory]:
    for path in directories or (default_cache_dir(),):
        with _open(path) as directory:
            yield directory


@contextmanager
def _open(path: Path) -> Iterator[CacheDirectory]:
    if not (path / "index.sqlite").exists():
        raise CacheDirError(f"{path} is not a Penstock cache", hint="give its --cache-dir")
    directory = open_directory(
        path, name="SSD", quota_bytes=1, high=1, low=1, policy=Keep(), counters=Counters()
    )
    try:
        yield directory
    finally:
        directory.close()
