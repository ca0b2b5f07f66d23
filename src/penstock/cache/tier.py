"""A tier of the cache: the user's options for it, and the protocol that all tiers share."""

import errno
import logging
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from penstock.cache.identity import Block, CachedObject
from penstock.errors import CacheDirError, OptionError
from penstock.metrics import Counters
from penstock.mounttable import filesystem_type
from penstock.ownership import why_untrusted
from penstock.units import MIB, format_size, parse_size

log = logging.getLogger(__name__)

MEDIA = ("MEM", "SSD", "HDD")
DEFAULT_HIGH = 0.99
DEFAULT_LOW = 0.8
_ENTRIES = (
    "objects",
    "users.lock",
    "index.lock",
    "index.sqlite",
    "index.sqlite-wal",
    "index.sqlite-shm",
    "index.sqlite-journal",
)
_LEAST_ROOM_BYTES = MIB
# The default share of the free space: the disk has other users.
_DEFAULT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class TierSpec:
    medium: str
    paths: tuple[Path, ...]
    quota_bytes: int | None  # for all paths together; None: most of what is free
    high: float = DEFAULT_HIGH
    low: float = DEFAULT_LOW
    clamp: bool = False  # a quota larger than the disk is reduced, and is no error


class Tier(Protocol):
    """One level of the cache, as readers need it. A tier that fails raises OSError or
    sqlite3.Error; `Tiers` turns that into a warning and a miss, never into a failed read."""

    @property
    def name(self) -> str: ...

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        """Return bytes [start, stop) of the block, verified; None if they are not here."""
        ...

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        """Store a whole block; False if there is no room for it."""
        ...

    def has(self, block: Block) -> bool: ...

    def has_room(self, block: Block) -> bool:
        """Whether `write` can probably store the block without making room or waiting for it."""
        ...


def parse_tier(text: str) -> TierSpec:
    """`MEM:/dev/shm/penstock:8GiB` or `SSD:/nvme0,/nvme1:400GiB:high=0.99,low=0.8`."""
    hint = "write it like MEM:/dev/shm/penstock:8GiB or SSD:/nvme0,/nvme1:400GiB:high=0.99,low=0.8"
    parts = text.split(":")
    if len(parts) not in (3, 4):
        raise OptionError(f"--tier {text}: not MEDIUM:PATH[,PATH]:SIZE", hint=hint)
    medium = parts[0].upper()
    if medium not in MEDIA:
        raise OptionError(f"--tier {text}: unknown medium {parts[0]!r}", hint=hint)
    marks = {"high": DEFAULT_HIGH, "low": DEFAULT_LOW}
    for mark in parts[3].split(",") if len(parts) == 4 else []:
        name, _, value = mark.partition("=")
        if name not in marks:
            raise OptionError(f"--tier {text}: unknown setting {name!r}", hint=hint)
        try:
            marks[name] = float(value)
        except ValueError:
            raise OptionError(f"--tier {text}: {name} is not a number", hint=hint) from None
    if not 0 < marks["low"] <= marks["high"] <= 1:
        raise OptionError(f"--tier {text}: needs 0 < low <= high <= 1", hint=hint)
    paths = tuple(Path(os.path.abspath(path)) for path in parts[1].split(",") if path)
    if not paths:
        raise OptionError(f"--tier {text}: names no directory", hint=hint)
    quota = parse_quota(parts[2], f"--tier {text}")
    return TierSpec(medium, paths, quota, marks["high"], marks["low"])


def parse_quota(text: str, what: str, *, bare_unit: int = 1) -> int:
    if text.strip().startswith("-"):
        raise OptionError(f"{what}: a quota below zero", hint="write it like 100GiB")
    size = parse_size(text, what=what, bare_unit=bare_unit)
    if size == 0:
        raise OptionError(
            f"{what}: a quota of 0 caches nothing", hint="say --no-cache if you mean it"
        )
    return size


