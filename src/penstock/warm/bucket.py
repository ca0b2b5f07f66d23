"""So many bytes a second and no more: a token bucket. Pure.

Bytes are taken when there are some, even if that leaves the bucket in debt: the next waits until
the debt is paid. So a block larger than a second's worth passes too, and the rate holds over time
to the byte; over one second to what the bucket holds and one block.

Threading: one thread takes; any may give back.
"""

import threading
import time
from collections.abc import Callable

# What may be saved up while nobody takes: several looks of the prefetcher, and no burst that
# another user of the line would notice.
_HOLDS_S = 0.1


class Bucket:
    def __init__(self, bytes_per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._most = bytes_per_s * _HOLDS_S
        self._tokens = self._most
        self._filled_s = clock()

    def take(self, size_bytes: int) -> bool:
        """May so many bytes be fetched now? If so, they are counted."""
        with self._lock:
            now_s = self._clock()
            grown = self._tokens + (now_s - self._filled_s) * self._bytes_per_s
            self._tokens, self._filled_s = min(self._most, grown), now_s
            if self._tokens <= 0:
                return False
            self._tokens -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """They were not fetched after all."""
        with self._lock:
            self._tokens += size_bytes
