"""The small files that follow those which someone reads in listing order, as a feed.

They go into the cache and not to the kernel: a reader who finds them there still asks for each,
which is how we see that he goes on.

Threading: `announce` from any thread, `take` from the prefetcher's.
"""

import threading
from collections import deque
from collections.abc import Callable

from penstock.cache.fetch import Arrival
from penstock.vfs.filesystem import FileSystem
from penstock.warm.prefetcher import Feed, Wanted

_MOST_WAITING = 64  # announcements; who reads faster than we fetch needs no help


class NeighbourFeed:
    def __init__(
        self, files: FileSystem, add: Callable[[Feed], None], remove: Callable[[Feed], None]
    ) -> None:
        self._files = files
        self._add = add
        self._remove = remove
        self._lock = threading.Lock()
        self._announced: deque[tuple[int, int, int]] = deque(maxlen=_MOST_WAITING)
        self._ready: deque[Wanted] = deque()
        self._active = False

    def announce(self, parent: int, after: int, up_to: int) -> None:
        with self._lock:
            self._announced.append((parent, after, up_to))
            if self._active:
                return
            self._active = True
        self._add(self)

    def take(self, most: int) -> list[Wanted]:
        while len(self._ready) < most:
            with self._lock:
                if not self._announced:
                    break
                parent, after, up_to = self._announced.popleft()
            self._find(parent, after, up_to)
        taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        with self._lock:
            if not taken and not self._announced:
                self._active = False
                self._remove(self)
        return taken

    def _find(self, parent: int, after: int, up_to: int) -> None:
        for node in self._files.tree.files_numbered(parent, after, up_to):
            if 0 < (node.size_bytes or 0) <= self._files.cache.block_bytes:
                self._ready.append(Wanted(node.ino, 0, False, 0.0, _ignore))


def _ignore(_arrival: Arrival) -> None:
    """Who reads it will see."""
