"""Every mount option, declared once: what it sets, its type, default and help, what a change needs.

From these declarations are made

- the options of `penstock mount` and `penstock upgrade` (cli/mount.py);
- the options that manifests may give, and those of `-o` (mount_options.py);
- what may change while a mount is in use (`needs_new_mount`);
- the JSON in which settings travel between processes (`encode`, `decode`);
- docs/reference/mount-options.md and cli.md (tools/write-reference).

A new option is one field here, or one entry of STORE_OPTIONS for a field of StoreOptions, and the
code that uses it.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any, Final

from penstock.blocks import DEFAULT_BLOCK_BYTES, UNIT_BYTES
from penstock.cache.members import parse_members
from penstock.cache.policy import POLICIES
from penstock.cache.tier import TierSpec, parse_quota, parse_tier
from penstock.catalog.staging import MOST_FILES
from penstock.errors import OptionError
from penstock.store.connect import DEFAULT_DEADLINE_S, StoreOptions
from penstock.store.credentials import Keys
from penstock.store.etags import VERIFY_MODES
from penstock.store.source import Source
from penstock.units import GIB, KIB, MIB, format_size, parse_duration, parse_size

# What a server needs without any buffer (the interpreter, libraries, threads, databases), and what
# a byte in a buffer costs: while a body arrives it is held in pieces, and then once as a whole.
BASE_MEMORY_BYTES = 128 * MIB
MEMORY_A_BUFFERED_BYTE = 2
_MOST_WORKERS = 32
_TRUE, _FALSE = ("true", "yes", "1", ""), ("false", "no", "0")

Parse = Callable[[str, str], Any]  # from a text; the second argument names the option in errors


class Change(Enum):
    """What a mount that is in use needs before another value of a setting takes effect."""

    HAND_OVER = "another server takes over; readers see a pause"
    NEW_MOUNT = "unmount, and mount again: it was agreed with the kernel when the mount was made"
    NEXT_MOUNT = "nothing: it only matters when a mount is made"


# -- parsers -----------------------------------------------------------------------------


def _text(text: str, _what: str) -> str:
    return text


def _path(text: str, _what: str) -> Path:
    return Path(text)


def _members(text: str, what: str) -> str:
    parse_members(text, what)  # raises
    return text


def _absolute_path(text: str, _what: str) -> str:
    return str(Path(text).absolute())  # the server has another working directory


def _size(bare_unit: int) -> Parse:
    return lambda text, what: parse_size(text, what=what, bare_unit=bare_unit)


def _size_between(least: int, most: int, step: int, rule: str, bare_unit: int = 1) -> Parse:
    def parse(text: str, what: str) -> int:
        size = parse_size(text, what=what, bare_unit=bare_unit)
        if not least <= size <= most or size % step:
            raise OptionError(f"{what}: must be a multiple of {rule}")
        return size

    return parse


def _quota(text: str, what: str) -> int:
    return parse_quota(text, what, bare_unit=MIB)


def _tier(text: str, _what: str) -> TierSpec:
    return parse_tier(text)


def _duration(
    least_s: float = 0.0, most_s: float = inf, rule: str = "", hint: str | None = None
) -> Parse:
    def parse(text: str, what: str) -> float:
        seconds = parse_duration(text, what=what)
        if not least_s <= seconds <= most_s:
            raise OptionError(f"{what}: {rule}", hint=hint)
        return seconds

    return parse


def _refresh(text: str, what: str) -> float | None:
    if text == "never":
        return None
    hint = "`never` and `penstock refresh` list on demand"
    return _duration(1, rule="at least 1s", hint=hint)(text, what)


def _workers(text: str, what: str) -> int | None:
    if text == "auto":
        return None
    if not re.fullmatch(r"[0-9]{1,2}", text) or not 1 <= int(text) <= _MOST_WORKERS:
        raise OptionError(
            f"{what}: {text!r} is neither auto nor a whole number from 1 to {_MOST_WORKERS}"
        )
    return int(text)


def _owner(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) >= 2**32 - 1:
        raise OptionError(
            f"{what}: {text!r} is not the number of a user or group",
            hint="`id -u` and `id -g` print them",
        )
    return int(text)


def _metrics_address(text: str, what: str) -> str | None:
    """`9567` is a port of this machine alone; HOST:PORT says where else it may be reached from."""
    if text == "off":
        return None
    host, has_host, port = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise OptionError(f"{what}: {text!r} does not end in a port", hint=_METRICS_HINT)
    if has_host and not re.fullmatch(r"\[[0-9a-fA-F:.%\w]+\]|[\w.-]+", host):
        raise OptionError(f"{what}: {host!r} is not a host", hint=_METRICS_HINT)
    return f"{host or LOOPBACK}:{int(port)}"


LOOPBACK: Final = "127.0.0.1"
_METRICS_HINT: Final = (
    "give a port, which only this machine reaches, or HOST:PORT; 0.0.0.0:9567 is on all interfaces"
)


def _mode(text: str, what: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise OptionError(f"{what}: {text!r} is not an octal mode", hint="write it like 0444")
    return mode


# -- options -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a setting is written, and what changing it needs."""

    name: str = ""  # --name, and `options: {name: …}` of a manifest
    kernel: str = ""  # its name in `-o` lists
    help: str = ""
    parse: Parse = _text
    default: str | None = None  # as people would write it
    default_means: str | None = None  # in words, where that says more than the text
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: int | None = None  # a whole number, from here
    most: int | None = None
    flag: bool = False
    repeatable: bool = False
    change: Change = Change.HAND_OVER
    title: str = ""  # in messages about changes, where the option's own name says too little

    @property
    def label(self) -> str:
        """How people write it: `--mode`, or `-o max_read`."""
        return f"--{self.name}" if self.name else f"-o {self.kernel}"

    def read(self, text: str, what: str | None = None) -> Any:
        """Return the value that a text stands for. Raises OptionError."""
        what = what or self.label
        if self.flag:
            if text.lower() not in (*_TRUE, *_FALSE):
                raise OptionError(f"{what}: {text!r} is neither true nor false")
            return text.lower() in _TRUE
        if self.choices and text not in self.choices:
            raise OptionError(f"{what}: {text!r} is not one of {', '.join(self.choices)}")
        if self.least is not None:
            valid = re.fullmatch(r"[0-9]{1,19}", text) is not None
            if not valid or int(text) != self.clamp(int(text)):
                raise OptionError(f"{what}: {text!r} is not a whole number {self.bounds}")
            return int(text)
        return self.parse(text, what)

    def clamp(self, number: int) -> int:
        """Return the nearest whole number that the option takes."""
        most = 2**63 if self.most is None else self.most
        return min(max(number, self.least or 0), most)

    @property
    def bounds(self) -> str:
        return f"from {self.least}" + (f" to {self.most}" if self.most else "")


