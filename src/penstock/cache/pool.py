"""A thread pool without results.

It costs a third of a ThreadPoolExecutor, whose futures nobody here reads: a cold small file is
bound by the interpreter's lock (ADR 1).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Pool:
    """Starts a thread when a job finds none idle, up to `most` threads."""

    def __init__(self, most: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._most = most
        self._name = name
        self._threads: list[threading.Thread] = []
        # `submit` claims a thread for each job. Counting the threads that wait in `get` instead
        # would count one that has just taken a job, and leave the next job behind that one.
        self._lock = threading.Lock()
        self._idle = 0  # threads that no job has claimed
        self._unclaimed = 0  # jobs that have claimed no thread
        self._replaced = 0  # threads that hang in a job; for each, one more may start

    def submit(self, job: Callable[[], object]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif len(self._threads) >= self._most + self._replaced or not self._start_thread():
                self._unclaimed += 1
        self._jobs.put(job)

    def replace_hung_thread(self) -> None:
        """Allow one more thread, since one of ours hangs in its job."""
        with self._lock:
            self._replaced += 1
            if self._unclaimed and self._start_thread():
                self._unclaimed -= 1

    def retire_replacement(self) -> None:
        """Allow one thread less: a thread that was replaced has come back."""
        with self._lock:
            self._replaced = max(0, self._replaced - 1)

    def _start_thread(self) -> bool:
        """False if the machine has no more threads to give, and ours will get to the job."""
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
        """Drop jobs that have not begun, and wait up to `within_s` for those that have."""
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
                del job  # an idle thread must not keep the last block that it fetched alive
            with self._lock:
                if self._unclaimed:
                    self._unclaimed -= 1
                else:
                    self._idle += 1
