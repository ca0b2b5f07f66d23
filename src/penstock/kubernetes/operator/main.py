"""The operator's process: leader election, caches, workers, and an address for probes and metrics.

Ends on SIGTERM and SIGINT, and when leadership is lost: the next process then begins with fresh
caches.
"""

import http.server
import logging
import os
import resource as os_resource
import signal
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.kubernetes.client import DATASETS, RUNTIMES, Client
from penstock.kubernetes.leader import Election
from penstock.kubernetes.operator.nodes import Nodes
from penstock.kubernetes.operator.provision import Provisioner
from penstock.kubernetes.operator.queue import WorkQueue
from penstock.kubernetes.operator.reconciler import Again, Reconciler
from penstock.kubernetes.operator.servers import Servers
from penstock.kubernetes.operator.view import Task, View
from penstock.kubernetes.operator.writer import Writer
from penstock.kubernetes.server_set import Image
from penstock.kubernetes.watch import wait_for_sync
from penstock.specs.models import MODELS

log = logging.getLogger(__name__)

LEASE: Final = "penstock-operator"
# Requests take most of a worker's time; more workers than these only add to the server's load.
_WORKERS = 4
_SYNC_S = 120.0
_CHECK_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    image: Image
    namespace: str | None = None  # of the lease; by default that of the pod
    kubeconfig: Path | None = None
    idle_s: float = 300.0
    leader_elect: bool = True
    http_port: int | None = 8080  # None: none
    stopping: threading.Event = field(default_factory=threading.Event)


def run(options: Options) -> int:
    """Work until a signal; return the exit code."""

    def stop(_number: int, _frame: object) -> None:
        options.stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    client = Client.from_environment(options.kubeconfig)
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    operator = Operator(client, options, identity)
    probes = None
    if options.http_port is not None:
        probes = _serve_probes(options.http_port, operator)
    try:
        return operator.run()
    finally:
        if probes is not None:
            probes.shutdown()
        client.close()


class Operator:
    def __init__(self, client: Client, options: Options, identity: str) -> None:
        self._client = client
        self._options = options
        self._identity = identity
        self._stopping = options.stopping
        self._lost = threading.Event()
        self._queue: WorkQueue[Task] = WorkQueue()
        writer = Writer(client, identity[:128])
        self.view = View(client, self._queue, writer)
        self._servers = Servers(self.view, self._queue)
        nodes = Nodes(client, self.view, self._queue, idle_s=options.idle_s)
        self._reconciler = Reconciler(
            client,
            self.view,
            writer,
            self._queue,
            nodes,
            self._servers,
            Provisioner(client, self.view, writer),
            options.image,
        )

    def run(self) -> int:
        election = None
        if self._options.leader_elect:
            election = Election(
                self._client,
                namespace=self._options.namespace or self._client.namespace,
                name=LEASE,
                identity=self._identity,
                on_lost=self._on_lost,
            )
            _call_when_set(self._stopping, lambda: _stop_waiting(election))
            if not election.acquire():
                return 0
        try:
            self._work()
        finally:
            if election is not None and not self._lost.is_set():
                election.stop()
        return 1 if self._lost.is_set() else 0

    def _work(self) -> None:
        for cache in self.view.caches:
            cache.start()
        try:
            for kind in (DATASETS.kind, *RUNTIMES):  # now, and not when the first one is bound
                MODELS[kind].model_rebuild()
            wait_for_sync(self.view.caches, _SYNC_S)
            log.info("the caches are filled; %d keys to look at", len(self._queue))
            workers = [
                threading.Thread(target=self._worker, name=f"worker {number}", daemon=True)
                for number in range(_WORKERS)
            ]
            for worker in workers:
                worker.start()
            self._servers.start()
            while not self._stopping.wait(_CHECK_S):
                if not self.alive:
                    raise PenstockError("a thread of the operator has ended; its log says why")
            self._servers.stop()
        finally:
            self._queue.stop()
            for cache in self.view.caches:
                cache.stop()
        for worker in workers:
            worker.join()

    @property
    def alive(self) -> bool:
        """Whether all caches follow the cluster, or wait to become the leader."""
        caches = self.view.caches
        return not any(cache.synced.is_set() and not cache.alive for cache in caches)

    @property
    def synced(self) -> bool:
        """Whether this process leads, and its caches have what the cluster has."""
        return all(cache.synced.is_set() for cache in self.view.caches)

    def metrics(self) -> str:
        usage = os_resource.getrusage(os_resource.RUSAGE_SELF)
        lines = [
            f'penstock_operator_requests_total{{verb="{verb}"}} {count}'
            for verb, count in sorted(self._client.requests.by_verb.items())
        ]
        lines += [
            f"penstock_operator_caches_synced {int(self.synced)}",
            f"penstock_operator_queue_length {len(self._queue)}",
            f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.3f}",
            f"process_resident_memory_bytes {_resident_bytes()}",
        ]
        return "\n".join(lines) + "\n"

    def _on_lost(self) -> None:
        self._lost.set()
        self._stopping.set()

    def _worker(self) -> None:
        while (task := self._queue.take()) is not None:
            try:
                self._reconciler.work_on(task)
            except Again as reason:
                pause_s = self._queue.retry(task)
                log.debug("%s: %s; again in %.1f s", task, reason, pause_s)
            except PenstockError as error:
                pause_s = self._queue.retry(task)
                log.warning("%s: %s; again in %.1f s", " ".join(task), error, pause_s)
            except Exception:  # a bug of ours, which must not end the work on other keys
                pause_s = self._queue.retry(task)
                log.exception("%s: a bug; again in %.1f s", " ".join(task), pause_s)
            else:
                self._queue.forget(task)
            finally:
                self._queue.done(task)


def _call_when_set(event: threading.Event, call: Callable[[], None]) -> None:
    def wait() -> None:
        event.wait()
        call()

    threading.Thread(target=wait, name="stop", daemon=True).start()


def _stop_waiting(election: Election) -> None:
    """End an election that is not won; the leader leaves it when its work has ended."""
    if not election.leading:
        election.stop()


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _serve_probes(port: int, operator: Operator) -> http.server.ThreadingHTTPServer:
    class Probes(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, operator.metrics())
            elif self.path in ("/healthz", "/readyz"):
                self._answer(200 if operator.alive else 503, "ok\n" if operator.alive else "no\n")
            else:
                self._answer(404, "not found\n")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            log.debug(format, *args)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    server = Server(("", port), Probes)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
