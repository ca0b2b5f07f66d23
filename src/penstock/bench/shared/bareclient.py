"""The yardstick of the shared tier: a plain memcached client, and nothing else.

No file system, no cache and no checksum: sockets, the meta protocol, and one buffer that is used
again and again. It asks the same members for the same values, on the same machine, with as many
processes as there are readers, so it shows what members, network and processors can give.

A program of its own, run by path: it imports nothing but the standard library.
"""

import json
import os
import random
import resource
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.bench.readers import Epoch
    from penstock.bench.shared.cluster import Cluster
    from penstock.bench.shared.network import Machine

PART = "bare-memcached"
Value = tuple[int, str, int]  # the number of its member, its key, its length
_ROOM_BYTES = 1 << 20
_PATIENCE_S = 10


def get_all(
    cluster: "Cluster",
    machine: "Machine",
    *,
    readers: int,
    in_flight: int,
    seed: int,
) -> "Epoch":
    """Get every value once, on that machine; each reader asks for `in_flight` values at a time."""
    from penstock.bench.readers import Epoch
    from penstock.bench.shared.servers import PORT

    order = {
        "members": [[member.host, PORT] for member in cluster.members],
        "values": [
            (number, key.decode(), length)
            for number, member in enumerate(cluster.members)
            for key, length in member.values()
        ],
        "readers": readers,
        "in_flight": in_flight,
        "seed": seed,
    }
    command = machine.enter([sys.executable, "-I", str(Path(__file__))])
    answer = cluster.workspace.run(PART, command, stdin=json.dumps(order).encode())
    return Epoch(**json.loads(answer))


class _Connection:
    """One member, as one reader sees it."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # In the kernel: Python's own timeouts would poll before each call.
        self._socket.settimeout(None)
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _PATIENCE_S, 0)
        )
        self._buffer = bytearray(b"\1" * _ROOM_BYTES)  # touched before the clock starts
        self._view = memoryview(self._buffer)

    def get(self, keys: Sequence[bytes], size_bytes: int) -> None:
        """Ask for all the keys at once. The length of the answer is known, so nothing of it has to
        be looked at but its beginning."""
        self._socket.sendall(b"".join(b"mg %s v\r\n" % key for key in keys))
        left = size_bytes
        while left:
            got = self._socket.recv_into(self._view, min(left, _ROOM_BYTES))
            if not got:
                raise ConnectionResetError("the member has closed the connection")
            if left == size_bytes and not self._buffer.startswith(b"VA "):
                raise OSError(f"a value is gone: {bytes(self._view[:20])!r}")
            left -= got


def _answer_bytes(length: int) -> int:
    return len(b"VA %d\r\n" % length) + length + len(b"\r\n")


def _read_share(order: dict[str, Any], share: list[list[Value]], go: int) -> dict[str, Any]:
    """Read one share. Wait until `go` closes, so that all readers start together."""
    connections = [_Connection(host, port) for host, port in order["members"]]
    total = 0
    os.read(go, 1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.monotonic()
    for batch in share:
        size_bytes = sum(_answer_bytes(length) for _, _, length in batch)
        connections[batch[0][0]].get([key.encode() for _, key, _ in batch], size_bytes)
        total += sum(length for _, _, length in batch)
    end = time.monotonic()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"start": start, "end": end, "bytes": total, "cpu_s": cpu_s}


def _batches(order: dict[str, Any]) -> list[list[Value]]:
    """Values that are asked for at once, in random order; a batch has one member."""
    batches: list[list[Value]] = []
    draw = random.Random(order["seed"])
    for number in range(len(order["members"])):
        values = [tuple(value) for value in order["values"] if value[0] == number]
        draw.shuffle(values)
        count = order["in_flight"]
        batches += [values[at : at + count] for at in range(0, len(values), count)]
    draw.shuffle(batches)
    return batches


def _fork_reader(order: dict[str, Any], share: list[list[Value]], go: int, go_end: int) -> int:
    """Start a reader, and return the descriptor that its result comes from."""
    result, result_end = os.pipe()
    if os.fork():
        os.close(result_end)
        return result
    status = 1
    try:
        os.close(go_end)
        os.close(result)
        os.write(result_end, json.dumps(_read_share(order, share, go)).encode())
        status = 0
    except OSError as error:
        os.write(2, f"{error}\n".encode())
    finally:
        # Also after an unexpected error: a fork must never go on as its parent.
        os._exit(status)


def _main() -> int:
    order = json.load(sys.stdin)
    batches, readers = _batches(order), order["readers"]
    go, go_end = os.pipe()
    results = [
        _fork_reader(order, batches[number::readers], go, go_end) for number in range(readers)
    ]
    os.close(go_end)
    answers = [os.fdopen(result, "rb").read() for result in results]
    for _ in results:
        os.wait()
    if not all(answers):
        return 1
    shares = [json.loads(answer) for answer in answers]
    seconds = max(share["end"] for share in shares) - min(share["start"] for share in shares)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "files": len(order["values"]),
                "size_bytes": sum(share["bytes"] for share in shares),
                "cpu_s": sum(share["cpu_s"] for share in shares),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(_main())
