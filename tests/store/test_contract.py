"""What every store must do, whatever is behind it."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import Buffer

from penstock.errors import ObjectChanged, ObjectNotFound, PenstockError, StoreError
from penstock.metrics import Counters
from penstock.store import ObjectInfo, Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.parts import PART_BYTES
from penstock.store.remote import RemoteStore
from penstock.store.source import parse_source
from tests.conftest import S3, free_port, rclone, running, serve_s3, write_tree

FILES = {
    "a.bin": b"alpha" * 1000,
    "empty": b"",
    "deep/er/b.bin": bytes(range(256)) * 300,
    "deep/c d+e%41#?.txt": b"odd but fine",
    "déjà/été.txt": "é".encode(),
}


@pytest.fixture(scope="module")
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serve_s3(tmp_path_factory.mktemp("s3-of-uploads"))


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


class WritableContract(StoreContract):
    """Of those that can be written to."""

    @pytest.mark.parametrize("size", [0, 1, 70_000, PART_BYTES + 1])
    def test_what_was_written_is_read_back(self, store: Store, folder: Path, size: int) -> None:
        data = os.urandom(size)
        version = store.put_file("new/er/file.bin", lambda: pieces(data), size)
        assert (folder / "new/er/file.bin").read_bytes() == data
        found = listed(store)["new/er/file.bin"]
        assert (found.size_bytes, found.version) == (size, version)

    def test_a_file_takes_the_place_of_the_one_before(self, store: Store, folder: Path) -> None:
        before = listed(store)["a.bin"].version
        version = store.put_file("a.bin", lambda: pieces(b"other"), 5)
        assert version != before
        assert (folder / "a.bin").read_bytes() == b"other"

    def test_a_name_may_be_odd(self, store: Store, folder: Path) -> None:
        key = "deep/c d+e%41#?é.txt"
        store.put_file(key, lambda: pieces(b"odd"), 3)
        assert (folder / key).read_bytes() == b"odd"

    @pytest.mark.parametrize("size", [70_000, PART_BYTES + 9])
    def test_what_breaks_in_the_middle_leaves_nothing(
        self, store: Store, folder: Path, size: int
    ) -> None:
        def broken() -> Iterator[Buffer]:
            yield bytes(size // 2)
            raise ObjectChanged("rewritten while it was read")

        with pytest.raises(ObjectChanged):
            store.put_file("a.bin", broken, size)
        assert set(listed(store)) == set(FILES)
        assert (folder / "a.bin").read_bytes() == FILES["a.bin"]
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".penstock")]

    @pytest.mark.parametrize("came", [4, 6])
    def test_what_is_shorter_or_longer_than_was_said_is_not_kept(
        self, store: Store, came: int
    ) -> None:
        with pytest.raises(StoreError):
            store.put_file("new", lambda: pieces(bytes(came)), 5)
        assert "new" not in listed(store)

    def test_there_may_be_nothing_to_clear(self, store: Store) -> None:
        store.clear_partial("a.bin")
        store.clear_partial("never/there")
        assert set(listed(store)) == set(FILES)

    def test_a_deleted_file_is_gone_and_may_be_deleted_again(self, store: Store) -> None:
        store.delete("a.bin")
        store.delete("a.bin")
        assert set(listed(store)) == set(FILES) - {"a.bin"}


def pieces(data: bytes) -> Iterator[Buffer]:
    """Of a length that no part has."""
    for start in range(0, len(data), 3_000_001):
        yield data[start : start + 3_000_001]


class TestLocalStore(WritableContract):
    @pytest.fixture
    def store(self, folder: Path) -> Store:
        return open_store(parse_source(f"file://{folder}"), StoreOptions(), Counters())

    @pytest.mark.parametrize("key", ["../out", "a/../../out", "link/out", "a.bin/b", "x//y", ""])
    def test_nothing_is_written_outside_or_through_a_link(
        self, store: Store, folder: Path, key: str
    ) -> None:
        (folder / "link").symlink_to(folder.parent)
        with pytest.raises(PenstockError):
            store.put_file(key, lambda: pieces(b"abc"), 3)
        assert not (folder.parent / "out").exists()

    @pytest.mark.parametrize("key", ["../kept", "link/kept"])
    def test_nothing_is_deleted_outside(self, store: Store, folder: Path, key: str) -> None:
        (folder.parent / "kept").write_bytes(b"")
        (folder / "link").symlink_to(folder.parent)
        with pytest.raises(PenstockError):
            store.delete(key)
        assert (folder.parent / "kept").exists()


class TestS3Store(WritableContract):
    @pytest.fixture
    def folder(self, s3: S3, tmp_path: Path) -> Path:
        folder = s3.bucket(f"contract{len(list(s3.folder.iterdir()))}") / "set"
        write_tree(folder, FILES)
        return folder

    @pytest.fixture
    def store(self, s3: S3, folder: Path) -> Store:
        source = parse_source(f"s3://{folder.parent.name}/set")
        # On a machine with other things to do, rclone's server may think for 20 s about a write.
        return open_store(source, StoreOptions(endpoint=s3.endpoint, deadline_s=300), Counters())


class TestWebdavStore(StoreContract):
    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        port = free_port()
        command = [rclone(), "serve", "webdav", "--addr", f"127.0.0.1:{port}", str(folder),
                   "--dir-cache-time", "0s", "--poll-interval", "0"]  # fmt: skip
        with running(command, port):
            source = parse_source(f"http://127.0.0.1:{port}")
            yield open_store(source, StoreOptions(), Counters())


class TestPagesOfAWebServer(StoreContract):
    """Python's own server: no WebDAV, no sizes in its pages, no ETags, no ranges."""

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        handler = partial(_Quiet, directory=str(folder))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            source = parse_source(f"http://127.0.0.1:{server.server_port}")
            yield open_store(source, StoreOptions(), Counters())
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


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
