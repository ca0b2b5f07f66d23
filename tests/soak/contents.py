"""What a file holds in each of its states, known from its name and a number; which states it may be
seen in now.

A state is a version, or the file's absence. Each page of a version says whose it is, so that a mix
of two versions cannot pass for one, and tells where it came from.
"""

import random
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

PAGE_BYTES = 4096
_SMALL, _LARGE, _IN_A_FOLDER = 240, 10, 20
_ABSENT_SHARE = 0.12

NAMES: tuple[str, ...] = (
    *(f"small/d{i // _IN_A_FOLDER:02}/{i:04}.jpg" for i in range(_SMALL)),
    *(f"large/{i:02}.bin" for i in range(_LARGE)),
)
SMALL = range(_SMALL)
LARGE = range(_SMALL, _SMALL + _LARGE)


@lru_cache(maxsize=4096)
def size_of(name: str, state: int) -> int | None:
    """In bytes; None: in this state the file is not there. State 0 always is."""
    chance = random.Random(f"{name} {state}")
    if state and chance.random() < _ABSENT_SHARE:
        return None
    if name.startswith("large/"):
        # A rewrite that keeps the size is told only by its version.
        return chance.choice((1 << 19, 1_500_001, 1_500_001, 2 << 20))
    return chance.choice((100, 5000, 20_000, 20_000, 60_001))


@lru_cache(maxsize=24)
def make(name: str, state: int) -> bytes:
    size = size_of(name, state)
    assert size is not None
    return b"".join(_pages(name, state, size))[:size]


def state_in(data: bytes) -> int | None:
    """Which state the data says it is, by its first page."""
    words = data[:60].split(b" ")
    return int(words[1]) if len(words) > 2 and words[1].isdigit() else None


def describe(data: bytes) -> str:
    """Whose pages these are, for the report of wrong bytes."""
    runs: list[str] = []
    for at in range(0, len(data), PAGE_BYTES):
        words = data[at : at + 60].split(b" ")
        who = b" ".join(words[:2]).decode(errors="replace") if len(words) > 2 else "no page of ours"
        if not runs or not runs[-1].endswith(who):
            runs.append(f"from {at}: {who}")
    return "; ".join(runs[:6])


def _pages(name: str, state: int, size: int) -> Iterator[bytes]:
    for number in range(-(-size // PAGE_BYTES)):
        stamp = f"{name} {state} {number} ".encode()
        filling = blake2b(stamp).digest()
        yield (stamp + filling * (PAGE_BYTES // len(filling)))[:PAGE_BYTES]


class Ledger:
    """For every file `latest`, the number of the state that the bucket got last (raised before the
    bucket changes); and per mount `floors`, the state it was in when the last refresh of that mount
    began (raised after the refresh is done). A read that begins now must show a state from the
    floor to what `latest` is when it ends. One thread writes, many read."""

    def __init__(self, mounts: int) -> None:
        self.latest = [0] * len(NAMES)
        self.floors = [[0] * len(NAMES) for _ in range(mounts)]

    def there(self, floor: int, file: int) -> set[bool]:
        """Whether the file is there, in each state it may be seen in."""
        states = range(floor, self.latest[file] + 1)
        return {size_of(NAMES[file], state) is not None for state in states}
