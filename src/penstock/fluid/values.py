"""The values of other systems' settings, in the words of our own options. Pure.

Each function gets the text that was written and all settings beside it, and returns what our option
is told, a `Note` with it where that is not quite the same, or `Idle`, with the reason, where this
value changes nothing. What is no value at all raises OptionError.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.blocks import UNIT_BYTES
from penstock.errors import OptionError
from penstock.settings import OPTIONS
from penstock.specs.schema import NoEffect
from penstock.units import KIB, MIB, format_size, parse_size

# Blocks of other systems are where data is placed; ours is what one request fetches, and several
# must fit into the buffer (256 MiB) for a reader to stay ahead.
MOST_BLOCK_BYTES = 64 * MIB
# Each listing reads the whole bucket. A shorter time would do nothing else.
SHORTEST_REFRESH_S = 10

_TIME = re.compile(r"^\s*(-?[0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)
_FOR_EVER_S = 100 * 365 * 86400.0
_UNITS_S = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


@dataclass(frozen=True, slots=True)
class Note:
    text: str  # what our option is told
    why: str


@dataclass(frozen=True, slots=True)
class Idle:
    reason: str


Answer = str | Note | Idle
Reader = Callable[[str, Mapping[str, str]], Answer]


def block_size(text: str, _all: Mapping[str, str]) -> Answer:
    wanted = parse_size(text)
    size = min(max(round(wanted / UNIT_BYTES), 1) * UNIT_BYTES, MOST_BLOCK_BYTES)
    if size == wanted:
        return _bytes(size)
    if wanted > size:
        return Note(_bytes(size), "that is the largest block: one request fetches a whole one")
    return Note(_bytes(size), f"{format_size(size)} is the nearest multiple of 128 KiB")


def size(bare_unit: int = 1) -> Reader:
    def read(text: str, _all: Mapping[str, str]) -> Answer:
        return _bytes(parse_size(text, bare_unit=bare_unit))

    return read


def time(bare_unit_s: float) -> Reader:
    """Alluxio counts milliseconds where no unit is written, JuiceFS seconds."""

    def read(text: str, _all: Mapping[str, str]) -> Answer:
        seconds = read_seconds(text, bare_unit_s)
        return (
            Idle("it never expires, as it is here: the kernel is told what changes")
            if (seconds < 0)
            else f"{seconds:g}s"
        )

    return read


def deadline(text: str, _all: Mapping[str, str]) -> Answer:
    seconds = read_seconds(text, 0.001)
    bounded = min(max(seconds, 1), 3600)
    if bounded == seconds:
        return f"{seconds:g}s"
    return Note(f"{bounded:g}s", "a read waits for from 1 s to 1 h")


def refresh(text: str, _all: Mapping[str, str]) -> Answer:
    seconds = read_seconds(text, 0.001)
    if seconds < 0:
        return "never"
    if seconds < SHORTEST_REFRESH_S:
        return Note(f"{SHORTEST_REFRESH_S}s", "each listing reads the whole bucket")
    return f"{seconds:g}s"


def threads(text: str, _all: Mapping[str, str]) -> Answer:
    wanted = read_count(text)
    option = OPTIONS["threads"]
    count = option.clamp(wanted)
    return str(count) if count == wanted else Note(str(count), f"threads are {option.bounds}")


def prefetch(text: str, _all: Mapping[str, str]) -> Answer:
    wanted = read_count(text)
    option = OPTIONS["prefetch"]
    count = option.clamp(wanted)
    return str(count) if count == wanted else Note(str(count), f"at most {option.most} blocks")


def readahead_buffers(text: str, given: Mapping[str, str]) -> Answer:
    """So many buffers, of a size that another setting has."""
    return _bytes(read_count(text) * parse_size(given.get("fs.oss.read.buffer.size", "1MiB")))


def client_cache(text: str, given: Mapping[str, str]) -> Answer:
    if given.get("alluxio.user.client.cache.enabled", "false").lower() != "true":
        return Idle("alluxio.user.client.cache.enabled is not true")
    return _bytes(parse_size(text))


def policy(text: str, _all: Mapping[str, str]) -> Answer:
    name = text.rsplit(".", 1)[-1].lower()
    if "lru" in name or "lrfu" in name:
        return "lru"
    if name == "none":
        return "keep"
    return Idle("`keep` is used, which hits most when every file is read once in each epoch")


def text(written: str, _all: Mapping[str, str]) -> Answer:
    return written


def read_seconds(written: str, bare_unit_s: float) -> float:
    match = _TIME.match(written)
    unit = match[2].lower() if match else ""
    if match is None or (unit and unit not in _UNITS_S):
        raise OptionError(f"{written!r} is not a time", hint="write it like 30s, 10min or 2day")
    seconds = float(match[1]) * (_UNITS_S[unit] if unit else bare_unit_s)
    # What is meant by a number of a hundred digits is for ever.
    return min(seconds, _FOR_EVER_S)


def read_count(written: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", written):
        raise OptionError(f"{written!r} is not a number", hint="write a whole number")
    return int(written)


def _bytes(count: int) -> str:
    return f"{count // KIB}KiB" if count % KIB == 0 else f"{count}B"


# Names that were meant to be others. Pure.

_SAME_WORD = 0.75  # one letter in four


def misspelled(name: str, known: Iterable[str]) -> str | None:
    """The known name of which this is a slip of the pen: other capitals, or one word that differs
    by a letter or two. Names that merely look alike (`pool.min`, `pool.max`) are none."""
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


# What is collected while a resource is translated. Pure.


@dataclass(slots=True)
class Said:
    """What has no effect, and what a person should know, of one resource."""

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
    """A map of options, with the place in the manifest where each was written."""

    values: Mapping[str, str]
    paths: Mapping[str, str]

    @classmethod
    def at(cls, path: str, values: Mapping[str, str] | None) -> "Written":
        return cls(values or {}, {name: f"{path}.{name}" for name in values or {}})

    def over(self, other: "Written") -> "Written":
        """Both; where a name is in both, this one's."""
        return Written({**other.values, **self.values}, {**other.paths, **self.paths})
