"""What a file holds in each of its states, known from its name and a number; which states it may be
seen in now.

A state is a version, or the file's absence. Each page of a version says whose it is, so that a mix
of two versions cannot pass for one, and tells where it came from.
"""

import random
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby

PAGE_BYTES = 4096
IN_A_FOLDER = 20
SMALL, LARGE = range(240), range(240, 250)
NAMES = [f"small/d{i // IN_A_FOLDER:02}/{i:04}.jpg" for i in SMALL]
NAMES += [f"large/{i:02}.bin" for i in range(len(LARGE))]
# Files that never change and that only listings show: more than two pages of a listing, so that a
# store can lose pages, and one that was lost is a name that is missing.
STILL = [f"many/{i:04}" for i in range(2200)]
_ABSENT_SHARE = 0.12


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
    size, pages = size_of(name, state), bytearray()
    assert size is not None
    while len(pages) < size:
        stamp = f"{name} {state} {len(pages) // PAGE_BYTES} ".encode()
        pages += (stamp + blake2b(stamp).digest() * (PAGE_BYTES // 64))[:PAGE_BYTES]
    return bytes(pages[:size])


def stamp_of(page: bytes) -> tuple[str, int] | None:
    """The file and the state that a page says it is of."""
    name, state, *_ = [*page[:60].split(b" "), b"", b""]
    return (name.decode(errors="replace"), int(state)) if state.isdigit() else None


def describe(data: bytes) -> str:
    """Whose pages these are, for the report of wrong bytes."""
    starts = range(0, len(data), PAGE_BYTES)
    runs = groupby(starts, lambda at: stamp_of(data[at : at + PAGE_BYTES]))
    return "; ".join(f"from {next(ats)}: {who}" for who, ats in runs)


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

    def wrong_in(self, listing: set[str], floors: list[int]) -> list[str]:
        """What is wrong with the names of all files, as a listing that began at these floors gave
        them."""
        wrong = [f"{name}: missing" for name in STILL if name not in listing]
        for file, name in enumerate(NAMES):
            if self.there(floors[file], file) == {name not in listing}:
                wrong.append(f"{name}: {'listed' if name in listing else 'missing'}")
        return wrong + [f"{name}: invented" for name in sorted(listing - _KNOWN)]


_KNOWN = {*NAMES, *STILL}
