"""Tells empty objects from the markers of directories, where the client strips their slash.

One listing by level of their parent tells, for all siblings at once. So they are kept back until
the listing has passed their parent, and never more than so many of them.

Threading: one thread, that of its listing.
"""

import posixpath
from collections.abc import Callable, Iterator

from penstock.store import Level, ObjectInfo

# Kept back in one listing: some 3 MB. A directory with more empty objects than this is not asked
# for its level, which would be held in memory as a whole: there they are files.
MOST_UNCLEAR = 10_000


class Unclear:
    def __init__(self, list_level: Callable[[str], Level | None], *, ordered: bool) -> None:
        self._list_level = list_level
        self._ordered = ordered
        self._by_parent: dict[str, list[ObjectInfo]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, info: ObjectInfo) -> None:
        self._by_parent.setdefault(posixpath.dirname(info.key), []).append(info)
        self._count += 1

    def told_by(self, key: str) -> Iterator[list[ObjectInfo]]:
        """Those that need not wait, now that the listing has come to this key."""
        if self._count >= MOST_UNCLEAR:
            yield from self.told()
        elif self._ordered:
            for parent in [name for name in self._by_parent if _lies_before(name, key)]:
                yield self._tell(parent)

    def told(self) -> Iterator[list[ObjectInfo]]:
        for parent in list(self._by_parent):
            yield self._tell(parent)

    def _tell(self, parent: str) -> list[ObjectInfo]:
        infos = self._by_parent[parent]
        level = self._list_level(parent) if len(infos) < MOST_UNCLEAR else None
        del self._by_parent[parent]  # only now: what could not be told is still unclear
        self._count -= len(infos)
        if level is None:
            return infos
        prefixes = set(level.prefixes)
        objects = {info.key for info in level.objects}
        return [info for info in infos if info.key in objects] + [
            info._replace(key=f"{info.key}/") for info in infos if info.key in prefixes
        ]


def _lies_before(parent: str, key: str) -> bool:
    """Do all keys below this parent come before this one?"""
    below = f"{parent}/"
    return bool(parent) and key > below and not key.startswith(below)
