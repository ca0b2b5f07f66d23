"""The first process of a server pod: starts supervisors, and answers over HTTP.

    /readyz   200 while readers are answered, else 503
    /status   what the operator writes into the status of the Dataset (`_Status.describe`)
    /metrics  of the mount, for Prometheus

When a supervisor ends, it kills what is left, so that two servers never read from one /dev/fuse,
and starts the next one. Every 10 s it looks whether the mounted Secrets have changed, and has a new
server take over if so.
"""

import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import control_socket, find_note, supervisor_socket
from penstock.environment import child_environment
from penstock.errors import PenstockError
from penstock.kubernetes import names
from penstock.store.redaction import redact, set_up_logging

log = logging.getLogger(__name__)

Json = dict[str, Any]

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_LOOK_EVERY_S = 10.0
_BRIEF_WITHIN_S = 2.0
_REQUEST_WITHIN_S = 10.0
_PLAN_WITHIN_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36
# What passes from this pod's environment to processes that have no business with the manifests.
_OURS = (names.SERVED_VARIABLE,)


def run() -> None:
    """Serve until SIGTERM."""
    set_up_logging(prefix="pod: ")
    os.environ["PENSTOCK_STATE_DIR"] = str(names.STATE_DIR)
    # Threads inherit it; the supervisor undoes it.
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    status = _Status()
    _serve_http(status)
    pod = _Pod(status)
    threading.Thread(target=pod.watch_secrets, name="secrets", daemon=True).start()
    pod.run()


class _Status:
    """What is known of the server. Threading: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._error: Json | None = None
        self._mountpoint: Path | None = None
        self._restart_for: list[str] = []

    def note(self, message: Json) -> None:
        with self._lock:
            if "ready" in message:
                self._ready, self._error = True, None
            elif "restart_for" in message:
                self._restart_for, self._error = message["restart_for"], None  # it is attached
            elif "error" in message:
                self._ready, self._error = False, message
            elif "waiting" in message:
                waits = f"it waits for {message['waiting']}"
                self._error = {"error": waits, "hint": None, "exit_code": 1}

    def warn(self, error: Json | None) -> None:
        """Show an error beside a server that goes on."""
        with self._lock:
            self._error = error

    def start(self, mountpoint: Path) -> None:
        with self._lock:
            self._mountpoint = mountpoint

    def end(self) -> None:
        with self._lock:
            self._ready = False

    @property
    def ready(self) -> bool:
        with self._lock:
            return self._ready

    def describe(self) -> Json:
        with self._lock:
            ready, error, mountpoint = self._ready, self._error, self._mountpoint
            restart_for = self._restart_for
        brief = None
        if ready and mountpoint is not None:
            try:
                brief = ask(control_socket(mountpoint), "brief", timeout_s=_BRIEF_WITHIN_S)
            except PenstockError as problem:  # a server is being replaced
                log.debug("no counts: %s", problem)
        return {"ready": ready, "error": error, "restart_for": restart_for, "brief": brief}

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type. Raises PenstockError."""
        from penstock.daemon.exposition import exposition, read_metrics  # 9 MB, if it is asked

        with self._lock:
            mountpoint = self._mountpoint
        if mountpoint is None:
            raise PenstockError("nothing is mounted yet")
        return exposition([read_metrics(find_note(mountpoint))], accept)


class _Pod:
    def __init__(self, status: _Status) -> None:
        self._status = status
        self._launch: Json | None = None
        self._failures = 0

    def run(self) -> None:
        while True:
            answer = _plan()
            started_s = time.monotonic()
            if "error" in answer:
                self._note_error(answer)
            else:
                self._launch = answer
                self._status.start(Path(answer["settings"]["mountpoint"]))
                pid, reader = _start_supervisor(answer)
                thread = threading.Thread(target=self._read_report, args=(reader,), daemon=True)
                thread.start()
                if _wait_for_end(pid):
                    return
                thread.join()
            self._status.end()
            _kill_the_rest()
            if time.monotonic() - started_s > _LONGEST_WAIT_S:
                self._failures = 0
            wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            if signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, wait_s) is not None:
                return

    def _read_report(self, reader: int) -> None:
        with os.fdopen(reader) as lines:
            for line in lines:
                message: Json = json.loads(line)
                if "error" in message:
                    self._note_error(message)
                    continue
                self._status.note(message)
                for text in message.get("ready", ()):
                    log.info("%s", text)
                if "waiting" in message:
                    log.info("waiting for %s", message["waiting"])

    def _note_error(self, answer: Json) -> None:
        answer["error"] = redact(answer["error"])
        hint = f" (hint: {answer['hint']})" if answer.get("hint") else ""
        log.error("%s%s", answer["error"], hint)
        self._status.note(answer)

    def watch_secrets(self) -> None:
        """Have a new server take over when the values of mounted Secrets have changed."""
        seen = _versions()
        while True:
            time.sleep(_LOOK_EVERY_S)
            versions, launch = _versions(), self._launch
            if versions == seen or launch is None or not self._status.ready:
                continue
            fresh = _plan()
            if "error" in fresh:  # tried again: the server in use goes on with what it has
                self._warn(fresh)
            elif fresh["settings"] == launch["settings"] or self._change(fresh):
                self._status.warn(None)
                seen = versions

    def _warn(self, answer: Json) -> None:
        answer["error"] = redact(answer["error"])
        log.error("the changed Secrets: %s", answer["error"])
        self._status.warn(answer)

    def _change(self, fresh: Json) -> bool:
        mountpoint = Path(fresh["settings"]["mountpoint"])
        request: Json = {"settings": fresh["settings"], "python": sys.executable, "environment": {}}
        try:
            ask(supervisor_socket(mountpoint), "upgrade", timeout_s=_PLAN_WITHIN_S, **request)
        except PenstockError as error:
            self._warn({"error": str(error), "hint": error.hint, "exit_code": 1})
            return False
        self._launch = fresh
        log.info("the Secrets have changed: a new server uses them")
        return True


