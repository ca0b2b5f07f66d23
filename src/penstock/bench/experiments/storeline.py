"""The line to the store: shaped as the plan says, and every request on it counted.

Also where nothing is shaped a shaper stands in front, for its counters: what came from the store
is then known from outside of the system that is measured, and the same way for all. A store that
speaks TLS cannot be looked into: it is reached as it is, a network shape is refused, and what comes
from it is what the network brings (see `wire`).
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.experiments.wire import Wire
from penstock.bench.plans.model import Shape, StoreAccess
from penstock.bench.s3server import FarServer, S3Server, far_s3
from penstock.bench.workspace import Workspace
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class Came:
    """What came from the store since somebody began to count. Where requests cannot be told apart
    they are None, and bytes are all that the network brought."""

    gets: int | None  # of objects
    get_bytes: int
    other_requests: int | None  # listings, HEADs, and all that writes

    def since(self, before: "Came") -> "Came":
        return Came(
            _less(self.gets, before.gets),
            self.get_bytes - before.get_bytes,
            _less(self.other_requests, before.other_requests),
        )


def _less(count: int | None, before: int | None) -> int | None:
    return None if count is None or before is None else count - before


@dataclass(frozen=True, slots=True)
class StoreLine:
    server: S3Server
    counted_by: FarServer | Wire

    def came(self) -> Came:
        if isinstance(self.counted_by, Wire):
            return Came(None, self.counted_by.received_bytes(), None)
        counted = self.counted_by.counters()
        return Came(counted.gets, counted.get_bytes, counted.other_requests)

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile the network is as fast as it can be: nothing is measured."""
        far = self.counted_by
        return far.at_once() if isinstance(far, FarServer) else contextlib.nullcontext()


@contextlib.contextmanager
def open_line(workspace: Workspace, access: StoreAccess, shape: Shape) -> Iterator[StoreLine]:
    near = _server(access)
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
    with far_s3(workspace, near, latency_s=shape.latency_s, bytes_per_s=bytes_per_s) as far:
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
