"""A real S3 server over a folder: `rclone serve s3`, with real keys, on a free loopback port.

Each folder below the served one is a bucket. Knows nothing of the clients.
"""

import contextlib
import http.client
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import rangefront
from penstock.bench.workspace import BenchError, Process, Workspace, wait_until

PART = "s3-server"
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    ranged_endpoint: str  # the same server for clients that insist on 206; see rangefront
    access_key: str
    secret_key: str

    def aws_environment(self) -> dict[str, str]:
        """The keys the way their users have them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
        }


def find_program(name: str) -> Path:
    """A program beside our own interpreter (a virtual environment's), or on the PATH."""
    beside = Path(sys.executable).parent / name
    if beside.is_file():
        return beside
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"{name}: no such program", hint="pip install 'penstock[demo]'")
    return Path(found)


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


@contextlib.contextmanager
def serve_s3(workspace: Workspace, folder: Path) -> Iterator[S3Server]:
    """Serves `folder` until the context ends, whatever ends it."""
    port, ranged_port = free_port(), free_port()
    server = S3Server(
        endpoint=f"http://127.0.0.1:{port}",
        ranged_endpoint=f"http://127.0.0.1:{ranged_port}",
        access_key=secrets.token_hex(10).upper(),
        secret_key=secrets.token_urlsafe(30),
    )
    rclone = workspace.spawn(
        PART,
        [
            find_program("rclone"),
            "serve",
            "s3",
            # Not the user's own configuration file.
            "--config=/dev/null",
            f"--addr=127.0.0.1:{port}",
            f"--auth-key={server.access_key},{server.secret_key}",
            # Listings from memory: the data does not change behind the server's back, except
            # for what JuiceFS puts there through it.
            "--dir-cache-time=24h",
            folder,
        ],
    )
    front = workspace.spawn(
        PART, [sys.executable, "-I", rangefront.__file__, str(ranged_port), str(port)]
    )
    try:
        wait_until(lambda: _answers(rclone, port), timeout_s=15, what="the S3 server")
        wait_until(lambda: _answers(front, ranged_port), timeout_s=15, what="its front")
        yield server
    finally:
        front.terminate()
        rclone.terminate()


def _answers(process: Process, port: int) -> bool:
    process.require_alive()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/")
        # An unsigned request must be refused (rclone says 400): a server that took it would not
        # check keys at all.
        return 400 <= connection.getresponse().status < 500
    except (ConnectionError, TimeoutError, http.client.HTTPException):
        return False
    finally:
        connection.close()