def _versions() -> list[tuple[str, int]]:
    """Return what changes when a mounted Secret does: the kubelet replaces a link."""
    folders = Path(names.SECRETS_DIR).glob("*/..data")
    return sorted((str(folder), folder.lstat().st_mtime_ns) for folder in folders)


def _plan() -> Json:
    """Return what `settings` wrote."""
    try:
        done = subprocess.run(
            _module("settings"), capture_output=True, timeout=_PLAN_WITHIN_S, check=True, text=True
        )
        return json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        why = f"the settings could not be made: {error.stderr.strip()[-2000:]}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = f"the settings could not be made: {error}"
    return {"error": why, "hint": None, "exit_code": 1}


def _start_supervisor(launch: Json) -> tuple[int, int]:
    """Return the process, and the descriptor from which its report can be read."""
    settings = os.memfd_create("penstock-settings", 0)  # 0: not closed by exec
    os.write(settings, json.dumps(launch).encode())
    os.lseek(settings, 0, os.SEEK_SET)
    reader, writer = os.pipe()
    wanted = {name: value for name, value in os.environ.items() if name not in _OURS}
    with child_environment(wanted) as (environment, keys):
        child = subprocess.Popen(
            [*_module("supervise"), str(settings), str(writer)],
            env=environment,
            pass_fds=(settings, writer, keys),
            stdin=subprocess.DEVNULL,
        )
    os.close(settings)
    os.close(writer)
    return child.pid, reader


def _module(name: str) -> list[str]:
    # -P: do not import a queue.py from the working directory.
    return [sys.executable, "-Pm", f"{__package__}.{name}"]


def _wait_for_end(supervisor: int) -> bool:
    """Reap processes until the supervisor ends. Return whether it was asked to end."""
    asked = False
    while True:
        number = signal.sigwait({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            asked = True
            os.kill(supervisor, signal.SIGTERM)
        if _reap(supervisor):
            return asked


def _reap(supervisor: int) -> bool:
    """Reap what has ended; return whether the supervisor has."""
    found = False
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True  # the supervisor was our child: it is gone
        if pid == 0:
            return found
        found = found or pid == supervisor


def _adopt_orphans() -> None:
    """Have what supervisors leave behind become our children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _kill_the_rest() -> None:
    """Kill all of our processes: a server goes on serving without its supervisor."""
    children_file = Path(f"/proc/self/task/{os.getpid()}/children")  # of the main thread, this one
    while children := children_file.read_text().split():
        for child in children:
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), 0)  # its own children are ours from here on


def _serve_http(status: _Status) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/status":
                self._answer(200, json.dumps(status.describe()).encode(), "application/json")
            elif self.path == "/metrics":
                self._answer_metrics()
            elif self.path == "/readyz":
                self._answer(200 if status.ready else 503, b"", "text/plain")
            else:
                self._answer(404, b"", "text/plain")

        def _answer_metrics(self) -> None:
            try:
                body, kind = status.metrics(self.headers.get("Accept", ""))
            except PenstockError as error:  # nothing is mounted yet
                self._answer(503, f"{error}\n".encode(), "text/plain; charset=utf-8")
            else:
                self._answer(200, body, kind)

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name there)
            """Log nothing: probes come every few seconds."""

        timeout = _REQUEST_WITHIN_S

    class DualStackServer(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        daemon_threads = True

        def server_bind(self) -> None:
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

    server = DualStackServer(("", names.HTTP_PORT), Handler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()


if __name__ == "__main__":
    run()