def _option(value: Any = None, **words: Any) -> Any:
    """A field with its option. The default is `value`, or what the option's default text means."""
    option = Option(**words)
    default = value if option.default is None else option.read(option.default)
    return field(default=default, metadata={"options": (option,)})


def _fixed(title: str) -> dict[str, tuple[Option]]:
    """The metadata of a field that no option sets and that a mount keeps."""
    return {"options": (Option(title=title, change=Change.NEW_MOUNT),)}


_WHERE = "where the store is"
_STORE = StoreOptions()

# By the fields of StoreOptions. Those that say where the store is are part of what a mount is.
STORE_OPTIONS: Final[Mapping[str, Option]] = {
    "endpoint": Option(
        name="endpoint", metavar="URL", help="Where the store is, if not at its cloud's.",
        change=Change.NEW_MOUNT, title=_WHERE,
    ),
    "region": Option(
        name="region", help="The bucket's region.", change=Change.NEW_MOUNT, title=_WHERE,
    ),
    "anonymous": Option(
        name="anonymous", flag=True, help="Sign nothing: a public bucket.",
        change=Change.NEW_MOUNT, title=_WHERE,
    ),
    "manifest": Option(
        name="manifest", parse=_path, metavar="FILE",
        help="For https: `SIZE PATH` lines instead of a listing.",
        change=Change.NEW_MOUNT, title=_WHERE,
    ),
    "deadline_s": Option(
        name="deadline", metavar="DURATION", default=f"{DEFAULT_DEADLINE_S:g}s",
        parse=_duration(1, 3600, "from 1s to 1h", "what is cached never waits for it"),
        help="How long a read may wait for a failing store before EIO.",
    ),
    "verify": Option(
        name="verify-store", choices=VERIFY_MODES, default=_STORE.verify,
        help="Compare bodies with their ETags; auto: where TLS does not protect them.",
    ),
}  # fmt: skip

