"""Ask server pods for their status: counts of files and bytes, and why one cannot serve.

A pod that does not answer has no status. Threads: one asks when it is time, a few wait for answers.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import urllib3
from urllib3.exceptions import HTTPError

from penstock.errors import PenstockError
from penstock.kubernetes.names import HTTP_PORT, ServedKey
from penstock.kubernetes.operator.objects import Pod
from penstock.kubernetes.operator.queue import WorkQueue
from penstock.kubernetes.operator.view import Task, View
from penstock.reconcile.conditions import amount, share

log = logging.getLogger(__name__)

Json = dict[str, Any]

EVERY_S: Final = 10.0
_STARTING_S: Final = 1.0  # until a server of a new pod has listed its bucket
_TIMEOUT = urllib3.Timeout(connect=2.0, read=3.0)
# A server that only waits, for another one to end or for its node, says so from the start.
_WAITING_S: Final = 30.0
_ASKING = 8
_MOST_PER_SECOND = 100
_LARGEST_ANSWER = 1 << 20
CALCULATING: Final = "[Calculating]"


@dataclass(frozen=True, slots=True)
class Failure:
    message: str
    hint: str | None
    exit_code: int


@dataclass(frozen=True, slots=True)
class Report:
    """What one server said."""

    ready: bool
    error: Failure | None
    restart_for: tuple[str, ...]
    brief: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What all servers of a data set said together."""

    amounts: Json  # for the Dataset's status; empty if no server has listed the bucket
    error: Failure | None
    restart_for: list[str] = field(default_factory=list[str])
    serving: int = 0  # servers that answer and serve


