"""What stays when a cache directory is full.

Training reads every sample once an epoch. For that, evicting the least recently used is the
worst choice: at a cache of half the data it hits 15% of reads, keeping what is there 50%,
which is also the optimum. So `keep` is the default, and `lru` is there for other workloads.
"""

from collections.abc import Callable, Mapping
from typing import Protocol


class EvictableDirectory(Protocol):
    """What a policy sees of a cache directory."""

    @property
    def used_bytes(self) -> int: ...

    @property
    def high_bytes(self) -> int:
        """More than this must not be stored."""
        ...

    @property
    def low_bytes(self) -> int:
        """Eviction, once begun, goes on down to this."""
        ...

    @property
    def outdated_bytes(self) -> int:
        """How much of what is used the bucket does not have any more."""
        ...

    def evict_outdated(self, down_to_bytes: int) -> None:
        """Drops what the bucket does not have any more."""
        ...

    def evict_least_recently_used(self, down_to_bytes: int) -> None: ...


class Policy(Protocol):
    tracks_use: bool

    def make_room(self, room: EvictableDirectory, needed_bytes: int) -> bool:
        """May `needed_bytes` more be stored?"""
        ...

    def free_beside(self, room: EvictableDirectory, wanted_bytes: int) -> int:
        """How many bytes more may come without driving out each other, or the `wanted_bytes` that
        are here already and were used last."""
        ...


class Keep:
    """What is there stays; what does not fit is read from storage each time."""

    tracks_use = False

    def make_room(self, room: EvictableDirectory, needed_bytes: int) -> bool:
        if room.used_bytes + needed_bytes > room.high_bytes:
            room.evict_outdated(room.high_bytes - needed_bytes)
        return room.used_bytes + needed_bytes <= room.high_bytes

    def free_beside(self, room: EvictableDirectory, wanted_bytes: int) -> int:
        return max(0, room.high_bytes - room.used_bytes + room.outdated_bytes)


class LeastRecentlyUsed:
    """The newest always gets in; above the high watermark the oldest go, down to the low one."""

    tracks_use = True

    def make_room(self, room: EvictableDirectory, needed_bytes: int) -> bool:
        if needed_bytes > room.high_bytes:
            return False
        if room.used_bytes + needed_bytes > room.high_bytes:
            room.evict_least_recently_used(max(0, room.low_bytes - needed_bytes))
        return room.used_bytes + needed_bytes <= room.high_bytes

    def free_beside(self, room: EvictableDirectory, wanted_bytes: int) -> int:
        # Once eviction begins it goes down to the low watermark, and what is wanted has to be
        # within that; without any, there is room up to the high one.
        without = room.high_bytes - room.used_bytes
        return max(0, without, room.low_bytes - wanted_bytes)


POLICIES: Mapping[str, Callable[[], Policy]] = {"keep": Keep, "lru": LeastRecentlyUsed}
