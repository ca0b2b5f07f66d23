"""The control socket of a mount: one JSON line as request, one as answer. Only its user has access.

Some verbs begin a conversation: descriptors come with the request, and the connection stays open
for as long as both sides want.
"""

import json
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from penstock.errors import PenstockError

log = logging.getLogger(__name__)

Answer = dict[str, Any]
_MOST_REQUEST_BYTES = 4 << 20  # an upgrade sends all settings, of hundreds of sources
_MOST_DESCRIPTORS = 4
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`. The path appears only once it listens."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with short_path(fresh) as address:
            listener.bind(address)
    finally:
        os.umask(before)
    listener.listen(128)  # clients wait here while a server is replaced
    fresh.replace(path)
    return listener


class Connection:
    """One end of a connection: JSON lines in both directions."""

    def __init__(self, end: socket.socket, most_bytes: int | None = None) -> None:
        """`most_bytes` limits a line, where the other side is not trusted."""
        self._socket = end
        self._most_bytes = most_bytes
        self._buffer = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Answer, descriptors: Sequence[int] = ()) -> None:
        text = json.dumps(message).encode() + b"\n"
        if descriptors:
            sent = socket.send_fds(self._socket, [text], descriptors)
            text = text[sent:]
        if text:  # sending nothing would fail, too, once the other side has answered and closed
            self._socket.sendall(text)

    def receive(self) -> tuple[Answer, list[int]] | None:
        """Return the next message with its descriptors; None once the other side is gone. Raises
        PenstockError for a malformed line."""
        descriptors: list[int] = []
        while b"\n" not in self._buffer:
            if self._most_bytes is not None and len(self._buffer) > self._most_bytes:
                _close_all(descriptors)
                raise PenstockError(f"a line of more than {self._most_bytes:,} bytes")
            try:
                data, received, _, _ = socket.recv_fds(
                    self._socket, 65536, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionError:
                data, received = b"", []
            descriptors += received
            if not data:
                _close_all(descriptors)
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message: Any = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            _close_all(descriptors)
            raise PenstockError(f"malformed message: {error}") from error
        return cast(Answer, message), descriptors

    def is_over(self) -> bool:
        """Return whether the other side is gone. Never waits."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def wait_for_end(self) -> None:
        """Return once the other side is gone; ignore what it still sends."""
        try:
            while self._socket.recv(4096):
                pass
        except ConnectionError:
            return

    def close(self) -> None:
        self._socket.close()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# Answers by itself, for as long as it likes. Once it returns, it owns the connection and the
# descriptors; if it raises, they are closed and the client gets the error.
Conversation = Callable[[Answer, Connection, list[int]], None]


class ControlServer:
    """Answers requests on a socket that listens already; its creator removes the path."""

    def __init__(
        self,
        listener: socket.socket,
        verbs: Mapping[str, Callable[[Answer], Answer]],
        conversations: Mapping[str, Conversation] | None = None,
    ) -> None:
        self._socket = listener
        self._verbs = verbs
        self._conversations = conversations or {}
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
        line = Connection(peer, _MOST_REQUEST_BYTES)
        if _uid_of(peer) not in (0, os.geteuid()):
            line.close()
            return  # the mode of the folder should have kept this client out already
        descriptors: list[int] = []
        try:
            received = line.receive()
            if received is None:
                line.close()
                return
            request, descriptors = received
            if (converse := self._conversations.get(request["verb"])) is not None:
                converse(request, line, descriptors)
                return
            answer = self._verbs[request["verb"]](request)
        except PenstockError as error:
            answer = as_answer(error)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            answer = {"error": f"bad request: {error!r}", "hint": None, "exit_code": 1}
        except OSError as error:  # of a descriptor that came with it, or of a local disk
            log.warning("control: %s", error)
            answer = {"error": str(error), "hint": "its log says more", "exit_code": 1}
        except Exception as error:  # the client must get an answer
            log.error("control: a bug", exc_info=error)
            answer = {"error": str(error), "hint": "its log says more", "exit_code": 1}
        try:
            line.send(answer)
        except OSError as error:
            log.debug("control: the client is gone: %s", error)
        line.close()
        _close_all(descriptors)


def as_answer(error: PenstockError) -> Answer:
    return {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}


def _uid_of(peer: socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1]


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a short name of the same place: the address of a socket has only 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class RemoteError(PenstockError):
    """An error of the server, with its message, hint and exit code."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer["error"]), hint=answer.get("hint"))
        self.exit_code = answer.get("exit_code", 1)


def ask(path: Path, verb: str, *, timeout_s: float = 30, **arguments: Any) -> Answer:
    # If the server is killed while it answers, ask its successor once.
    for _ in range(2):
        line = connect(path, timeout_s)
        try:
            if (answer := exchange(line, {"verb": verb, **arguments})) is not None:
                return answer
        finally:
            line.close()
    raise PenstockError("the server of this mount went away")


def connect(path: Path, timeout_s: float = 30) -> Connection:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(timeout_s)
    try:
        with short_path(path) as address:
            peer.connect(address)
    except OSError as error:
        peer.close()
        raise _does_not_answer(error) from error
    return Connection(peer)


def exchange(line: Connection, request: Answer, descriptors: Sequence[int] = ()) -> Answer | None:
    """Return the answer; None if the server ended before it gave one."""
    try:
        line.send(request, descriptors)
        received = line.receive()
    except (ConnectionResetError, BrokenPipeError):
        return None
    except OSError as error:
        raise _does_not_answer(error) from error
    if received is None:
        return None
    if "error" in received[0]:
        raise RemoteError(received[0])
    return received[0]


def _does_not_answer(error: OSError) -> PenstockError:
    return PenstockError(
        f"the server of this mount does not answer ({error.strerror or error})",
        hint="if it died, `penstock umount` clears the mount away",
    )
