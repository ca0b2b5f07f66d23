"""The server is a real one: it wants keys, has the bytes that were put into it, and goes away."""

import errno
import os
import socket
from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import S3Store

from penstock.bench.dataset import Dataset, make_large, make_small
from penstock.bench.programs import free_port
from penstock.bench.s3server import (
    PART,
    S3Server,
    create_bucket,
    host_and_port,
    remove_objects,
    serve_s3,
    upload,
)
from penstock.bench.workspace import BenchError, Workspace
from penstock.units import MIB
from tests.support.bench_ground import sockets_of


def open_store(server: S3Server, bucket: str) -> S3Store:
    return S3Store(
        bucket,
        endpoint=server.endpoint,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def listed(store: S3Store) -> dict[str, int]:
    return {meta["path"]: meta["size"] for page in obstore.list(store) for meta in page}


def test_a_server_has_the_files_that_were_put_into_it_and_leaves_nothing(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        root = workspace.folder / "dataset"
        small = make_small(root / "small", 2)
        large = make_large(root / "large", 1, size_bytes=17 * MIB + 5)  # in two parts
        with serve_s3(workspace) as server:
            create_bucket(server, "data")
            upload(server, "data", root)
            store = open_store(server, "data")
            sizes = listed(store)
            for dataset in (small, large):
                for entry in dataset.entries:
                    key = f"{dataset.name}/{entry.path}"
                    assert sizes.pop(key) == entry.size_bytes
                    content = (dataset.root / entry.path).read_bytes()
                    assert bytes(obstore.get(store, key).bytes()) == content
                    end = min(16 * MIB + 9, entry.size_bytes)
                    got = obstore.get_range(store, key, start=end - 5000, end=end)
                    assert bytes(got) == content[end - 5000 : end]
            assert sizes == {}
            with pytest.raises(PermissionDeniedError):
                obstore.get(
                    open_store(replace(server, secret_key="wrong"), "data"),
                    f"small/{small.entries[0].path}",
                )
            sockets = sockets_of(workspace.folder)
            assert sockets != []
        assert workspace.processes(PART) == []
        assert not any(path.exists() for path in sockets)
        with socket.socket() as probe:
            host, port = host_and_port(server.endpoint).split(":")
            assert probe.connect_ex((host, int(port))) == errno.ECONNREFUSED
    assert os.listdir(tmp_path) == []


def test_only_objects_below_a_prefix_are_removed(server: S3Server, tmp_path: Path) -> None:
    for name in ("run-1/a", "run-1/b/c", "run-10/a", "run-1.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    create_bucket(server, "bench-removal")
    upload(server, "bench-removal", tmp_path)
    assert remove_objects(server, "bench-removal", "run-1") == 2
    assert set(listed(open_store(server, "bench-removal"))) == {"run-10/a", "run-1.txt"}
    assert remove_objects(server, "bench-removal", "run-1") == 0


def test_an_upload_stops_when_it_is_told_to_and_when_the_store_refuses(
    server: S3Server, small: Dataset
) -> None:
    checked = 0

    def stop_at_the_third() -> None:
        nonlocal checked
        checked += 1
        if checked == 3:
            raise KeyError("stop")

    create_bucket(server, "bench-stopped")
    with pytest.raises(KeyError, match="stop"):
        upload(server, "bench-stopped", small.root, stop_at_the_third)
    assert len(listed(open_store(server, "bench-stopped"))) < len(small.entries)
    with pytest.raises(BenchError, match=r"was not put into the bucket bench-stopped: [\s\S]*403"):
        upload(replace(server, secret_key="wrong"), "bench-stopped", small.root)


def test_a_free_port_refuses_until_its_server_listens_and_is_nobody_elses() -> None:
    port = free_port()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):  # also a second time, when the first has ended
        with socket.create_server(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port)).close()


def test_an_endpoint_without_a_port_has_that_of_http() -> None:
    assert host_and_port("http://minio.example/") == "minio.example:80"
    assert host_and_port("http://127.0.0.1:9000") == "127.0.0.1:9000"
