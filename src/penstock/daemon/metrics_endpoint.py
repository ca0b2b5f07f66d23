"""The process that answers at `--metrics`, started by the supervisor:

    python -m penstock.daemon.metrics_endpoint MOUNTPOINT DESCRIPTOR

The descriptor is a socket that listens already and that the supervisor keeps, so a scrape waits
while this process or the server is replaced. It is a process of its own because it reads what
strangers send: it has no keys, no store and no descriptor of the mount. It ends with its
supervisor, whose end closes its standard input.

Threading: one thread for each connection, a few at a time.
"""

import logging
import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

from penstock import procfs
from penstock.daemon.exposition import ANSWERS_WITHIN_S, exposition, read_metrics
from penstock.daemon.mount_registry import find_note
from penstock.errors import PenstockError
from penstock.store.redaction import set_up_logging

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 16
# A client that sends nothing must not keep others out.
_SENDS_WITHIN_S = 5.0
# Prometheus says in it how long it waits.
_TIMEOUT_HEADER = "X-Prometheus-Scrape-Timeout-Seconds"
_SHARE_OF_TIMEOUT, _LEAST_S = 0.7, 0.1
_INDEX = b"Metrics of a mount of Penstock are at /metrics.\n"


class _Handler(BaseHTTPRequestHandler):
    timeout = _SENDS_WITHIN_S
    server_version = "penstock"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self._answer(200, _INDEX, "text/plain; charset=utf-8")
        elif path != "/metrics":
            self._answer(404, b"not found\n", "text/plain; charset=utf-8")
        else:
            self._answer_metrics()

    def _answer_metrics(self) -> None:
        try:
            note = find_note(cast(_Server, self.server).mountpoint)
            found = read_metrics(note, self._answers_within_s())
        except PenstockError as error:
            self._answer(503, f"{error}\n".encode(), "text/plain; charset=utf-8")
            return
        self._answer(200, *exposition([found], self.headers.get("Accept", "")))

    def _answers_within_s(self) -> float:
        """Leave the client some time to hear that no server answers."""
        try:
            client_waits_s = float(self.headers[_TIMEOUT_HEADER] or "")
        except ValueError:
            return ANSWERS_WITHIN_S
        return min(ANSWERS_WITHIN_S, max(_LEAST_S, _SHARE_OF_TIMEOUT * client_waits_s))

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name there)
        log.debug(format, *args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, mountpoint: Path) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.mountpoint = mountpoint
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        self._places.acquire()  # others wait in the backlog
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        log.debug("a scrape failed", exc_info=True)


def main() -> None:
    mountpoint, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    set_up_logging(prefix="metrics: ")
    if procfs.oom_score() < 0:
        procfs.set_oom_score(0)  # the supervisor's own is far lower, and inherited
    server = _Server(socket.socket(fileno=descriptor), mountpoint)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    while os.read(0, 4096):
        pass
    os._exit(0)  # the supervisor is gone


if __name__ == "__main__":
    main()
