"""Real S3 servers for tests: SeaweedFS for almost all, moto and rclone where they differ.

A bucket is used like a folder: `bucket / "train/1.jpg"` has `write_bytes`, `read_bytes`, `unlink`.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import botocore.session
import obstore
from botocore.config import Config
from obstore.store import S3Store

from penstock.bench.s3server import remove_sockets, seaweedfs
from penstock.bench.workspace import free_port
from tests.support.processes import running
from tests.support.rclone import rclone_serves

ACCESS_KEY, SECRET_KEY = "AKIAPENSTOCKTEST", "a-secret-for-loopback-only"
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
REGION = "us-east-1"
_WRITERS = 8


def client(endpoint: str) -> Any:
    """botocore's S3 client, for what obstore cannot do."""
    return botocore.session.get_session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(s3={"addressing_style": "path"}),
    )


@dataclass(frozen=True)
class S3:
    """A server at `endpoint` that knows ACCESS_KEY."""

    endpoint: str

    @cached_property
    def client(self) -> Any:
        return client(self.endpoint)

    def bucket(self, name: str) -> "ObjectPath":
        """An empty bucket.

        It may be there: with `--dist worksteal` a worker can come back to a module, and then sets
        up the fixtures of the module again.
        """
        try:
            self.client.create_bucket(Bucket=name)
        except self.client.exceptions.BucketAlreadyOwnedByYou:
            self.open(name).clear()
        return self.open(name)

    def open(self, name: str) -> "ObjectPath":
        """A bucket that may be there."""
        store = S3Store(
            name,
            endpoint=self.endpoint,
            region=REGION,
            virtual_hosted_style_request=False,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
        )
        return ObjectPath(store, name, "")


@dataclass(frozen=True)
class ObjectPath:
    """An object or a prefix, with the part of pathlib's interface that tests use."""

    _store: S3Store
    bucket: str
    key: str

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(self._store, self.bucket, f"{self.key}/{name}".removeprefix("/"))

    @property
    def name(self) -> str:
        return (self.key or self.bucket).rsplit("/", 1)[-1]

    @property
    def source(self) -> str:
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    def write_bytes(self, data: bytes) -> None:
        obstore.put(self._store, self.key, data, use_multipart=False)

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode())

    def write_all(self, files: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in pool.map(lambda name: (self / name).write_bytes(files[name]), files):
                pass

    def read_bytes(self) -> bytes:
        return bytes(obstore.get(self._store, self.key).bytes())

    def unlink(self) -> None:
        obstore.delete(self._store, self.key)

    def exists(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            obstore.head(self._store, self.key)
            return True
        return False

    def rglob(self) -> "list[ObjectPath]":
        """Every object below this prefix."""
        pages = obstore.list(self._store, f"{self.key}/" if self.key else None)
        keys = sorted(meta["path"] for page in pages for meta in page)
        return [ObjectPath(self._store, self.bucket, key) for key in keys]

    def clear(self) -> None:
        """Delete every object below this prefix."""
        if found := [path.key for path in self.rglob()]:
            obstore.delete(self._store, found)


@contextlib.contextmanager
def serve_seaweedfs(folder: Path) -> Iterator[S3]:
    server = seaweedfs(folder, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    try:
        with running(
            server.command, ready=server.is_ready, env=server.environment, log=folder / "log"
        ):
            yield S3(server.endpoint)
    finally:
        remove_sockets(folder)


@contextlib.contextmanager
def serve_rclone(folder: Path) -> Iterator[S3]:
    """rclone's server. Each folder below `folder` is a bucket, and each file an object."""
    keys = f"--auth-key={ACCESS_KEY},{SECRET_KEY}"
    with rclone_serves("s3", folder, keys, "--vfs-cache-mode=off") as address:
        yield S3(f"http://{address}")


@contextlib.contextmanager
def serve_moto() -> Iterator[S3]:
    """A server that takes any key, also those that are no path. It checks no signatures."""
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-H127.0.0.1", f"-p{port}"], port):
        yield S3(f"http://127.0.0.1:{port}")
