"""The loop that brings this machine to its declared state. One for each state folder.

It looks at everything, starts the work that is due in threads of its own, and sleeps until a client
wakes it, some work is done, or something is due. It keeps nothing in memory that it could not find
by looking, so after a kill the next loop continues.

`python -Pm penstock.reconcile.loop LOCK` runs until everything is done; `penstock serve` runs one
that stays.
"""

import logging
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.environment import take_inherited_keys
from penstock.errors import PenstockError
from penstock.jobs.scheduler import Jobs
from penstock.operations.lifecycle import OperationRunner
from penstock.reconcile.dataset_phases import is_settled, retries_soon
from penstock.reconcile.datasets import Datasets
from penstock.reconcile.live_status import Busy, served_mounts
from penstock.reconcile.loop_control import LoopLock
from penstock.reconcile.node_affinity import Node, this_node
from penstock.reconcile.resource_process import log_to_stderr
from penstock.reconcile.state import State

log = logging.getLogger(__name__)

# Mounts that are made at once: each starts two processes, and lists a store.
_MOST_THREADS = 4
_LOOK_S = 1.0
_BUSY_S = 0.3
# A loop that need not stay retries a pair this often, then leaves it to the next loop.
_ATTEMPTS = 4


class Loop:
    def __init__(self, state: State, lock: LoopLock, *, stay: bool) -> None:
        self._state = state
        self._lock = lock
        self._stay = stay
        self._snapshot = state.snapshot()
        self._datasets = Datasets(state, state.snapshot, self._node)
        self._operations = OperationRunner(state)
        self._jobs = Jobs(state)
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="reconcile")
        self._running: dict[str, Future[None]] = {}  # by the label of the pair

    def run(self) -> None:
        try:
            while True:
                seen = self._state.changes()
                pause_s = self._look()
                if self._lock.asked_to_stop and not self._running:
                    return
                if pause_s is None and not self._stay:
                    self._lock.release()
                    if self._state.changes() == seen or not self._lock.acquire(wait=False):
                        return
                    continue
                self._lock.wait(_LOOK_S if pause_s is None or self._stay else pause_s)
        finally:
            self._threads.shutdown()
            self._lock.release()

    def _look(self) -> float | None:
        """Start the work that is due. Return the seconds until the next look.

        None: there is nothing to do, and nothing to wait for.
        """
        self._running = {label: one for label, one in self._running.items() if not one.done()}
        self._snapshot = self._state.snapshot()
        is_served = served_mounts()
        now_s = time.time()
        stopping = self._lock.asked_to_stop
        idle = True
        for pair in self._snapshot.pairs():
            fingerprint = self._snapshot.fingerprint(pair)
            if pair.label in self._running:
                idle = False
                if any(one and one.deleting for one in (pair.dataset, pair.runtime)):
                    self._datasets.cancel_start(pair)
            elif not is_settled(pair, fingerprint, is_served, now_s):
                idle = False
                if not stopping:
                    future = self._threads.submit(self._reconcile, pair.namespace, pair.name)
                    self._running[pair.label] = future
            elif retries_soon(pair, now_s, attempts=_ATTEMPTS):
                idle = False
        if self._operations.step(self._snapshot, leaving=stopping):
            idle = False
        pause_s = self._jobs.look(self._snapshot, is_served, leaving=stopping)
        return pause_s if idle else min(_LOOK_S, pause_s or _LOOK_S)

    def _reconcile(self, namespace: str, name: str) -> None:
        # A fresh snapshot: many pairs may have been before this one, each with a listing.
        snapshot = self._state.snapshot()
        pair = snapshot.pair(namespace, name)
        try:
            if pair.dataset is not None or pair.runtime is not None:
                self._datasets.reconcile(pair, snapshot.fingerprint(pair))
        except Busy:
            time.sleep(_BUSY_S)
        except PenstockError as error:
            log.warning("%s: %s", pair.label, error)
            self._datasets.report_error(pair, snapshot.fingerprint(pair), error)
            time.sleep(_BUSY_S)  # the next look comes at once; this keeps it from spinning
        except Exception as error:  # a bug costs this pair, not the loop
            log.exception("%s", pair.label)
            self._datasets.report_error(pair, snapshot.fingerprint(pair), error)
            time.sleep(_LOOK_S)
        finally:
            self._lock.wake_self()

    def _node(self) -> Node:
        return this_node(self._snapshot.labels)


def main() -> int:
    os.environ.update(take_inherited_keys())
    log_to_stderr()
    state = State()
    lock = LoopLock(state.folder)
    lock.inherit(int(sys.argv[1]))
    Loop(state, lock, stay=False).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
