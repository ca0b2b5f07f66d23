"""Where in the tiers a load's bytes will find room: counted before they are fetched.

What finds none is not fetched at all: it would be paid for, and thrown away. The tiers have the
last word; this is what they say when it is made, less what was taken since.

Threading: one thread.
"""

from collections.abc import Callable, Sequence

from penstock.cache.striped import StripedTier

# wanted(tier, share) -> bytes of the selection that are there
Wanted = Callable[[int, int], int]


class Room:
    def __init__(self, tiers: Sequence[StripedTier], wanted: Wanted) -> None:
        self._tiers = tiers
        self._free = [
            tier.rooms_beside(lambda share, depth=depth: wanted(depth, share))
            for depth, tier in enumerate(tiers)
        ]

    @property
    def free_bytes(self) -> int:
        return sum(map(sum, self._free))

    def take(self, digest: bytes, lengths: Sequence[int]) -> bool:
        """Is there room for all of these blocks of one object? If so, it is taken, each in the
        first tier that has some: half an object is of little use."""
        places = [
            (free, tier.share_of(digest))
            for free, tier in zip(self._free, self._tiers, strict=True)
        ]
        taken: list[tuple[list[int], int, int]] = []
        for length in lengths:
            found = next((one for one in places if one[0][one[1]] >= length), None)
            if found is None:
                for free, share, before in taken:
                    free[share] += before
                return False
            free, share = found
            free[share] -= length
            taken.append((free, share, length))
        return True


def surely_fits(tiers: Sequence[StripedTier], size_bytes: int) -> bool:
    """Would all of it find room in one tier, however it falls on that one's shares?"""
    return any(
        min(tier.rooms_beside(lambda _share: size_bytes), default=0) >= size_bytes for tier in tiers
    )
