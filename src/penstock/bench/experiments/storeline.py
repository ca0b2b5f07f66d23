"""The line to the store: shaped as the plan says, and every request on it counted.

Also where nothing is shaped a shaper stands in front, for its counters: what came from the store
is then known from outside of the system that is measured, and the same way for all. A store that
speaks TLS cannot be looked into: it is reached as it is, its requests are not counted, and a
network shape is refused.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.plans.model import Shape, StoreAccess
from penstock.bench.s3server import Counters, FarServer, S3Server, far_s3
from penstock.bench.workspace import Workspace
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class StoreLine:
    server: S3Server
    far: FarServer | None  # None: not counted

    def counters(self) -> Counters | None:
        return None if self.far is None else self.far.counters()

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile the network is as fast as it can be: nothing is measured."""
        return contextlib.nullcontext() if self.far is None else self.far.at_once()


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
        yield StoreLine(near, None)
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
        ranged_endpoint=access.ranged_endpoint or endpoint,
        access_key=keys["access_key"] or "",
        secret_key=keys["secret_key"] or "",
        region=access.region,
        session_token=keys.get("session_token"),
    )
