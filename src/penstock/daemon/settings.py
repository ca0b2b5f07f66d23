"""All that a mount can be told, checked and typed. What the command line is turned into."""

from dataclasses import dataclass, field
from pathlib import Path

from penstock.blocks import DEFAULT_BLOCK_BYTES
from penstock.cache.tier import TierSpec
from penstock.catalog.incoming import MOST_FILES
from penstock.store.connect import DEFAULT_DEADLINE_S, StoreOptions
from penstock.store.source import Source
from penstock.units import GIB, MIB

MODES = ("auto", "pagecache", "passthrough")

# What a server needs without any buffer (the interpreter, libraries, threads, databases), and what
# a byte in a buffer costs: while a body arrives it is held in pieces, and then once as a whole.
BASE_MEMORY_BYTES = 128 * MIB
MEMORY_A_BUFFERED_BYTE = 2


@dataclass(frozen=True, slots=True)
class Part:
    """One of the stores that a mount shows, and where."""

    path: str  # below the mount point, without slashes at its ends; "" for all of it
    source: Source
    store: StoreOptions = field(default_factory=StoreOptions)


@dataclass(frozen=True, slots=True)
class MountSettings:
    parts: tuple[Part, ...]
    mountpoint: Path
    # The catalog's name, for a mount whose parts may change; None: by what its parts are, shared
    # with whoever mounts the same.
    catalog: str | None = None
    title: str | None = None  # what the mount table and `stats` show; the sources by default
    tiers: tuple[TierSpec, ...] = ()
    policy: str = "keep"
    mode: str = "auto"
    refresh_s: float | None = 600.0  # None: only when asked
    block_bytes: int = DEFAULT_BLOCK_BYTES
    buffer_bytes: int = 256 * MIB  # blocks in memory: being fetched, or not yet read to the end
    prefetch_blocks: int = 4  # how far ahead of a sequential reader, at most
    page_cache_bytes: int | None = None  # of the kernel's, for what is pushed; None: a share
    threads: int = 32  # reads that may wait for object storage at once
    workers: int | None = None  # processes that answer the kernel; None: by cores
    uid: int | None = None  # None: whoever mounts
    gid: int | None = None
    file_mode: int = 0o444
    dir_mode: int = 0o555
    attr_timeout_s: float = 86400.0
    entry_timeout_s: float = 86400.0
    max_read_bytes: int = MIB
    allow_other: bool = False
    kernel_resend: bool = True  # False: as on kernels before 6.9
    nonempty: bool = False
    memory_bytes: int = GIB  # what the server and its workers may hold in all
    max_files: int = MOST_FILES  # a listing that is longer is refused
    watchdog_s: float = 30.0  # how long a server may be silent before another takes its place
    give_up_s: float = 300.0  # how long readers wait for a server that cannot be started
    grace_s: float = 30.0  # how long readers may go on after the mount was told to end
    name: str | None = None  # what the mount table shows instead

    @property
    def deadline_s(self) -> float:
        """How long a read may wait for storage that fails before it gets EIO."""
        return max((part.store.deadline_s for part in self.parts), default=DEFAULT_DEADLINE_S)

    @property
    def shown(self) -> str:
        """What a person is told that is mounted here."""
        return self.title or ", ".join(str(part.source) for part in self.parts) or "nothing"
