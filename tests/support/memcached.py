"""Real memcached servers on loopback, for tests of the shared tier."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.workspace import free_port
from tests.support.processes import start
from tests.support.waiting import wait_until


@dataclass
class Memcached:
    """One member. It can be killed, stopped for a while, and started again, empty."""

    port: int
    options: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = ["memcached", "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", "-t", "2"]
        if os.geteuid() == 0:
            command += ["-u", "root"]
        self.process = start([*command, *self.options])
        wait_until(self.answers, f"memcached on port {self.port}")

    def answers(self) -> bool:
        try:
            return self.ask(b"mn\r\n") == b"MN\r\n"
        except OSError:
            return False

    def ask(self, request: bytes) -> bytes:
        """Return the first line or so of an answer."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(request)
            return connection.recv(65536)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        # A thread that runs stops only once the signal has reached it.
        wait_until(lambda pid=self.process.pid: _thread_states(pid) == {"T"}, "it stops")

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stats(self) -> dict[str, str]:
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(b"stats\r\n")
            text = b""
            while not text.endswith(b"END\r\n"):
                text += connection.recv(65536)
        words = (line.split(" ", 2) for line in text.decode().splitlines())
        return {line[1]: line[2] for line in words if line[0] == "STAT"}


def _thread_states(pid: int) -> set[str]:
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}


@contextmanager
def memcached(*options: str) -> Iterator[Memcached]:
    """A member with 64 MiB, and other options of the server."""
    member = Memcached(free_port(), options or ("-m", "64"))
    try:
        member.start()
        yield member
    finally:
        member.kill()


def address_of(*members: Memcached) -> str:
    """What `--shared` takes."""
    return "memcached://" + ",".join(member.address for member in members)
