"""A real S3 server on loopback, with real keys: SeaweedFS. And buckets and objects in it.

The server is one process with one folder and ports on the loopback only; ADR 12 has the
measurements behind the choice. Benchmarks start it in a workspace and tests in a fixture. `far_s3`
puts a server far away: latency and a bandwidth. Knows nothing of the clients.
"""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import botocore.session
import obstore
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from obstore.exceptions import BaseError
from obstore.store import S3Store

from penstock.bench import measure, shaper
from penstock.bench.workspace import (
    MARK,
    BenchError,
    Process,
    Workspace,
    find_program,
    free_port,
    in_parallel,
    wait_until,
)
from penstock.units import MIB

_PORTS = "ports.json"  # below its folder, for processes that did not start it
_PARTS = ("master", "volume", "filer", "s3")
# By default each bucket gets a volume of its own, and its first object waits 0.2 s for it. With one
# collection for all buckets, 20 new buckets with an object each take 0.3 s instead of 4.3 s.
_FILER_CONF_PATH = "/etc/seaweedfs/filer.conf"
_FILER_CONF = {"locations": [{"locationPrefix": "/buckets/", "collection": "all"}]}


@dataclass(frozen=True, slots=True)
class SeaweedFS:
    """A server that is ready to be started: run `command` with `environment` added.

    Stop it with SIGKILL and then call `remove_sockets`: a graceful stop takes it 15 s, and leaves
    sockets behind, too.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    ports: Mapping[str, int]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3']}"

    def is_ready(self) -> bool:
        """Configure the server once it answers; return whether it takes objects."""
        try:
            conf = json.dumps(_FILER_CONF)
            filer, s3 = self.ports["filer"], self.ports["s3"]
            with ask(filer, _FILER_CONF_PATH, method="PUT", body=conf, timeout_s=2) as answer:
                if answer.status != 201:
                    return False
            # The server must reject an unsigned request, else it does not check keys at all.
            with ask(s3, "/", timeout_s=2) as answer:
                return answer.status == 403
        except (OSError, http.client.HTTPException):
            return False


def seaweedfs(folder: Path, *, access_key: str, secret_key: str) -> SeaweedFS:
    """Describe a server that keeps everything below `folder`, which it creates."""
    data, config = folder / "data", folder / "s3.json"
    data.mkdir(parents=True)
    identity = {
        "name": "local",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin"],
    }
    descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"identities": [identity]}, file)
    ports = {part + kind: free_port() for part in _PARTS for kind in ("", ".grpc")}
    ports["metrics"] = free_port()
    (folder / _PORTS).write_text(json.dumps(ports))
    command = (
        str(find_program("weed")),
        "-logtostderr=true",
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        *(f"-{part}.port={ports[part]}" for part in _PARTS),
        *(f"-{part}.port.grpc={ports[part + '.grpc']}" for part in _PARTS),
        f"-s3.config={config}",
        f"-metricsPort={ports['metrics']}",
        # Features that would each take one more port.
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        # A lone master elects itself: the default of 10 s is for real clusters.
        "-master.electionTimeout=1s",
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=100",
        # One chunk per object up to this size, as in S3: a GET is one read.
        "-filer.maxMB=64",
    )
    environment = {
        "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",  # volumes to make at a time; 7 by default
        "GOMEMLIMIT": "1GiB",  # a bound; with 256 MiB it collects garbage half of its time
    }
    return SeaweedFS(command, environment, ports)


def remove_sockets(folder: Path) -> None:
    """Remove the Unix sockets that the server of `folder` has put in /tmp, once it is killed."""
    try:
        ports = read_ports(folder)
    except (FileNotFoundError, ValueError):
        return  # it never started
    for part in _PARTS:
        for name in (f"{part}-{ports[part]}", f"{part}-grpc-{ports[part + '.grpc']}"):
            Path(f"/tmp/seaweedfs-{name}.sock").unlink(missing_ok=True)


def read_ports(folder: Path) -> dict[str, int]:
    """Return the ports of the server that has `folder`, by name."""
    return json.loads((folder / _PORTS).read_text())


@contextlib.contextmanager
def ask(
    port: int, path: str, *, method: str = "GET", body: str | None = None, timeout_s: float = 10
) -> Iterator[http.client.HTTPResponse]:
    """Ask a server on this machine. Its body is not read yet: it may come slowly.

    Raise OSError or HTTPException where there is no answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body)
        yield connection.getresponse()
    finally:
        connection.close()


PART = "s3-server"
REGION = "us-east-1"
_FOLDER = "s3"  # of the server, below the workspace's
_UPLOADS_AT_ONCE = 8
# A multiple of the blocks in which large objects are read: such a read then needs one part only.
_UPLOAD_PART_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    access_key: str
    secret_key: str
    region: str = REGION
    session_token: str | None = None
    metrics_port: int | None = None  # of a local one: Prometheus metrics at /metrics

    def aws_environment(self) -> dict[str, str]:
        """Return the keys as environment variables of AWS."""
        environment = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
        }
        if self.session_token is not None:
            environment["AWS_SESSION_TOKEN"] = self.session_token
        return environment


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """What the store sent since counting began. Where requests cannot be distinguished they are
    None, and bytes are all that the network received."""

    gets: int | None  # of objects
    get_bytes: int
    other_requests: int | None  # listings, HEADs, and all that writes

    def to_json(self) -> dict[str, int | None]:
        return asdict(self)

    def since(self, before: "StoreCounts") -> "StoreCounts":
        return StoreCounts(
            _less(self.gets, before.gets),
            self.get_bytes - before.get_bytes,
            _less(self.other_requests, before.other_requests),
        )


def _less(count: int | None, before: int | None) -> int | None:
    return None if count is None or before is None else count - before


