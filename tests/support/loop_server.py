"""Loops of declared resources that are forked, not started: 10 ms instead of 0.4 s of CPU.

`python -m tests.support.loop_server SOCKET` has imported what a loop needs. For each message it
forks a process, which does what `python -Pm penstock.reconcile.loop LOCK` does.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.paths import open_private

MODULE = "tests.support.loop_server"
_MESSAGE_BYTES = 128 << 10


@contextmanager
def serve_loops() -> Iterator[Callable[[Path, int], None]]:
    """Yield a stand-in for `loop_control._start`. The server ends with this process in any case."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        server = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

        def start(folder: Path, lock: int) -> None:
            (folder / "logs").mkdir(mode=0o700, exist_ok=True)
            message = json.dumps(dict(os.environ)).encode(errors="surrogateescape")
            with open(folder / "logs" / "loop.log", "ab", opener=open_private) as log:
                socket.send_fds(ours, [message], [lock, log.fileno()])
                assert ours.recv(1), "the server of loops has ended"

        yield start
    server.wait()


def is_loop_of(state: Path, pid: int) -> bool:
    """Whether this fork of the server has the lock of that state."""
    links: set[str] = set()
    with suppress(OSError):
        links = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return str(state / "loop.lock") in links


def _serve(requests: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what we fork
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 2)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _run_loop(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(b".")


def _run_loop(environment: dict[str, str], lock: int, log: int) -> None:
    from penstock.reconcile import loop

    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir("/")
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["penstock.reconcile.loop", str(lock)]
        code = loop.main()
    except Exception:  # noqa: BLE001 - whatever it is, its log has it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import penstock.reconcile.loop  # noqa: F401

    _serve(socket.socket(fileno=int(sys.argv[1])))
