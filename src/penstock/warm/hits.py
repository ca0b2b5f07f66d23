"""How much of a shuffled epoch a cache answers. Pure.

An epoch reads every sample once, in an order that is new each time. What a cache then hits
depends on its policy, on how much of the data it holds, and for LRU on how far the epoch is.
"""

import math
import random
from collections.abc import Callable, Sequence

Chance = Callable[[float], float]  # of a miss, by how much of the epoch has been read (0 to 1)


def lru_hit_chance(share: float, position: float) -> float:
    """Of the sample that is read at `position` of a shuffled epoch, from an LRU cache that holds
    `share` of the data.

    Its last read was at a place v of the epoch before, any v being as likely. Since then
    1 - v * (1 - position) of the data was read, counting each sample once. It is still there if
    that is less than the share.
    """
    if share >= 1:
        return 1.0
    left = 1 - position
    return max(0.0, 1 - (1 - share) / left) if left > 0 else 0.0


def lru_hit_share(share: float) -> float:
    """The same over a whole epoch: 3% at a quarter of the data, 15% at half, 40% at 75%."""
    return 1.0 if share >= 1 else share + (1 - share) * math.log(1 - share)


def miss_chance(policy: str, cache_share: float, memory_share: float) -> Chance:
    """In an epoch without a plan that follows another one, or a warm-up. `memory_share` is what the
    page cache holds of the data; the kernel keeps there what was read last, whatever the policy."""
    if policy == "lru":
        held = max(cache_share, memory_share)  # the smaller one's samples are in the larger one too
        return lambda position: 1 - lru_hit_chance(held, position)
    missed = 1 - min(1.0, cache_share)
    return lambda position: missed * (1 - lru_hit_chance(memory_share, position))


def planned_miss_chance(policy: str, cache_share: float, kept_share: float) -> Chance:
    """The same with a plan, which keeps the pages of the files that came first, as far as there is
    room for them, and drops the others behind its cursor."""
    if policy == "lru":
        rest = 1 - min(1.0, kept_share)
        return lambda position: rest * (1 - lru_hit_chance(cache_share, position))
    missed = 1 - min(1.0, max(cache_share, kept_share))  # both keep what came first
    return lambda _: missed


def draw_misses(batches: Sequence[int], chance: Chance, rng: random.Random) -> list[int]:
    """How many samples of each batch (given by their sizes) are not there.

    Drawn about the expected course, so that single batches vary as they do in a shuffled epoch
    and the whole epoch has exactly what is expected.
    """
    samples = sum(batches)
    read = drawn = 0
    expected = 0.0
    found: list[int] = []
    for size in batches:
        missing = chance((read + size / 2) / samples)
        read += size
        expected += size * missing
        # A batch is the difference of two draws: each has half the variance of a binomial one.
        spread = math.sqrt(size * missing * (1 - missing) / 2) if read < samples else 0.0
        wanted = round(rng.gauss(expected, spread)) - drawn
        found.append(max(0, min(size, wanted)))
        drawn += found[-1]
    return found
