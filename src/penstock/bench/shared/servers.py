"""A member of the shared tier: memcached on one machine, and everything that can happen to it.

Knows the machine and memcached's own commands; of Penstock nothing, not even how keys look.
Threading: one thread at a time.
"""

import contextlib
import os
import random
import signal
import socket
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from penstock.bench.shared.network import Machine
from penstock.bench.workspace import BenchError, Process, Workspace, find_program, wait_until

PORT = 11211
_MOST_THREADS = 4
_ANSWER_S = 10.0

Value = tuple[bytes, int]  # its key, and its length


class Member:
    def __init__(self, workspace: Workspace, machine: Machine) -> None:
        self._workspace, self.machine = workspace, machine
        self.host = machine.address
        self.address = f"{self.host}:{PORT}"
        self._process: Process | None = None

    def start(self, memory_mib: int, *options: str) -> None:
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        command = [
            find_program("memcached"),
            *("-l", self.host, "-p", str(PORT), "-U", "0"),
            *("-u", "root", "-t", str(threads), "-m", str(memory_mib), *options),
        ]
        process = self._workspace.spawn(f"member{self.machine.number}", self.machine.enter(command))
        self._process = process

        def answers() -> bool:
            process.require_alive()
            return self._answers()

        wait_until(answers, timeout_s=15, what=f"memcached on {self.address}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # it keeps nothing
            self._process = None

    def halt(self) -> None:
        """Stop it as SIGSTOP does: connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def stats(self) -> dict[str, str]:
        with _asking(self.host, PORT) as connection:
            connection.sendall(b"stats\r\n")
            lines = list(_lines(connection, b"END"))
        words = (line.decode().split(" ", 2) for line in lines)
        return {name: value for kind, name, value in words if kind == "STAT"}

    def values(self) -> list[Value]:
        return values_at(self.host, PORT)

    def spoil(self, seed: int) -> None:
        spoil(self.host, PORT, seed)

    def _answers(self) -> bool:
        try:
            with _asking(self.host, PORT) as connection:
                connection.sendall(b"mn\r\n")
                return connection.recv(16) == b"MN\r\n"
        except BenchError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.popen.send_signal(number)


def values_at(host: str, port: int) -> list[Value]:
    """Return what a member holds: keys, and the lengths of their values. Leases have none."""
    found: list[Value] = []
    with _asking(host, port) as connection:
        connection.sendall(b"lru_crawler metadump all\r\n")
        lines = list(_lines(connection, b"END"))  # "key=ps%3Aab%3A0 exp=-1 …"
        keys = [unquote_to_bytes(line[4:].split(b" ", 1)[0]) for line in lines]
        connection.sendall(b"".join(b"mg %s s\r\n" % key for key in keys) + b"mn\r\n")
        for key, line in zip(keys, _lines(connection, b"MN"), strict=True):
            # "HD s112656", and of a lease "HD s0 Z".
            if line.startswith(b"HD s") and (length := int(line[4:].split()[0])):
                found.append((key, length))
    return found


def spoil(host: str, port: int, seed: int) -> int:
    """Replace every value by random bytes, every third one by too few; return how many."""
    draw = random.Random(seed)
    values = values_at(host, port)
    with _asking(host, port) as connection:
        for number, (key, length) in enumerate(values):
            garbage = draw.randbytes(length if number % 3 else length // 2)
            connection.sendall(b"ms %s %d q\r\n%s\r\n" % (key, len(garbage), garbage))
        connection.sendall(b"mn\r\n")
        for _ in _lines(connection, b"MN"):
            pass
    return len(values)


@contextlib.contextmanager
def _asking(host: str, port: int) -> Iterator[socket.socket]:
    try:
        with socket.create_connection((host, port), _ANSWER_S) as connection:
            yield connection
    except OSError as error:
        raise BenchError(f"memcached on {host}:{port}: {error}") from error


def _lines(connection: socket.socket, last: bytes) -> Iterator[bytes]:
    """Yield the lines of an answer up to the last one, which is left out."""
    early = b""
    while True:
        received = connection.recv(1 << 16)
        if not received:
            raise ConnectionResetError("memcached ended before its answer did")
        *lines, early = (early + received).split(b"\n")  # metadump ends its lines without \r
        for line in lines:
            if (line := line.removesuffix(b"\r")) == last:
                return
            yield line