@dataclass(frozen=True, slots=True)
class FarServer:
    """`server` is the S3 server behind a distant network."""

    server: S3Server
    port: int

    def counts(self) -> StoreCounts:
        return StoreCounts(**json.loads(self._ask(shaper.COUNTERS_PATH)))

    @contextlib.contextmanager
    def unshaped(self) -> Iterator[None]:
        """Delay nothing until the context ends: for work that is not measured."""
        self._ask(shaper.FREE_PATH)
        try:
            yield
        finally:
            self._ask(shaper.SHAPED_PATH)

    def _ask(self, path: bytes) -> bytes:
        with ask(self.port, path.decode()) as answer:
            return answer.read()


@contextlib.contextmanager
def serve_s3(workspace: Workspace) -> Iterator[S3Server]:
    """Serve an empty server until the context ends; one in a workspace at a time."""
    access_key, secret_key = secrets.token_hex(10).upper(), secrets.token_urlsafe(30)
    folder = workspace.folder / _FOLDER
    server = seaweedfs(folder, access_key=access_key, secret_key=secret_key)
    process = workspace.spawn(PART, server.command, workspace.environment(PART, server.environment))

    def is_ready() -> bool:
        process.require_alive()
        return server.is_ready()

    try:
        # 3 s on an idle machine.
        wait_until(is_ready, timeout_s=60, what="the S3 server")
        yield S3Server(
            server.endpoint, access_key, secret_key, metrics_port=server.ports["metrics"]
        )
    finally:
        process.kill()  # its own graceful stop takes 15 s
        remove_sockets(folder)
        shutil.rmtree(folder)


def kill_left_server(folder: Path) -> None:
    """Kill the server of a workspace whose owner was killed, and remove what it has in /tmp."""
    for pid in measure.marked_processes(f"{MARK}={folder}/{PART}\0"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remove_sockets(folder / _FOLDER)


def create_bucket(server: S3Server, name: str) -> None:
    client = botocore.session.get_session().create_client(
        "s3",
        region_name=server.region,
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )
    try:
        client.create_bucket(Bucket=name)
    except (BotoCoreError, ClientError) as error:
        raise BenchError(f"the bucket {name} was not made: {error}") from error
    finally:
        client.close()


def upload(
    server: S3Server, bucket: str, root: Path, check: Callable[[], None] = lambda: None
) -> None:
    """Put every file below `root` into a bucket that exists, under its path from there.

    `check` is called before each file, and raises when the upload is to stop.
    """
    store = _open(server, bucket)

    def put(path: Path) -> None:
        check()
        key = path.relative_to(root).as_posix()
        try:
            if path.stat().st_size <= _UPLOAD_PART_BYTES:
                obstore.put(store, key, path.read_bytes(), use_multipart=False)
            else:
                obstore.put(store, key, path, chunk_size=_UPLOAD_PART_BYTES, max_concurrency=1)
        except BaseError as error:
            raise BenchError(f"{path} was not put into the bucket {bucket}: {error}") from error

    paths = [Path(at) / name for at, _, names in os.walk(root) for name in names]
    in_parallel(put, paths, _UPLOADS_AT_ONCE)


def remove_objects(server: S3Server, bucket: str, prefix: str) -> int:
    """Remove every object whose key begins with `prefix`/; return how many there were."""
    store = _open(server, bucket)
    count = 0
    try:
        for page in obstore.list(store, f"{prefix}/"):
            obstore.delete(store, [found["path"] for found in page])
            count += len(page)
    except BaseError as error:
        raise BenchError(f"objects in the bucket {bucket} were not removed: {error}") from error
    return count


def reclaim_space(workspace: Workspace) -> None:
    """Free the space of removed objects where they are a third of what the server keeps.

    SeaweedFS does it by itself every quarter of an hour, and deletes a second after it is asked to:
    what was removed just now is reclaimed by the next call.
    """
    ports = read_ports(workspace.folder / _FOLDER)
    try:
        with ask(ports["master"], "/vol/vacuum", timeout_s=60) as answer:
            answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"the S3 server did not reclaim space: {error}") from error


def _open(server: S3Server, bucket: str) -> S3Store:
    return S3Store(
        bucket,
        endpoint=server.endpoint,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


@contextlib.contextmanager
def far_s3(
    workspace: Workspace,
    near: S3Server,
    *,
    latency_s: float,
    bytes_per_s: float,
    processes: int = 1,
    host: str = "127.0.0.1",
) -> Iterator[FarServer]:
    """Put the server `near`, which speaks plain HTTP, behind a shaper until the context ends; see
    there for `processes`. `host` is where it listens besides, for clients elsewhere: 0.0.0.0."""
    port, upstream = free_port(), host_and_port(near.endpoint)
    process = workspace.spawn(
        PART,
        [
            *(sys.executable, "-m", shaper.__name__, f"{host}:{port}", upstream),
            *(repr(latency_s), repr(bytes_per_s), str(processes)),
        ],
    )
    try:
        wait_until(lambda: _answers(process, port), timeout_s=15, what="the shaper")
        endpoint = f"http://127.0.0.1:{port}"
        yield FarServer(replace(near, endpoint=endpoint), port)
    finally:
        process.terminate()


def host_and_port(endpoint: str) -> str:
    """Return HOST:PORT of an endpoint that begins with http://, whose port may be left out."""
    host = urlsplit(endpoint).netloc
    return host if urlsplit(endpoint).port else f"{host}:80"


def _answers(process: Process, port: int) -> bool:
    process.require_alive()
    try:
        with ask(port, "/", timeout_s=2) as answer:  # of the server, to an unsigned request
            return 400 <= answer.status < 500
    except (ConnectionError, TimeoutError, http.client.HTTPException):
        return False
