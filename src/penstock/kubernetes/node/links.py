"""The socket of each data set, in a folder that only its server pods see.

A server pod is not trusted: somebody may have taken it over. It can make and keep the mount of its
own data set, and that is all; what it may keep here is bounded.

The first message decides what a connection is for: `attach`, of a supervisor (see
`daemon.keeper_mount`), or calls on /dev/fuse, of a server process.

Threading: one thread accepts, and there is one for each connection.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

from penstock.daemon.channel import Channel
from penstock.daemon.control_socket import short_path
from penstock.errors import PenstockError
from penstock.kubernetes.names import LINK_SOCKET, MOUNT_TYPE_PATTERN, ServedKey
from penstock.kubernetes.node.node_mount import NodeMount

log = logging.getLogger(__name__)

# A server pod has one connection of its supervisor, and one for each process that calls.
_MOST_CONNECTIONS = 64
# The mount of a data set, by its type; None: the one that is there.
FindMount = Callable[[str | None], NodeMount | None]


class Link:
    def __init__(self, key: ServedKey, folder: Path, user: int, find_mount: FindMount) -> None:
        self._key = key
        self._find_mount = find_mount
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._listener = _listen(folder / LINK_SOCKET.name, user)
        threading.Thread(target=self._accept, name=f"link {key}", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return  # closed
            if not self._free.acquire(blocking=False):
                log.error("%s: too many connections", self._key)
                end.close()
                continue
            threading.Thread(
                target=self._converse, args=(end,), name=f"pod {self._key}", daemon=True
            ).start()

    def _converse(self, end: socket.socket) -> None:
        link = Channel(end)
        descriptors: list[int] = []  # those that nobody has taken yet
        try:
            received = link.receive()
            if received is None:
                return
            message, descriptors = received
            if (attach := message.get("attach")) is not None:
                mount_type = str(attach["mount_type"])
                if not MOUNT_TYPE_PATTERN.fullmatch(mount_type):  # it becomes a path
                    raise ValueError(f"mount type {mount_type!r}")
                mount = self._find_mount(mount_type)
                assert mount is not None
                have = _named(attach["kept"], descriptors)
                remembered, since_s = dict(attach["remembered"]), float(attach["since_s"])
                descriptors = []
                mount.serve(end, have, remembered, since_s)
                return
            while received is not None:
                mount = self._find_mount(None)
                if mount is None:
                    return
                descriptors = []
                mount.answer_call(link, *received)
                received = link.receive()
                descriptors = [] if received is None else received[1]
        except PenstockError as error:
            link.send({"refused": str(error)})
        except (KeyError, TypeError, ValueError) as error:
            log.error("%s: a malformed message of a server pod: %r", self._key, error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            link.close()
            self._free.release()


def _named(names: object, descriptors: list[int]) -> dict[str, int]:
    """Return the descriptors by name. Raises ValueError for other numbers of either."""
    listed = [str(name) for name in cast("list[object]", names)]
    if len(set(listed)) != len(descriptors):
        raise ValueError(f"{len(descriptors)} descriptors for the names {listed}")
    return dict(zip(listed, descriptors, strict=True))


def _listen(path: Path, user: int) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        with short_path(path) as address:
            listener.bind(address)
    finally:
        os.umask(before)
    os.chown(path, user, user, follow_symlinks=False)
    listener.listen(128)
    return listener
