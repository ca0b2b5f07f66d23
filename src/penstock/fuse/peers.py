"""The processes that serve one mount together: who owns a block, and how requests reach the owner.

Any worker that receives a request answers it from the local cache. A fetch that other processes may
need too is handed to the worker that owns the block, which replies on the clone of /dev/fuse from
which the request came: so each block is fetched once, and no process stands between the others.
Requests that only the server may answer (opens in passthrough mode, for example) are handed to the
server in the same way.

A message is one packet in the inbox of its receiver. Nobody waits for a receiver that does not
read: a request that cannot be handed over is served where it is.

Threading: any thread sends; one receives.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from penstock.cache.claims import Claims
from penstock.cache.fetch import FetchJob
from penstock.cache.identity import CachedObject
from penstock.fuse.session import Request, Session

_KIND = struct.Struct("<HH")
_PREFETCH = struct.Struct("<QII")
_REQUEST, _AHEAD = range(2)
_STRIPE_BLOCKS = 4
# The longest request that is handed over contains a name.
_MOST_BYTES = 16 * 1024


class Inbox:
    """The two ends of an inbox: every process has the sending end, its owner the receiving end."""

    def __init__(self, receiving: socket.socket, sending: socket.socket) -> None:
        self.receiving = receiving
        self.sending = sending

    @classmethod
    def new(cls) -> "Inbox":
        receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(receiving, sending)


class Peers:
    def __init__(
        self, mine: int, senders: Sequence[socket.socket], claims: Claims, deadline_s: float
    ) -> None:
        """`mine`: the number of this process, and of its clone. `senders`: sockets of all workers,
        and the server's last."""
        self.mine = mine
        self._senders = senders
        self._workers = len(senders) - 1
        self._claims = claims
        self._deadline_s = deadline_s
        self.others_prefetch = False  # some process is prefetching

    def owner_of(self, obj: CachedObject, number: int) -> int:
        return owner_of(obj, number, self._workers)

    def forward(self, owner: int, request: Request, length: int) -> bool:
        """Return False if the owner's inbox is full or closed."""
        message = _KIND.pack(_REQUEST, self.mine) + request[:length]
        return self._send(owner, message)

    def hand_to_server(self, request: Request, length: int) -> bool:
        return self.forward(self._workers, request, length)

    def wait_for_server(self, request: Request, length: int) -> None:
        """Hand the request to the server, waiting until it reads again."""
        message = _KIND.pack(_REQUEST, self.mine) + request[:length]
        with suppress(ConnectionError):  # it is gone, and this process will be ended
            self._senders[self._workers].send(message)

    def holder_of(self, obj: CachedObject) -> int | None:
        """Return the worker that is fetching a small object, or has just stored it."""
        return self._claims.holder_of(obj.digest)

    def claim(self, obj: CachedObject, job: FetchJob) -> FetchJob:
        """Wrap the job of a small object, so that other workers see that this one fetches it."""
        job.on_start = partial(self._claims.claim, obj.digest, self._deadline_s)
        job.on_end = partial(self._claims.stored, obj.digest)
        return job

    def prefetch(self, ino: int, obj: CachedObject, number: int, window: int) -> bool:
        """See RemotePrefetch."""
        owner = self.owner_of(obj, number)
        if owner == self.mine:
            return False
        return self._send(owner, _KIND.pack(_AHEAD, 0) + _PREFETCH.pack(ino, number, window))

    def _send(self, receiver: int, message: bytes | bytearray) -> bool:
        with suppress(BlockingIOError, ConnectionError):
            self._senders[receiver].send(message, socket.MSG_DONTWAIT)
            return True
        return False


def owner_of(obj: CachedObject, number: int, workers: int) -> int:
    """Return the worker that fetches a block. All workers serve a large file, stripe by stripe. A
    request of the kernel may end in the next block; its worker then fetches both."""
    return (int.from_bytes(obj.digest[:4], "little") + number // _STRIPE_BLOCKS) % workers


def receive(
    inbox: socket.socket,
    session: Session,
    clones: Sequence[int],
    prefetch: Callable[[int, int, int], object],
) -> None:
    """Serve requests that other processes hand over, until no sender is left."""
    buffer = bytearray(_MOST_BYTES)
    view = memoryview(buffer)
    while length := inbox.recv_into(buffer):
        kind: int
        clone: int
        kind, clone = _KIND.unpack_from(buffer)
        if kind == _AHEAD:
            prefetch(*_PREFETCH.unpack_from(buffer, _KIND.size))
        else:
            session.serve(bytearray(view[_KIND.size : length]), length - _KIND.size, clones[clone])
