"""The control socket: one JSON line in, one JSON line out. Only its user can reach it."""

import json
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

log = logging.getLogger(__name__)

Answer = dict[str, Any]
_MOST_REQUEST_BYTES = 256 * 1024
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


def listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _short(path) as address:
            listener.bind(address)
    finally:
        os.umask(before)
    listener.listen(128)  # those who ask while a server is replaced wait here
    return listener


class ControlServer:
    """Answers on a socket that listens already; whoever made that removes it."""

    def __init__(
        self, listener: socket.socket, verbs: Mapping[str, Callable[[Answer], Answer]]
    ) -> None:
        self._socket = listener
        self._verbs = verbs
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rwb") as stream:
            if _uid_of(peer) not in (0, os.geteuid()):
                return  # the folder's mode should have kept them out already
            try:
                request = json.loads(stream.readline(_MOST_REQUEST_BYTES))
                answer = self._verbs[request["verb"]](request)
            except PenstockError as error:
                answer = {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}
            except (ValueError, KeyError, TypeError) as error:
                answer = {"error": f"bad request: {error!r}", "hint": None, "exit_code": 1}
            except Exception as error:  # whoever asks must get an answer
                log.error("control: a bug", exc_info=error)
                answer = {"error": str(error), "hint": "its log says more", "exit_code": 1}
            try:
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()
            except OSError as error:
                log.debug("control: the asker went away: %s", error)


def _uid_of(peer: socket.socket) -> int:
    """Who is at the other end, as the kernel knows it."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1]


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """The same place under a name that fits: a socket's address has only 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class RemoteError(PenstockError):
    """An error that happened in the server, told as it was told there."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer["error"], hint=answer["hint"])
        self.exit_code = answer["exit_code"]


def ask(path: Path, verb: str, *, timeout_s: float = 30, **arguments: Any) -> Answer:
    request = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
    # A server that is killed while it answers is replaced: its successor is asked again, once.
    line = _exchange(path, request, timeout_s) or _exchange(path, request, timeout_s)
    if not line:
        raise PenstockError("the server of this mount went away")
    answer: Answer = json.loads(line)
    if "error" in answer:
        raise RemoteError(answer)
    return answer


def _exchange(path: Path, request: bytes, timeout_s: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout_s)
        try:
            with _short(path) as address:
                peer.connect(address)
            with peer.makefile("rwb") as stream:
                stream.write(request)
                stream.flush()
                return stream.readline()
        except (ConnectionResetError, BrokenPipeError):
            return b""
        except OSError as error:
            raise PenstockError(
                f"the server of this mount does not answer ({error.strerror or error})",
                hint="if it died, `penstock umount` clears the mount away",
            ) from error
