"""Threads that take jobs from a queue. A third of the cost of a ThreadPoolExecutor, whose futures
nobody here reads: a cold small file is bound by the interpreter's lock (ADR 1)."""

import logging
import queue
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Pool:
    def __init__(self, threads: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, job: Callable[[], object]) -> None:
        self._jobs.put(job)

    def close(self, within_s: float) -> None:
        """Drops what has not begun, and waits so long for what has."""
        until_s = time.monotonic() + within_s
        try:
            while True:
                self._jobs.get_nowait()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a bug costs one job, not the thread
                log.exception("a job failed")
            finally:
                del job  # a thread that sleeps must not hold on to the last block it fetched
