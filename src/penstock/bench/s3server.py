"""A real S3 server over a folder: `rclone serve s3`, with real keys, on a free loopback port.

Each folder below the served one is a bucket. `far_s3` puts it far away: latency and a bandwidth.
Knows nothing of the clients.
"""

import contextlib
import http.client
import json
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from penstock.bench import rangefront, shaper
from penstock.bench.workspace import BenchError, Process, Workspace, wait_until

PART = "s3-server"
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    ranged_endpoint: str  # the same server for clients that insist on 206; see rangefront
    access_key: str
    secret_key: str
    region: str = REGION
    session_token: str | None = None

    def aws_environment(self) -> dict[str, str]:
        """The keys the way their users have them."""
        environment = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
        }
        if self.session_token is not None:
            environment["AWS_SESSION_TOKEN"] = self.session_token
        return environment


@dataclass(frozen=True, slots=True)
class Counters:
    """What went through a shaper since it started."""

    gets: int  # of objects
    get_bytes: int
    other_requests: int  # listings, HEADs, and all that writes

    def since(self, before: "Counters") -> "Counters":
        return Counters(
            self.gets - before.gets,
            self.get_bytes - before.get_bytes,
            self.other_requests - before.other_requests,
        )


@dataclass(frozen=True, slots=True)
class FarServer:
    """`server` is the S3 server as it looks from far away; ranges are mended there too."""

    server: S3Server
    port: int

    def counters(self) -> Counters:
        return Counters(**json.loads(self._ask(shaper.COUNTERS_PATH)))

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Meanwhile nothing is delayed: for what must be there and is not measured."""
        self._ask(shaper.FREE_PATH)
        try:
            yield
        finally:
            self._ask(shaper.SHAPED_PATH)

    def _ask(self, path: bytes) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path.decode())
            return connection.getresponse().read()
        finally:
            connection.close()


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


@contextlib.contextmanager
def far_s3(
    workspace: Workspace, near: S3Server, *, latency_s: float, bytes_per_s: float,
    processes: int = 1,
) -> Iterator[FarServer]:  # fmt: skip
    """The server `near`, which speaks plain HTTP, behind a shaper, until the context ends; see
    there for `processes`."""
    port, upstream = free_port(), host_and_port(near.endpoint)
    process = workspace.spawn(
        PART,
        [
            *(sys.executable, "-m", shaper.__name__, str(port), upstream),
            *(repr(latency_s), repr(bytes_per_s), str(processes)),
        ],
    )
    try:
        wait_until(lambda: _answers(process, port), timeout_s=15, what="the shaper")
        endpoint = f"http://127.0.0.1:{port}"
        yield FarServer(replace(near, endpoint=endpoint, ranged_endpoint=endpoint), port)
    finally:
        process.terminate()


def host_and_port(endpoint: str) -> str:
    """Of an endpoint that begins with http://, whose port may be left out."""
    host = urlsplit(endpoint).netloc
    return host if urlsplit(endpoint).port else f"{host}:80"


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
