"""The network line to the store: shaped as the plan asks, with every request on it counted.

A shaper stands in front of the store even where nothing is shaped, for its counters: requests are
then counted outside of the system that is measured, and in the same way for all. A `direct` line to
the local server has no shaper, which passes 3,000 GETs in a second and takes a part of the
machine: there the server's own metrics count. Nobody can look into a TLS connection: such a store
is reached as it is, a network shape is rejected, and the count is the kernel's own of bytes that
the network brought. That is the count of whole interfaces, with headers and all other traffic: one
experiment at a time, on a quiet machine.
"""

import contextlib
import ipaddress
import json
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from penstock.bench.plans.experiments import StoreAccess
from penstock.bench.plans.model import Shape
from penstock.bench.s3server import FarServer, S3Server, StoreCounts, ask, far_s3
from penstock.bench.workspace import Workspace
from penstock.errors import UsageError


class Wire:
    """Bytes that the network brought to this machine, whatever they were: by the loopback, or by
    all interfaces but that."""

    def __init__(self, endpoint: str) -> None:
        """Raise UsageError if the endpoint has no address."""
        there = urlsplit(endpoint)
        try:
            found = socket.getaddrinfo(there.hostname, there.port or 443, type=socket.SOCK_DGRAM)
        except OSError as error:
            raise UsageError(f"{endpoint}: {error.strerror}", hint="check the endpoint") from error
        self._is_near = ipaddress.ip_address(found[0][4][0]).is_loopback

    def received_bytes(self) -> int:
        """Return the bytes since the machine started, in this process's network namespace."""
        lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
        interfaces = (line.partition(":")[::2] for line in lines)
        return sum(
            int(figures.split()[0])
            for name, figures in interfaces
            if (name.strip() == "lo") == self._is_near
        )


class ServerMetrics:
    """SeaweedFS's own counters, of all buckets together. They count what was sent to the end."""

    _BYTES = "SeaweedFS_s3_bucket_traffic_sent_bytes_total"
    _REQUESTS = "SeaweedFS_s3_request_total"

    def __init__(self, port: int) -> None:
        self._port = port

    def counts(self) -> StoreCounts:
        gets = sent = others = 0
        with ask(self._port, "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        for line in lines:
            name, _, value = line.rpartition(" ")
            if name.startswith(self._BYTES):
                sent += int(float(value))
            elif name.startswith(self._REQUESTS) and 'type="GET"' in name:
                gets += int(float(value))
            elif name.startswith(self._REQUESTS):
                others += int(float(value))
        return StoreCounts(gets, sent, others)


@dataclass(frozen=True, slots=True)
class StoreLine:
    server: S3Server
    counted_by: FarServer | Wire | ServerMetrics

    def counts(self) -> StoreCounts:
        if isinstance(self.counted_by, Wire):
            return StoreCounts(None, self.counted_by.received_bytes(), None)
        return self.counted_by.counts()

    def unshaped(self) -> contextlib.AbstractContextManager[None]:
        """Lift the shape until the context ends: nothing is measured meanwhile."""
        far = self.counted_by
        return far.unshaped() if isinstance(far, FarServer) else contextlib.nullcontext()


@contextlib.contextmanager
def open_line(
    workspace: Workspace, access: StoreAccess, shape: Shape, *, direct: bool = False
) -> Iterator[StoreLine]:
    near = _server(access)
    if direct and shape.plain and access.metrics_port is not None:
        yield StoreLine(near, ServerMetrics(access.metrics_port))
        return
    if not near.endpoint.startswith("http://"):
        if not shape.plain:
            raise UsageError(
                f"{near.endpoint}: a store that speaks TLS cannot be put behind the shape "
                f"{shape.name}",
                hint="give an endpoint that begins with http://, or leave the network out",
            )
        yield StoreLine(near, Wire(near.endpoint))
        return
    bytes_per_s = math.inf if shape.bytes_per_s is None else shape.bytes_per_s
    # Processes of a shaper share no clock, so only one can share out a bandwidth.
    processes = 1 if shape.bytes_per_s is not None else max(1, (os.cpu_count() or 1) // 2)
    with far_s3(
        workspace,
        near,
        latency_s=shape.latency_s,
        bytes_per_s=bytes_per_s,
        processes=processes,
    ) as far:
        yield StoreLine(far.server, far)


def _server(access: StoreAccess) -> S3Server:
    endpoint = access.endpoint or f"https://s3.{access.region}.amazonaws.com"
    if access.keys_file is None:
        keys: dict[str, str | None] = {
            "access_key": os.environ.get("AWS_ACCESS_KEY_ID", ""),
            "secret_key": os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
            "session_token": os.environ.get("AWS_SESSION_TOKEN"),
        }
    else:
        keys = json.loads(Path(access.keys_file).read_text())
    return S3Server(
        endpoint=endpoint,
        access_key=keys["access_key"] or "",
        secret_key=keys["secret_key"] or "",
        region=access.region,
        session_token=keys.get("session_token"),
    )
