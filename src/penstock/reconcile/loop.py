"""The loop that brings what there is to what is wanted. One for each state folder.

It looks at everything, begins what is to be done in threads of its own, and sleeps until someone
wakes it, something it began is done, or something is due. It keeps nothing in memory that it could
not find by looking: killed anywhere, the next one goes on.
"""

import logging
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.environment import take_inherited_keys
from penstock.errors import PenstockError
from penstock.jobs.scheduler import Jobs
from penstock.operations.lifecycle import Operating
from penstock.reconcile.datasets import Datasets
from penstock.reconcile.live_status import Busy, served_mounts
from penstock.reconcile.loop_control import LoopLock
from penstock.reconcile.node_affinity import Node, this_node
from penstock.reconcile.snapshot import Pair
from penstock.reconcile.state import State
from penstock.store.redaction import LOG_FORMAT, RedactingFormatter

log = logging.getLogger(__name__)

# Mounts that are made at once: each is two processes that start, and a listing.
_AT_ONCE = 4
_LOOK_S = 1.0
_BUSY_S = 0.3
# A loop that need not stay tries so often before it leaves the rest to the next who asks.
_ATTEMPTS = 4


class Loop:
    def __init__(self, state: State, place: LoopLock, *, stay: bool) -> None:
        self._state = state
        self._place = place
        self._stay = stay
        self._snapshot = state.snapshot()
        self._datasets = Datasets(state, lambda: state.snapshot(), self._node)
        self._operating = Operating(state)
        self._jobs = Jobs(state)
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="reconcile")
        self._begun: dict[str, Future[None]] = {}

    def run(self) -> None:
        try:
            while True:
                seen = self._state.changes()
                pause_s = self._look()
                if self._place.asked_to_stop and not self._begun:
                    return
                if pause_s is None and not self._stay:
                    self._place.release()
                    if self._state.changes() == seen or not self._place.acquire(wait=False):
                        return
                    continue
                self._place.wait(_LOOK_S if pause_s is None or self._stay else pause_s)
        finally:
            self._threads.shutdown()
            self._place.release()

    def _look(self) -> float | None:
        """Begins what is to be done. How long nothing else will be; None if there is nothing to
        do, nor to wait for."""
        self._bury()
        self._snapshot = self._state.snapshot()
        is_served = served_mounts()
        idle = True
        for pair in self._snapshot.pairs():
            fingerprint = self._snapshot.fingerprint(pair)
            if pair.label in self._begun:
                idle = False
                if any(one and one.deleting for one in (pair.dataset, pair.runtime)):
                    self._datasets.give_up(pair)
            elif not self._datasets.is_settled(pair, fingerprint, is_served):
                idle = False
                if not self._place.asked_to_stop:
                    self._begin(pair)
            elif self._is_to_be_tried_again(pair):
                idle = False
        leaving = self._place.asked_to_stop
        if self._operating.look(self._snapshot, leaving=leaving):
            idle = False
        pause_s = self._jobs.look(self._snapshot, is_served, leaving=leaving)
        return pause_s if idle else min(_LOOK_S, pause_s or _LOOK_S)

    def _is_to_be_tried_again(self, pair: Pair) -> bool:
        note = pair.dataset.note if pair.dataset is not None else {}
        return (
            "retry_at_s" in note
            and note.get("attempts", 0) < _ATTEMPTS
            and (note["retry_at_s"] - time.time() < 60)
        )

    def _begin(self, pair: Pair) -> None:
        begun = self._threads.submit(self._reconcile, pair.namespace, pair.name)
        self._begun[pair.label] = begun

    def _reconcile(self, namespace: str, name: str) -> None:
        # As it is now: there may have been many before it, each with a listing.
        snapshot = self._state.snapshot()
        pair = snapshot.pair(namespace, name)
        try:
            if pair.dataset is not None or pair.runtime is not None:
                self._datasets.reconcile(pair, snapshot.fingerprint(pair))
        except Busy:
            time.sleep(_BUSY_S)
        except PenstockError as error:
            log.warning("%s/%s: %s", namespace, name, error)
            self._datasets.report_trouble(pair, snapshot.fingerprint(pair), error)
            time.sleep(_BUSY_S)  # looked at again at once, but not in a frenzy
        except Exception as error:  # a bug costs this pair, not the loop
            log.exception("%s/%s", namespace, name)
            self._datasets.report_trouble(pair, snapshot.fingerprint(pair), error)
            time.sleep(_LOOK_S)
        finally:
            self._place.wake_self()

    def _bury(self) -> None:
        self._begun = {label: one for label, one in self._begun.items() if not one.done()}

    def _node(self) -> Node:
        return this_node(self._snapshot.labels)


def main() -> int:
    os.environ.update(take_inherited_keys())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("penstock").setLevel(os.environ.get("PENSTOCK_LOG", "INFO").upper())
    state = State()
    place = LoopLock(state.folder)
    place.inherit(int(sys.argv[1]))
    Loop(state, place, stay=False).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