def _probe(file: Path) -> None:
    """Check that the disk can be written, and returns what was written."""
    wanted = b"penstock" * 512
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(file, flags, 0o600)
    try:
        os.write(descriptor, wanted)
        os.fsync(descriptor)  # a failing disk reports its error only here
        if os.pread(descriptor, len(wanted), 0) != wanted:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
    finally:
        os.close(descriptor)
        file.unlink(missing_ok=True)


def refuse_foreign(path: Path) -> None:
    """Raise CacheDirError if root would share the cache with another user, who could replace its
    files. Call it before anything in the directory is opened."""
    if (why := why_untrusted(path, _ENTRIES, may_be_sticky=True)) is not None:
        raise CacheDirError(
            f"cache directory {path}: {why}",
            hint="root caches where no other user can change anything: give another --cache-dir, "
            "or mend owner and mode",
        )


def is_full_disk(path: Path) -> bool:
    if not path.exists():
        return False
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize < _LEAST_ROOM_BYTES


def prepare_directory(
    path: Path, quota_bytes: int | None, used_bytes: int = 0, *, clamp: bool = False
) -> int:
    """Create the directory, check that it can hold a cache, and return its quota in bytes. With
    `clamp`, the quota is reduced where the disk is smaller than requested."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        _probe(path / f".penstock-{os.getpid()}")
    except OSError as error:
        hint = {
            errno.ENOSPC: "free some space, or give another --cache-dir",
            errno.EROFS: "give a --cache-dir that can be written",
        }.get(error.errno or 0, "give another --cache-dir")
        raise CacheDirError(f"cache directory {path}: {error.strerror}", hint=hint) from error
    if (kind := filesystem_type(path)).startswith("fuse"):
        raise CacheDirError(
            f"cache directory {path} is on FUSE itself ({kind})",
            hint="a cache behind FUSE is slower than none; give a directory on a local disk",
        )
    status = os.statvfs(path)
    total = status.f_blocks * status.f_frsize
    free = status.f_bavail * status.f_frsize
    if quota_bytes is None or (clamp and quota_bytes > total):
        quota_bytes = int((free + used_bytes) * _DEFAULT_SHARE)
    if quota_bytes > total:
        raise CacheDirError(
            f"cache directory {path}: a quota of {format_size(quota_bytes)}, on a file system of "
            f"{format_size(total)}",
            hint=f"{format_size(free)} are free there",
        )
    if free + used_bytes < _LEAST_ROOM_BYTES:
        raise CacheDirError(
            f"cache directory {path}: its file system is full",
            hint="free some space, or give another --cache-dir",
        )
    return quota_bytes


class Tiers:
    """The tiers of one cache, fastest first. A failing tier costs a warning and a miss, never the
    read. Threading: any thread."""

    def __init__(self, tiers: Sequence[Tier], block_bytes: int, counters: Counters) -> None:
        self.all = tiers
        self.block_bytes = block_bytes
        self._counters = counters

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        """Return bytes [start, stop) of the block, verified; None if no tier has them."""
        for tier in self.all:
            try:
                data = tier.read(block, start, stop)
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
                continue
            if data is not None:
                self._counters.add_hit(tier.name, len(data))
                return data
        return None

    def write(self, obj: CachedObject, block: Block, data: memoryview) -> bool:
        """Store a whole block in the first tier that has room; False if none has."""
        for tier in self.all:
            try:
                if tier.write(obj, self.block_bytes, block, data):
                    return True
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
        return False

    def has(self, block: Block) -> bool:
        try:
            return any(tier.has(block) for tier in self.all)
        except (OSError, sqlite3.Error):
            return False  # the read that follows will report it

    def has_room(self, block: Block) -> bool:
        """Whether `write` can store the block in the first tier without making room or waiting for
        it."""
        return not self.all or self.all[0].has_room(block)

    def warn(self, tier: Tier, error: Exception) -> None:
        self._counters.add("cache_warnings")
        log.warning("cache tier %s: %s; reading without it", tier.name, error)
