"""Small random changes to valid inputs. Pure: the same seed makes the same inputs."""

import random
from collections.abc import Iterator, Sequence

# Where lengths, offsets and counts go wrong.
_NUMBERS = [
    number.to_bytes(width, "little")
    for width in (1, 2, 4, 8)
    for number in (0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1)
]
_MOST_CHANGES = 4
_MOST_BYTES = 1 << 16


def mutations(seeds: Sequence[bytes], words: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """The seeds themselves first, then changed ones without end."""
    yield from seeds
    chance = random.Random(seed)
    while True:
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, _MOST_CHANGES)):
            _change(data, seeds, words, chance)
        yield bytes(data[:_MOST_BYTES])


def _change(
    data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes], chance: random.Random
) -> None:
    at = chance.randint(0, len(data))
    stop = min(len(data), at + chance.choice((1, 2, 4, 8, 64, 512)))
    match chance.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            number = chance.choice(_NUMBERS)
            data[at : at + len(number)] = number
        case 2:
            del data[at:stop]
        case 3:
            data[at:at] = data[at:stop] * chance.choice((1, 2, 100))
        case 4 if words:
            data[at:at] = chance.choice(words)
        case 5:
            other = chance.choice(seeds)
            start = chance.randint(0, len(other))
            data[at:stop] = other[start : start + chance.choice((1, 8, 64))]
        case _:
            data[at:stop] = chance.randbytes(stop - at)
