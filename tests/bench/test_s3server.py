"""The server is a real one: it wants keys, serves the bytes, answers ranges, and goes away."""

import errno
import os
import socket
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from penstock.bench.dataset import Dataset, make_small
from penstock.bench.s3server import REGION, S3Server, free_port, host_and_port, serve_s3
from penstock.bench.workspace import Workspace


def open_store(server: S3Server, endpoint: str, secret_key: str | None = None) -> S3Store:
    return S3Store(
        "small",
        endpoint=endpoint,
        region=REGION,
        access_key_id=server.access_key,
        secret_access_key=secret_key or server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


@pytest.mark.parametrize("way", ["endpoint", "ranged_endpoint"])
def test_objects_are_listed_and_read_with_the_right_keys(
    server: S3Server, small: Dataset, way: str
) -> None:
    store = open_store(server, getattr(server, way))
    listed = {meta["path"]: meta["size"] for page in obstore.list(store) for meta in page}
    assert listed == {entry.path: entry.size_bytes for entry in small.entries}
    for entry in small.entries[:3]:
        data = bytes(obstore.get(store, entry.path).bytes())
        assert data == (small.root / entry.path).read_bytes()
        assert obstore.head(store, entry.path)["size"] == entry.size_bytes


def test_a_wrong_key_is_refused(server: S3Server, small: Dataset) -> None:
    store = open_store(server, server.endpoint, secret_key="wrong")
    with pytest.raises((PermissionDeniedError, UnauthenticatedError)):
        obstore.get(store, small.entries[0].path)


def test_ranges_come_as_partial_content_through_the_front(server: S3Server, small: Dataset) -> None:
    store = open_store(server, server.ranged_endpoint)
    whole = (small.root / small.entries[0].path).read_bytes()
    for start, end in ((0, 1), (5000, 70_001), (len(whole) - 1, len(whole))):
        got = obstore.get_range(store, small.entries[0].path, start=start, end=end)
        assert bytes(got) == whole[start:end]


def test_a_free_port_refuses_until_its_server_listens_and_is_nobody_elses() -> None:
    port = free_port()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):  # also a second time, when the first has ended
        with socket.create_server(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("http://minio.example/", "minio.example:80"), ("http://127.0.0.1:9000", "127.0.0.1:9000")],
)
def test_an_endpoint_without_a_port_has_that_of_http(endpoint: str, expected: str) -> None:
    assert host_and_port(endpoint) == expected


def test_nothing_listens_once_the_server_is_closed(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        make_small(workspace.folder / "served" / "small", 1)
        with serve_s3(workspace, workspace.folder / "served") as server:
            ports = [int(url.rsplit(":")[-1]) for url in (server.endpoint, server.ranged_endpoint)]
        for port in ports:
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
        assert workspace.processes("s3-server") == []
    assert os.listdir(tmp_path) == []
