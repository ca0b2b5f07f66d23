"""All that a mount can be told, checked and typed. What the command line is turned into."""

from dataclasses import dataclass, field
from pathlib import Path

from penstock.blocks import DEFAULT_BLOCK_BYTES
from penstock.cache.tier import TierSpec
from penstock.store.connect import StoreOptions
from penstock.store.source import Source
from penstock.units import MIB

MODES = ("auto", "pagecache", "passthrough")


@dataclass(frozen=True, slots=True)
class MountSettings:
    source: Source
    mountpoint: Path
    store: StoreOptions = field(default_factory=StoreOptions)
    tiers: tuple[TierSpec, ...] = ()
    policy: str = "keep"
    mode: str = "auto"
    refresh_s: float | None = 600.0  # None: only when asked
    block_bytes: int = DEFAULT_BLOCK_BYTES
    buffer_bytes: int = 256 * MIB  # blocks in memory: being fetched, or not yet read to the end
    prefetch_blocks: int = 4  # how far ahead of a sequential reader, at most
    threads: int = 32  # reads that may wait for object storage at once
    uid: int | None = None  # None: whoever mounts
    gid: int | None = None
    file_mode: int = 0o444
    dir_mode: int = 0o555
    attr_timeout_s: float = 86400.0
    entry_timeout_s: float = 86400.0
    max_read_bytes: int = MIB
    allow_other: bool = False
    nonempty: bool = False
    name: str | None = None  # what the mount table shows; the source by default

    @property
    def deadline_s(self) -> float:
        """How long a read may wait for storage that fails before it gets EIO."""
        return self.store.deadline_s