def read_report(text: bytes) -> Report | None:
    """Return the answer of a server; None if it is none."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    answer = cast("Json", found)
    error = cast("Json | None", answer.get("error"))
    brief = cast("Json | None", answer.get("brief"))
    failure = None
    if error:
        failure = Failure(
            str(error.get("error") or ""), error.get("hint"), int(error.get("exit_code") or 1)
        )
    restart_for = tuple(str(one) for one in answer.get("restart_for") or ())
    return Report(bool(answer.get("ready")), failure, restart_for, brief)


def summarize(reports: list[Report]) -> Summary:
    """Sum over nodes: each caches what its own pods read."""
    briefs = [one.brief for one in reports if one.brief is not None]
    errors = [one.error for one in reports if one.error is not None]
    restart_for = sorted({name for one in reports for name in one.restart_for})
    serving = sum(one.ready for one in reports)
    if not briefs:
        return Summary({}, errors[0] if errors else None, restart_for, serving)
    total = max(int(one["bytes"]) for one in briefs)
    files = max(int(one["files"]) for one in briefs)
    cached = sum(int(one["cached_bytes"]) for one in briefs)
    hits = sum(sum(cast("Mapping[str, int]", one["hit_bytes"]).values()) for one in briefs)
    misses = sum(int(one["store_bytes"]) for one in briefs)
    states = {
        "cacheCapacity": amount(sum(int(one["capacity_bytes"]) for one in briefs)),
        "cached": amount(cached),
        "cachedPercentage": share(cached, total * len(briefs)),
    }
    if hits + misses:
        states["cacheHitRatio"] = states["localHitRatio"] = f"{100 * hits / (hits + misses):.1f}%"
    amounts = {"ufsTotal": amount(total), "fileNum": str(files), "cacheStates": states}
    return Summary(amounts, errors[0] if errors else None, restart_for, serving)


def before_listing(status: Json, capacity_bytes: int | None) -> Json:
    """Return the amounts of a data set that no server has listed yet; none if it has been."""
    if status.get("cacheStates"):
        return {}
    states = {
        "cacheCapacity": "" if capacity_bytes is None else amount(capacity_bytes),
        "cached": amount(0),
        "cachedPercentage": "0.0%",
    }
    listed = {name: status.get(name) or CALCULATING for name in ("ufsTotal", "fileNum")}
    return {**listed, "cacheStates": states}


class Servers:
    def __init__(
        self,
        view: View,
        queue: WorkQueue[Task],
        *,
        every_s: float = EVERY_S,
        port: int = HTTP_PORT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._queue = queue
        self._every_s = every_s
        self._port = port
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: dict[ServedKey, dict[str, Report]] = {}  # by the pod's uid
        self._next_s: dict[str, float] = {}  # by the pod's uid
        self._told_s: dict[ServedKey, float] = {}  # when its counts may change again
        self._failing_since_s: dict[str, float] = {}  # by the pod's uid
        self._stopping = threading.Event()
        self._http = urllib3.PoolManager(num_pools=64, maxsize=1, retries=False)
        self._pool = ThreadPoolExecutor(_ASKING, thread_name_prefix="ask")
        self._thread = threading.Thread(target=self._run, name="servers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)

    def summary(self, key: ServedKey) -> Summary:
        """Return what the servers of a data set last said."""
        pods = {pod.uid for pod in self._view.servers_of(key) if not pod.deleting}
        with self._lock:
            reports = [one for uid, one in self._reports.get(key, {}).items() if uid in pods]
        return summarize(reports)

    def _run(self) -> None:
        while not self._stopping.wait(0.5):
            try:
                self._ask_due()
            except RuntimeError:  # the pool is shut down
                return

    def _ask_due(self) -> None:
        now_s = self._clock()
        known: set[str] = set()
        asked = 0
        keys = self._view.served_keys()
        for key in keys:
            for pod in self._view.servers_of(key):
                known.add(pod.uid)
                if asked >= _MOST_PER_SECOND / 2 or not _can_answer(pod):
                    continue
                if self._next_s.get(pod.uid, 0.0) <= now_s:
                    self._next_s[pod.uid] = now_s + self._every_s
                    self._pool.submit(self._ask, key, pod)
                    asked += 1
        for uid in self._next_s.keys() - known:
            del self._next_s[uid]
            self._failing_since_s.pop(uid, None)
        with self._lock:
            for key in self._told_s.keys() - set(keys):
                del self._told_s[key]
            for key, reports in list(self._reports.items()):
                for uid in reports.keys() - known:
                    del reports[uid]
                if not reports:
                    del self._reports[key]

    def _ask(self, key: ServedKey, pod: Pod) -> None:
        before = self.summary(key)
        report = self._lasting(pod.uid, self._fetch(pod))
        with self._lock:
            if report is None:
                self._reports.get(key, {}).pop(pod.uid, None)
            else:
                self._reports.setdefault(key, {})[pod.uid] = report
        if report is None or report.brief is None:
            self._next_s[pod.uid] = self._clock() + _STARTING_S
        if (after := self.summary(key)) != before:
            counts_only = replace(after, amounts={}) == replace(before, amounts={})
            delay_s = self._until_next_count(key) if counts_only and before.amounts else 0.0
            self._queue.add(Task("dataset", *key), delay_s=delay_s)

    def _until_next_count(self, key: ServedKey) -> float:
        """Return a delay that lets a data set of many servers change its counts only so often."""
        now_s = self._clock()
        with self._lock:
            due_s = max(now_s, self._told_s.get(key, 0.0))
            self._told_s[key] = max(self._told_s.get(key, 0.0), now_s + self._every_s)
        return due_s - now_s

    def _lasting(self, uid: str, report: Report | None) -> Report | None:
        """Leave out an error that is no user's or store's until it has lasted."""
        if report is None or report.error is None:
            self._failing_since_s.pop(uid, None)
            return report
        since_s = self._failing_since_s.setdefault(uid, self._clock())
        is_new = self._clock() - since_s < _WAITING_S
        is_ours = report.error.exit_code == PenstockError.exit_code
        return replace(report, error=None) if is_ours and is_new else report

    def _fetch(self, pod: Pod) -> Report | None:
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        try:
            answer = self._http.request(
                "GET",
                f"http://{host}:{self._port}/status",
                timeout=_TIMEOUT,
                redirect=False,
                preload_content=False,
            )
            with answer:
                text = answer.read(_LARGEST_ANSWER)
        except (HTTPError, OSError) as error:
            log.debug("server %s/%s does not answer: %s", pod.namespace, pod.name, error)
            return None
        return read_report(text) if answer.status == 200 else None


def _can_answer(pod: Pod) -> bool:
    return bool(pod.address) and pod.phase == "Running" and not pod.deleting
