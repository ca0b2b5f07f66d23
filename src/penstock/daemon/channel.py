"""Messages between supervisor, server and workers: small JSON objects, and descriptors.

The socket keeps message boundaries: a message arrives whole or not at all, also when its sender is
killed. These go between a supervisor and its server; those of workers are listed in worker.py.

    server to supervisor                       supervisor to server
    progress   objects and bytes listed        start     settings, and whether a mount is there
    prepared   all but the mount is ready      go        serve: kept descriptors, remembered values
    keep       a descriptor that must          flush     write the cache's index: a new server is
               outlive the server                        about to replace this one
    drop       one that need not any more
    remember   values for the next server
    ready      the lines to show to the user
    pulse      the server is well
    flushed    done
    leave      the server was asked to end the mount
    unmounted  the mount is over
    error      why the server ends
"""

import array
import json
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any, cast

log = logging.getLogger(__name__)

Message = dict[str, Any]

_MOST_BYTES = 128 * 1024
# The settings of a mount of hundreds of sources are longer than a message may be.
_LONG_BYTES = 64 * 1024
_MOST_DESCRIPTORS = 253  # the kernel's limit (SCM_MAX_FD)


class Channel:
    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # Reused: to allocate room for the longest message costs more than most messages do.
        self._buffer = bytearray()

    @classmethod
    def pair(cls) -> "tuple[Channel, socket.socket]":
        """Return our end, and the socket for the other process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> bool:
        """Return False if the other side is gone."""
        return self._send(message, descriptors, 0)

    def try_send(self, message: Message) -> bool:
        """Return False also if the other side does not read at the moment; never waits."""
        return self._send(message, (), socket.MSG_DONTWAIT)

    def _send(self, message: Message, descriptors: Sequence[int], flags: int) -> bool:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        text = json.dumps(message).encode()
        try:
            self._socket.sendmsg([text], ancillary if descriptors else [], flags)
        except (BrokenPipeError, ConnectionError, BlockingIOError):
            return False
        except OSError:
            if self._socket.fileno() < 0:
                return False  # closed by another thread
            raise
        return True

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next message with its descriptors; None once the other side is gone. For one
        thread at a time."""
        descriptors = array.array("i")
        room = socket.CMSG_LEN(_MOST_DESCRIPTORS * descriptors.itemsize)
        self._buffer = self._buffer or bytearray(_MOST_BYTES)
        try:
            length, ancillary, _, _ = self._socket.recvmsg_into(
                [self._buffer], room, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return None
        if not length:
            return None
        text = self._buffer[:length]
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        try:
            message: Any = json.loads(text)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            log.error("malformed message: %r", text[:80])
            message = {}
        return cast(Message, message), list(descriptors)

    def close(self) -> None:
        self._socket.close()


def send_start(link: Channel, start: Message) -> bool:
    """Send the first message to a server. Long settings go in a memory file beside it."""
    settings = json.dumps(start["settings"]).encode()
    if len(settings) <= _LONG_BYTES:
        return link.send({"start": start})
    descriptor = os.memfd_create("penstock-settings", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(settings)
        file.flush()
        return link.send({"start": {**start, "settings": None}}, [descriptor])


def receive_start(link: Channel) -> Message | None:
    """Return the first message; None if the other side is gone."""
    received = link.receive()
    if received is None:
        return None
    start: Message = received[0]["start"]
    for descriptor in received[1]:
        with open(descriptor, "rb") as file:
            file.seek(0)
            start["settings"] = json.load(file)
    return start