TIER_OPTIONS: Final = (
    Option(
        name="cache-dir", repeatable=True, metavar="DIR",
        help="Where data is cached; several, or DIR:DIR, share the size.",
    ),
    Option(
        name="cache-size", parse=_quota, metavar="SIZE", default_means="90% of free",
        help="How much is cached there. A bare number counts MiB.",
    ),
    Option(
        name="tier", repeatable=True, parse=_tier, metavar="MEDIUM:DIR[,DIR]:SIZE[:high=,low=]",
        help="A tier, fastest first, instead of --cache-dir: MEM, SSD or HDD.",
    ),
    Option(name="no-cache", flag=True, help="Cache nothing on disk; the page cache remains."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One of the stores that a mount shows, and where."""

    path: str  # below the mount point, without slashes at its ends; "" for all of it
    source: Source
    store: StoreOptions = field(default_factory=StoreOptions)


@dataclass(frozen=True, slots=True)
class MountSettings:
    """All settings of one mount, checked and typed. Durations are seconds, sizes are bytes."""

    parts: tuple[Part, ...] = field(metadata={"options": tuple(STORE_OPTIONS.values())})
    mountpoint: Path = field(metadata=_fixed("the mount point"))
    # The catalog's name, for a mount whose parts may change. None: a name made from the parts, so
    # that mounts of the same parts share one catalog.
    catalog: str | None = field(default=None, metadata=_fixed("its catalog"))
    # What the mount table and `stats` show; the sources by default.
    title: str | None = field(default=None, metadata=_fixed("its title"))
    # fmt: off
    mode: str = _option(
        name="mode", choices=("auto", "pagecache", "passthrough"), default="auto",
        help="pagecache: small files; passthrough: large ones, straight from the cache.",
        change=Change.NEW_MOUNT, title="the mode",
    )
    refresh_s: float | None = _option(  # None: only on demand
        name="refresh", parse=_refresh, default="10m", metavar="DURATION|never",
        help="How often the bucket is listed again.",
    )
    tiers: tuple[TierSpec, ...] = field(default=(), metadata={"options": TIER_OPTIONS})
    shared: str | None = _option(
        name="shared", parse=_members, metavar="memcached://HOST[,HOST]",
        default_means="none",
        help="Members of a cache that several machines share; also memcached:///FILE and "
        "memcached+dns://NAME.",
    )
    shared_key: str | None = _option(
        name="shared-key", parse=_absolute_path, metavar="FILE", default_means="none",
        help="Seal what the shared cache holds with the key in this file.",
    )
    policy: str = _option(
        name="policy", choices=tuple(sorted(POLICIES)), default="keep",
        help="What stays when a tier is full.",
    )
    block_bytes: int = _option(
        name="block-size", default=f"{DEFAULT_BLOCK_BYTES // MIB}MiB", metavar="SIZE",
        parse=_size_between(UNIT_BYTES, GIB, UNIT_BYTES, "128 KiB, up to 1 GiB", KIB),
        help="What one request fetches of a large object. A bare number counts KiB.",
    )
    prefetch_blocks: int = _option(
        name="prefetch", least=0, most=256, default="4", metavar="N",
        help="Blocks to read ahead of a sequential reader; 0 also stops reading ahead small files.",
    )
    buffer_bytes: int = _option(  # blocks being fetched, or not yet read to the end
        name="buffer-size", parse=_size(MIB), default="256MiB", metavar="SIZE",
        help="Memory for blocks in flight. A bare number counts MiB.",
    )
    page_cache_bytes: int | None = _option(
        name="page-cache", parse=_size(MIB), metavar="SIZE",
        default_means="half of what is available",
        help="Page cache that plans, warm-ups and random reads may fill ahead of readers. "
        "A bare number counts MiB.",
    )
    memory_bytes: int = _option(
        name="memory", parse=_size(MIB), default="1GiB", metavar="SIZE",
        help="What the server and its workers may hold in all. A bare number counts MiB.",
    )
    threads: int = _option(
        name="threads", least=2, most=512, default="32",
        help="Reads that may wait for storage at once.",
    )
    workers: int | None = _option(  # None: by the number of cores
        name="workers", parse=_workers, default="auto", metavar="N|auto",
        help="Processes that answer reads; auto: by the number of cores.",
    )
    attr_timeout_s: float = _option(
        name="attr-cache", kernel="attr_timeout", parse=_duration(), default="1d",
        metavar="DURATION", help="How long the kernel keeps attributes.",
    )
    entry_timeout_s: float = _option(
        name="entry-cache", kernel="entry_timeout", parse=_duration(), default="1d",
        metavar="DURATION", help="How long the kernel keeps names.",
    )
    uid: int | None = _option(
        name="uid", kernel="uid", parse=_owner, default_means="you", metavar="ID",
        help="Owner of all files.",
    )
    gid: int | None = _option(
        name="gid", kernel="gid", parse=_owner, default_means="yours", metavar="ID",
        help="Group of all files.",
    )
    file_mode: int = _option(
        name="file-mode", parse=_mode, default="0444", metavar="OCTAL", help="Mode of all files.",
    )
    dir_mode: int = _option(
        name="dir-mode", parse=_mode, default="0555", metavar="OCTAL",
        help="Mode of all directories.",
    )
    max_files: int = _option(
        name="max-files", least=1, default=str(MOST_FILES), metavar="N",
        help="Reject a bucket that lists more.",
    )
    watchdog_s: float = _option(
        name="watchdog", parse=_duration(1, rule="at least 1s"), default="30s",
        metavar="DURATION", help="Replace a server that is silent for so long.",
    )
    give_up_s: float = _option(
        name="give-up", parse=_duration(), default="5m", metavar="DURATION",
        help="Readers get EIO if no server can be started for so long.",
    )
    grace_s: float = _option(
        name="grace", parse=_duration(), default="30s", metavar="DURATION",
        help="How long readers may go on after SIGTERM.",
    )
    metrics: str | None = _option(
        name="metrics", kernel="metrics", parse=_metrics_address, default="off",
        metavar="[HOST:]PORT|off", help="Serve metrics for Prometheus; a bare port is on loopback.",
    )
    allow_other: bool = _option(
        value=False, name="allow-other", kernel="allow_other", flag=True,
        help="Other users may read it too.", change=Change.NEW_MOUNT, title="who may read it",
    )
    max_read_bytes: int = _option(
        kernel="max_read", parse=_size_between(4 * KIB, MIB, 4 * KIB, "4096, up to 1 MiB"),
        default="1MiB", metavar="BYTES", help="The largest read that the kernel sends.",
        change=Change.NEW_MOUNT, title="the largest read",
    )
    name: str | None = _option(
        kernel="fsname", default_means="the sources", metavar="NAME",
        help="What the mount table shows as the device.",
        change=Change.NEW_MOUNT, title="its name in the mount table",
    )
    kernel_resend: bool = _option(
        value=True, kernel="no_resend", flag=True,
        help="Do not ask the kernel to send requests again: as on kernels before 6.9.",
        change=Change.NEW_MOUNT, title="whether the kernel sends again",
    )
    nonempty: bool = _option(
        value=False, kernel="nonempty", flag=True, help="Mount over a folder that is not empty.",
        change=Change.NEXT_MOUNT,
    )
    # fmt: on

    @property
    def deadline_s(self) -> float:
        """How long a read may wait for a failing store before it gets EIO."""
        return max((part.store.deadline_s for part in self.parts), default=DEFAULT_DEADLINE_S)

    @property
    def shown(self) -> str:
        """What is mounted here, for people."""
        return self.title or ", ".join(str(part.source) for part in self.parts) or "nothing"


def options_of(settings_field: "Field[Any]") -> tuple[Option, ...]:
    return settings_field.metadata["options"]


# By their long names, in the order of --help.
OPTIONS: Final[Mapping[str, Option]] = {
    option.name: option
    for one in fields(MountSettings)
    for option in options_of(one)
    if option.name
}
# The options that decide a field of MountSettings by themselves.
OPTION_OF_FIELD: Final[Mapping[str, Option]] = {
    one.name: options_of(one)[0]
    for one in fields(MountSettings)
    if one.name not in ("parts", "tiers")
}


# -- changes -----------------------------------------------------------------------------


def needs_new_mount(current: MountSettings, wanted: MountSettings) -> list[str]:
    """Return what only a new mount could change, in a person's words; empty if the mount can change
    in place. Keys, quotas and tiers always can. Parts can if the catalog has a name of its own:
    otherwise its name is made from the parts, and other mounts share it."""
    found = [
        option.title
        for name, option in OPTION_OF_FIELD.items()
        if option.change is Change.NEW_MOUNT and getattr(current, name) != getattr(wanted, name)
    ]
    if wanted.catalog is None and _places(current) != _places(wanted):
        found.append(_WHERE)
    return found


def hold_back(current: MountSettings, wanted: MountSettings) -> tuple[MountSettings, list[str]]:
    """Return what of `wanted` a mount in use can take, and what has to wait for a new mount, in a
    person's words.

    A mount that is to be closed to other users also keeps its places: they would get to see a new
    folder that is not meant for them. Keys change nevertheless.
    """
    waiting = needs_new_mount(current, wanted)
    fixed = {
        name: getattr(current, name)
        for name, option in OPTION_OF_FIELD.items()
        if option.change is Change.NEW_MOUNT
    }
    possible = replace(wanted, **fixed)
    is_closed = current.allow_other and not wanted.allow_other
    if is_closed and _WHERE not in waiting and _places(current) != _places(wanted):
        waiting.append(_WHERE)
    if _WHERE in waiting:
        wanted_now = {(part.path, part.source): part for part in wanted.parts}
        parts = (wanted_now.get((part.path, part.source), part) for part in current.parts)
        possible = replace(possible, parts=tuple(parts))
    return possible, waiting


def describe_changes(current: MountSettings, wanted: MountSettings) -> list[str]:
    """Return what differs between two settings of one mount, in a person's words."""
    found: list[str] = []
    before = {part.path: part for part in current.parts}
    after = {part.path: part for part in wanted.parts}
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or (new is not None and old.source != new.source):
            assert new is not None
            found.append(f"{new.source} at /{path}")
        elif new is None:
            found.append(f"/{path} removed")
        elif old.store != new.store:
            found.append(f"keys or options of {new.source}")
    if current.tiers != wanted.tiers:
        found.append(f"cache {_tiers_in_words(current)} to {_tiers_in_words(wanted)}")
    for name, option in OPTION_OF_FIELD.items():
        if getattr(current, name) != getattr(wanted, name):
            found.append(option.title or option.name)
    return found


def _tiers_in_words(settings: MountSettings) -> str:
    """`MEM 2.0 GiB and SSD 180.0 GiB`."""
    words = [
        f"{tier.medium} {'90% of free' if quota is None else format_size(quota)}"
        for tier in settings.tiers
        for quota in (tier.quota_bytes,)
    ]
    return " and ".join(words) or "none"


def _places(settings: MountSettings) -> set[tuple[Any, ...]]:
    """Where the store of each part is, and for which account."""
    fixed = [name for name, option in STORE_OPTIONS.items() if option.change is Change.NEW_MOUNT]
    return {
        (
            part.path,
            part.source,
            part.store.keys.account_name if part.store.keys is not None else None,
            *(getattr(part.store, name) for name in fixed),
        )
        for part in settings.parts
    }


# -- JSON --------------------------------------------------------------------------------
#
# Settings travel from the command that mounts through the supervisor to a server and its workers.
# A server may be of a newer release than what wrote them: it ignores what it does not know, and
# takes the default for what is missing.


def encode(settings: MountSettings) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(settings), default=str))


def decode(data: dict[str, Any]) -> MountSettings:
    known = _known(MountSettings, data)
    parts = data.get("parts")
    if parts is None:  # from before a mount had several
        parts = [{"path": "", "source": data["source"], "store": data["store"]}]
    known["parts"] = tuple(map(_decode_part, parts))
    known["mountpoint"] = Path(data["mountpoint"])
    known["tiers"] = tuple(map(_decode_tier, data["tiers"]))
    return MountSettings(**known)


def _decode_part(data: dict[str, Any]) -> Part:
    store = _known(StoreOptions, data["store"])
    if store.get("manifest") is not None:
        store["manifest"] = Path(store["manifest"])
    if store.get("keys") is not None:
        store["keys"] = Keys(**_known(Keys, store["keys"]))
    source = Source(**_known(Source, data["source"]))
    return Part(data["path"], source, StoreOptions(**store))


def _decode_tier(data: dict[str, Any]) -> TierSpec:
    known = _known(TierSpec, data)
    known["paths"] = tuple(map(Path, known["paths"]))
    return TierSpec(**known)


def _known(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
