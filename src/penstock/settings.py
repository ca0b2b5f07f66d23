"""All that a mount can be told, checked and typed. What the command line is turned into."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from penstock.blocks import DEFAULT_BLOCK_BYTES
from penstock.cache.tier import TierSpec
from penstock.catalog.incoming import MOST_FILES
from penstock.store.connect import DEFAULT_DEADLINE_S, StoreOptions
from penstock.store.keys import Keys
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


# Settings as JSON, for the way from whoever mounts through the supervisor to a server.
#
# The server may be of a newer release than what wrote them: what it does not know is left out,
# and what is missing has its default.


def encode(settings: MountSettings) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(settings), default=str))


def decode(data: dict[str, Any]) -> MountSettings:
    known = _known(MountSettings, data)
    parts = data.get("parts")
    if parts is None:  # from before a mount had several
        parts = [{"path": "", "source": data["source"], "store": data["store"]}]
    known["parts"] = tuple(map(_part, parts))
    known["mountpoint"] = Path(data["mountpoint"])
    known["tiers"] = tuple(map(_tier, data["tiers"]))
    return MountSettings(**known)


def _part(data: dict[str, Any]) -> Part:
    store = _known(StoreOptions, data["store"])
    if store.get("manifest") is not None:
        store["manifest"] = Path(store["manifest"])
    if store.get("keys") is not None:
        store["keys"] = Keys(**_known(Keys, store["keys"]))
    source = Source(**_known(Source, data["source"]))
    return Part(data["path"], source, StoreOptions(**store))


def _tier(data: dict[str, Any]) -> TierSpec:
    known = _known(TierSpec, data)
    known["paths"] = tuple(map(Path, known["paths"]))
    return TierSpec(**known)


def _known(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
