"""SeaweedFS as a local S3 server: one process, one folder, ports on the loopback only.

This module only describes how to start the server and says when it is ready. Benchmarks start it
in a workspace and tests in a fixture. ADR 12 has the measurements behind the choice.
"""

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.programs import find_program, free_port

_PORTS = "ports.json"  # below its folder, for who did not start it
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
            if _status(self.ports["filer"], "PUT", _FILER_CONF_PATH, conf) != 201:
                return False
            # The server must reject an unsigned request, else it does not check keys at all.
            return _status(self.ports["s3"], "GET", "/") == 403
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


def _status(port: int, method: str, path: str, body: str | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()
