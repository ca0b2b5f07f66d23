"""One thread that puts small objects into the tiers, behind the backs of those who read them.

A small file costs three system calls to store, and each lets go of the interpreter's lock. Done
by the eight threads that fetch, they wake each other up for nothing: on 16 cores a cold epoch ran
at 2,500 files/s so, and at 2,700 to 3,100 with one thread that does nothing else.
"""

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

# What waits here is held in memory. Beyond this, whoever fetched it stores it too.
_MOST_WAITING = 256


class Filler:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fill", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        if self._jobs.qsize() < _MOST_WAITING:
            self._jobs.put(job)
        else:
            job()

    def close(self) -> None:
        """Returns when all that waited is stored."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # the reader has its bytes; a bug here costs a copy
                log.exception("a block was not stored")
            finally:
                del job  # and the bytes that it holds
