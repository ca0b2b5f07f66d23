"""Members of shared tiers: real memcached, started as a user starts them, and all stopped."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.workspace import free_port
from penstock.member.lifecycle import members_here, stop_member
from tests.support.mounts import succeed
from tests.support.waiting import wait_until_gone

Json = dict[str, Any]
StartMember = Callable[..., int]


@pytest.fixture
def member(state: Path) -> Iterator[StartMember]:
    """member(*options) starts one of 64 MiB on a port of its own, and returns the port."""
    found: list[int] = []

    def start(*options: str | Path) -> int:
        port = free_port()
        succeed("shared", "start", "--port", str(port), "--memory", "64MiB", *options)
        found.append(pid_of(port))
        return port

    yield start
    for note in members_here():
        stop_member(note)
    for pid in found:
        wait_until_gone(pid)


def status(port: int) -> Json:
    """What `penstock shared status -o json` prints of one member."""
    (found,) = json.loads(succeed("shared", "status", "--port", str(port), "-o", "json"))
    return found


def pid_of(port: int) -> int:
    return int(status(port)["pid"])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)


class Client:
    """Speaks the meta protocol to a member, one request at a time."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._file = self._connection.makefile("rb")

    def set(self, key: str, value: bytes) -> bool:
        self._connection.sendall(b"ms %s %d\r\n%s\r\n" % (key.encode(), len(value), value))
        return self._file.readline() == b"HD\r\n"

    def get(self, key: str) -> bytes | None:
        self._connection.sendall(b"mg %s v\r\n" % key.encode())
        words = self._file.readline().split()
        if words[0] != b"VA":
            return None
        return self._file.read(int(words[1]) + 2)[:-2]

    def command(self, line: bytes) -> bytes:
        self._connection.sendall(line + b"\r\n")
        return self._file.readline()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._connection.close()
