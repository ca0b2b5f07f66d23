"""Values of other systems' settings, converted to the text of our own options. Pure.

A converter gets the text as written and all settings beside it. It returns the text for our option,
an `Adjusted` where that text means something slightly different, or an `Unused` where this value
changes nothing. It raises OptionError for text that is not a valid value.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.blocks import UNIT_BYTES
from penstock.errors import OptionError
from penstock.settings import OPTIONS
from penstock.specs.schema import NoEffect
from penstock.units import KIB, MIB, format_size, parse_size

# In other systems a block is a unit of placement. Here it is what one request fetches, and several
# blocks must fit into the buffer (256 MiB) to keep a reader supplied.
MOST_BLOCK_BYTES = 64 * MIB
# Each listing reads the whole bucket. With a shorter interval the mount would do nothing else.
SHORTEST_REFRESH_S = 10

# Stands for a value that is in a Secret, where a plan is made without the right to read Secrets.
UNKNOWN: Final = "value-of-a-secret"

_TIME = re.compile(r"^\s*(-?[0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)
_LONGEST_S = 100 * 365 * 86400.0
_UNITS_S = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


@dataclass(frozen=True, slots=True)
class Adjusted:
    text: str  # the value for our option
    why: str


@dataclass(frozen=True, slots=True)
class Unused:
    reason: str


Converted = str | Adjusted | Unused
Converter = Callable[[str, Mapping[str, str]], Converted]


def block_size(text: str, _all: Mapping[str, str]) -> Converted:
    wanted = parse_size(text)
    size = min(max(round(wanted / UNIT_BYTES), 1) * UNIT_BYTES, MOST_BLOCK_BYTES)
    if size == wanted:
        return _bytes(size)
    if wanted > size:
        return Adjusted(_bytes(size), "larger blocks are not supported: one request fetches one")
    return Adjusted(_bytes(size), f"{format_size(size)} is the nearest multiple of 128 KiB")


def size(bare_unit: int = 1) -> Converter:
    return lambda text, _all: _bytes(parse_size(text, bare_unit=bare_unit))


def time(bare_unit_s: float) -> Converter:
    """Without a unit, Alluxio counts milliseconds and JuiceFS seconds."""

    def convert(text: str, _all: Mapping[str, str]) -> Converted:
        seconds = read_seconds(text, bare_unit_s)
        if seconds < 0:
            return Unused("never expiring is the default: Penstock tells the kernel what changes")
        return f"{seconds:g}s"

    return convert


def deadline(text: str, _all: Mapping[str, str]) -> Converted:
    seconds = read_seconds(text, 0.001)
    bounded = min(max(seconds, 1), 3600)
    if bounded == seconds:
        return f"{seconds:g}s"
    return Adjusted(f"{bounded:g}s", "the deadline of a read is between 1 s and 1 h")


def refresh(text: str, _all: Mapping[str, str]) -> Converted:
    seconds = read_seconds(text, 0.001)
    if seconds < 0:
        return "never"
    if seconds < SHORTEST_REFRESH_S:
        return Adjusted(f"{SHORTEST_REFRESH_S}s", "each listing reads the whole bucket")
    return f"{seconds:g}s"


def threads(text: str, _all: Mapping[str, str]) -> Converted:
    wanted = read_count(text)
    option = OPTIONS["threads"]
    count = option.clamp(wanted)
    return str(count) if count == wanted else Adjusted(str(count), f"threads are {option.bounds}")


def prefetch(text: str, _all: Mapping[str, str]) -> Converted:
    wanted = read_count(text)
    option = OPTIONS["prefetch"]
    count = option.clamp(wanted)
    return str(count) if count == wanted else Adjusted(str(count), f"at most {option.most} blocks")


def readahead_buffers(text: str, given: Mapping[str, str]) -> Converted:
    """A number of buffers, whose size is another setting."""
    return _bytes(read_count(text) * parse_size(given.get("fs.oss.read.buffer.size", "1MiB")))


def client_cache(text: str, given: Mapping[str, str]) -> Converted:
    if given.get("alluxio.user.client.cache.enabled", "false").lower() != "true":
        return Unused("alluxio.user.client.cache.enabled is not true")
    return _bytes(parse_size(text))


def policy(text: str, _all: Mapping[str, str]) -> Converted:
    name = text.rsplit(".", 1)[-1].lower()
    if "lru" in name or "lrfu" in name:
        return "lru"
    if name == "none":
        return "keep"
    return Unused("`keep` is used: it hits most when each epoch reads every file once")


def text(written: str, _all: Mapping[str, str]) -> Converted:
    return written


def read_seconds(written: str, bare_unit_s: float) -> float:
    match = _TIME.match(written)
    unit = match[2].lower() if match else ""
    if match is None or (unit and unit not in _UNITS_S):
        raise OptionError(f"{written!r} is not a time", hint="write it like 30s, 10min or 2day")
    # A number of a hundred digits means "forever".
    return min(float(match[1]) * (_UNITS_S[unit] if unit else bare_unit_s), _LONGEST_S)


def read_count(written: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", written):
        raise OptionError(f"{written!r} is not a number", hint="write a whole number")
    return int(written)


def _bytes(count: int) -> str:
    return f"{count // KIB}KiB" if count % KIB == 0 else f"{count}B"


# -- names -----------------------------------------------------------------------------------

_SAME_WORD = 0.75  # one letter in four


def misspelled(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` misspells; None if it misspells none.

    A misspelling has other capitals, or one word that differs by a letter or two. Names that merely
    look alike (`pool.min`, `pool.max`) do not count.
    """
    words = name.lower().split(".")
    for one in known:
        others = one.lower().split(".")
        if len(others) != len(words):
            continue
        pairs = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
        if not pairs or (len(pairs) == 1 and _alike(*pairs[0])):
            return one
    return None


def _alike(a: str, b: str) -> bool:
    return sorted(a) == sorted(b) or difflib.SequenceMatcher(None, a, b).ratio() >= _SAME_WORD


# -- what goes into a translation, and what comes out beside the settings ---------------------


@dataclass(slots=True)
class Report:
    """What a translation tells the user: options without effect, and adjusted values."""

    without_effect: list[NoEffect] = field(default_factory=list[NoEffect])
    notes: list[str] = field(default_factory=list[str])

    def no_effect(self, path: str, reason: str) -> None:
        found = NoEffect(path, reason)
        if found not in self.without_effect:
            self.without_effect.append(found)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class Written:
    """A map of options, with the path in the manifest where each is written."""

    values: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def at(cls, path: str, values: Mapping[str, str] | None) -> "Written":
        return cls(values or {}, {name: f"{path}.{name}" for name in values or {}})

    def over(self, other: "Written") -> "Written":
        """Merge both; where both have a name, this one wins."""
        return Written({**other.values, **self.values}, {**other.paths, **self.paths})

    def only(self, names: Iterable[str]) -> "Written":
        values = {name: self.values[name] for name in names if name in self.values}
        return Written(values, {name: self.paths[name] for name in values})
