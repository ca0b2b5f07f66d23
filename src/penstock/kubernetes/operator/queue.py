"""A queue of keys to work on. Each key is there once, and one worker at a time has it.

A key that is added while a worker has it is worked on again afterwards. Thread-safe.
"""

import heapq
import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 300.0
# After days of failures the exponent would exceed what a float can hold.
_MOST_DOUBLINGS = 20

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}  # when each waiting key is to be worked on
        self._heap: list[tuple[float, int, Key]] = []  # may hold entries that `_due` has replaced
        self._added = 0
        self._taken: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._stopped = False

    def add(self, key: Key, *, delay_s: float = 0.0) -> None:
        """Work on the key after a delay, or earlier if it waits for an earlier time already."""
        due_s = self._clock() + delay_s
        with self._changed:
            if (before_s := self._due.get(key)) is not None and before_s <= due_s:
                return
            self._due[key] = due_s
            self._added += 1
            heapq.heappush(self._heap, (due_s, self._added, key))
            if key not in self._taken:
                self._changed.notify()

    def take(self) -> Key | None:
        """Wait for a key; None after `stop`. The worker calls `done` with it."""
        with self._changed:
            while not self._stopped:
                wait_s = None
                while self._heap:
                    due_s, _, key = self._heap[0]
                    if self._due.get(key) != due_s or key in self._taken:
                        heapq.heappop(self._heap)  # replaced, or `done` puts it back
                        continue
                    if (wait_s := due_s - self._clock()) > 0:
                        break
                    heapq.heappop(self._heap)
                    del self._due[key]
                    self._taken.add(key)
                    return key
                self._changed.wait(wait_s if self._heap else None)
            return None

    def done(self, key: Key) -> None:
        with self._changed:
            self._taken.discard(key)
            if (due_s := self._due.get(key)) is not None:
                self._added += 1
                heapq.heappush(self._heap, (due_s, self._added, key))
                self._changed.notify()

    def retry(self, key: Key) -> float:
        """Add the key after a pause that doubles with each failure; return the pause."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, _MOST_DOUBLINGS))
        pause_s = longest_s * random.uniform(0.5, 1)
        self.add(key, delay_s=pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """The key was worked on without a failure: its next pause is the first one again."""
        with self._changed:
            self._failures.pop(key, None)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._changed:
            return len(self._due) + len(self._taken)
