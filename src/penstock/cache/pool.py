"""Threads that take jobs from a queue. A third of the cost of a ThreadPoolExecutor, whose futures
nobody here reads: a cold small file is bound by the interpreter's lock (ADR 1)."""

import logging
import queue
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Pool:
    """As many threads as there were jobs at once, but no more than `most`."""

    def __init__(self, most: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._most = most
        self._name = name
        self._threads: list[threading.Thread] = []
        # Who puts a job claims a thread for it. Counting those that wait in `get` instead would
        # count one that has just got a job, and leave the next behind it.
        self._lock = threading.Lock()
        self._idle = 0  # threads that no job has claimed
        self._unclaimed = 0  # jobs that have claimed no thread
        self._replaced = 0  # threads that hang in a job, and for each of which another may start

    def put(self, job: Callable[[], object]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif len(self._threads) >= self._most + self._replaced or not self._start_thread():
                self._unclaimed += 1
        self._jobs.put(job)

    def replace_hung_thread(self) -> None:
        """One of the threads hangs: another does what it would have done next."""
        with self._lock:
            self._replaced += 1
            if self._unclaimed and self._start_thread():
                self._unclaimed -= 1

    def retire_replacement(self) -> None:
        """A thread that was replaced has come back."""
        with self._lock:
            self._replaced = max(0, self._replaced - 1)

    def _start_thread(self) -> bool:
        """False if this machine has no more threads to give, and there are some of ours that get
        to the job in time."""
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return False
        self._threads.append(thread)
        return True

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
            with self._lock:
                if self._unclaimed:
                    self._unclaimed -= 1
                else:
                    self._idle += 1
