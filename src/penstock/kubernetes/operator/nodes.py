"""Labels of nodes: a server of a data set runs where a pod uses its claim, and a while longer.

The labels are Fluid's, so that node selectors and affinities written for it work.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from penstock.errors import NotFound
from penstock.kubernetes import names
from penstock.kubernetes.client import NODES, Client
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.operator.queue import WorkQueue
from penstock.kubernetes.operator.view import Task, View

log = logging.getLogger(__name__)

DATASET_COUNT: Final = "fluid.io/dataset-num"
# How long a node's labels may be older in the cache than our last patch.
_BEHIND_S = 2.0


class Nodes:
    """`idle_s`: how long a server stays after the last pod that used it."""

    def __init__(
        self,
        client: Client,
        view: View,
        queue: WorkQueue[Task],
        *,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._view = view
        self._queue = queue
        self._idle_s = idle_s
        self._clock = clock
        self._lock = threading.Lock()
        self._idle_since: dict[tuple[str, ServedKey], float] = {}
        self._patched: dict[str, tuple[float, dict[str, str | None]]] = {}

    def reconcile(self, name: str) -> None:
        node = self._view.node(name)
        if node is None:
            self._forget(name)
            return
        used = self._view.served_on(name)
        idle, next_s = self._still_idle(name, node.labels, used)
        wanted = labels_for((key, self._view.runtime_types(key)) for key in {*used, *idle})
        patch: dict[str, str | None] = {
            label: value for label, value in wanted.items() if node.labels.get(label) != value
        }
        patch |= dict.fromkeys(label for label in node.labels if label not in wanted)
        if next_s is not None:
            self._queue.add(Task("node", "", name), delay_s=next_s)
        if not patch:
            return
        with self._lock:
            patched_s, before = self._patched.get(name, (0.0, {}))
            if before == patch and self._clock() - patched_s < _BEHIND_S:
                self._queue.add(Task("node", "", name), delay_s=_BEHIND_S)
                return
            self._patched[name] = self._clock(), patch
        try:
            self._client.patch(NODES, None, name, {"metadata": {"labels": patch}})
        except NotFound:
            self._forget(name)

    def _still_idle(
        self, node: str, labels: Iterable[str], used: set[ServedKey]
    ) -> tuple[set[ServedKey], float | None]:
        """Return the data sets whose servers stay without pods, and when to look again."""
        now_s, next_s = self._clock(), None
        found: set[ServedKey] = set()
        with self._lock:
            for key in used:
                self._idle_since.pop((node, key), None)
            for label in labels:
                key = self._view.key_of_label(label)
                if key is None or key in used:
                    continue
                dataset = self._view.dataset(key)
                since_s = self._idle_since.setdefault((node, key), now_s)
                left_s = since_s + self._idle_s - now_s
                if dataset is None or dataset.deleting is not None or left_s <= 0:
                    self._idle_since.pop((node, key), None)
                    continue
                found.add(key)
                next_s = left_s if next_s is None else min(next_s, left_s)
        return found, next_s

    def _forget(self, name: str) -> None:
        with self._lock:
            self._patched.pop(name, None)
            for place in [place for place in self._idle_since if place[0] == name]:
                del self._idle_since[place]


def labels_for(served: Iterable[tuple[ServedKey, Iterable[str]]]) -> dict[str, str]:
    """Return the labels of a node for data sets, each with the types of its runtimes."""
    labels: dict[str, str] = {}
    count = 0
    for key, types in served:
        count += 1
        for prefix in ("f", "s", *(f"s-{one}" for one in types)):
            labels[names.node_label(prefix, key)] = "true"
    if count:
        labels[DATASET_COUNT] = str(count)
    return labels
