"""What every store must do, whatever is behind it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ObjectChanged, ObjectNotFound
from penstock.metrics import Counters
from penstock.store import ObjectInfo, Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.remote import RemoteStore
from penstock.store.source import parse_source
from tests.conftest import S3, free_port, rclone, running, write_tree

FILES = {
    "a.bin": b"alpha" * 1000,
    "empty": b"",
    "deep/er/b.bin": bytes(range(256)) * 300,
    "deep/c d+e%41#?.txt": b"odd but fine",
    "déjà/été.txt": "é".encode(),
}


def listed(store: Store, prefix: str = "") -> dict[str, ObjectInfo]:
    return {info.key: info for page in store.list_all(prefix) for info in page if info.version}


class StoreContract:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "set"
        write_tree(folder, FILES)
        return folder

    def test_lists_every_object_with_its_size(self, store: Store) -> None:
        found = listed(store)
        assert {key: info.size_bytes for key, info in found.items()} == {
            key: len(data) for key, data in FILES.items()
        }

    def test_gives_back_whole_objects_and_ranges(self, store: Store) -> None:
        for key, info in listed(store).items():
            size = info.size_bytes
            if size < 3:
                continue
            assert bytes(memoryview(store.get(key, info.version, 0, size, size))) == FILES[key]
            middle = memoryview(store.get(key, info.version, 1, size - 2, size))
            assert bytes(middle) == FILES[key][1:-1]

    def test_lists_what_lies_below_a_prefix(self, store: Store) -> None:
        assert set(listed(store, "deep")) == {key for key in FILES if key.startswith("deep/")}

    def test_lists_one_level(self, store: Store) -> None:
        level = store.list_level("")
        assert level is not None
        assert {info.key for info in level.objects} == {"a.bin", "empty"}
        assert set(level.prefixes) == {"deep", "déjà"}

    def test_a_rewritten_object_is_never_read_as_the_old_one(
        self, store: Store, folder: Path
    ) -> None:
        old = listed(store)["a.bin"]
        (folder / "a.bin").write_bytes(b"omega" * 1000)
        os.utime(folder / "a.bin", (2e9, 2e9))
        with pytest.raises(ObjectChanged):
            store.get("a.bin", old.version, 0, old.size_bytes, old.size_bytes)

    def test_a_deleted_object_is_not_found(self, store: Store, folder: Path) -> None:
        old = listed(store)["a.bin"]
        (folder / "a.bin").unlink()
        with pytest.raises(ObjectNotFound):
            store.get("a.bin", old.version, 0, old.size_bytes, old.size_bytes)


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, folder: Path) -> Store:
        return open_store(parse_source(f"file://{folder}"), StoreOptions(), Counters())


class TestS3Store(StoreContract):
    @pytest.fixture
    def folder(self, s3: S3, tmp_path: Path) -> Path:
        folder = s3.bucket(f"contract{len(list(s3.folder.iterdir()))}") / "set"
        write_tree(folder, FILES)
        return folder

    @pytest.fixture
    def store(self, s3: S3, folder: Path) -> Store:
        source = parse_source(f"s3://{folder.parent.name}/set")
        return open_store(source, StoreOptions(endpoint=s3.endpoint), Counters())


class TestWebdavStore(StoreContract):
    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        port = free_port()
        command = [rclone(), "serve", "webdav", "--addr", f"127.0.0.1:{port}", str(folder),
                   "--dir-cache-time", "0s", "--poll-interval", "0"]  # fmt: skip
        with running(command, port):
            source = parse_source(f"http://127.0.0.1:{port}")
            yield open_store(source, StoreOptions(), Counters())


def test_a_store_costs_no_import_of_botocore_until_it_is_needed() -> None:
    code = "import sys, penstock.cli.app; sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_ordinary_bucket_is_listed_the_fast_way(s3: S3) -> None:
    """rclone's server answers the question for leading slashes with ordinary keys."""
    folder = s3.bucket("ordinary")
    write_tree(folder, FILES)
    store = open_store(
        parse_source("s3://ordinary"), StoreOptions(endpoint=s3.endpoint), Counters()
    )
    assert isinstance(store, RemoteStore)
    store._inventory._list_exactly = None  # type: ignore[assignment]  # would be called, and fail
    assert set(listed(store)) == set(FILES)
