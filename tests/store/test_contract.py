"""What every store must do, whatever is behind it: one server for each class, a folder a test."""

import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import Buffer

from penstock.bench.workspace import find_program, free_port
from penstock.errors import ObjectChanged, ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import ObjectInfo, Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.etags import PART_BYTES
from penstock.store.remote import read_in_thread
from penstock.store.source import Source, parse_source
from tests.support.processes import running
from tests.support.s3 import (
    ACCESS_KEY,
    S3,
    SECRET_KEY,
    ObjectPath,
    serve_rclone,
)
from tests.support.trees import write_tree

Folder = Path | ObjectPath

FILES = {
    "a.bin": b"alpha" * 1000,
    "empty": b"",
    "deep/er/b.bin": bytes(range(256)) * 300,
    "deep/c d+e%41#?.txt": b"odd but fine",
    "déjà/été.txt": "é".encode(),
}
_names = (f"set-{number}" for number in itertools.count())


def opened(source: str, **options: str) -> Store:
    return open_store(parse_source(source), StoreOptions(**options), Counters())


def listed(store: Store, prefix: str = "") -> dict[str, ObjectInfo]:
    infos = [info for page in store.list_all(prefix) for info in page if info.version]
    found = {info.key: info for info in infos}
    assert len(found) == len(infos), "a key that is listed twice"
    return found


def pieces(data: bytes) -> Iterator[Buffer]:
    """Pieces that are not as long as the parts of an upload."""
    for start in range(0, len(data), 3_000_001):
        yield data[start : start + 3_000_001]


class StoreContract:
    """A class provides `folder`, with FILES in it, and `store`, whose root is that folder."""

    def test_lists_every_object_with_its_size(self, store: Store) -> None:
        found = {key: info.size_bytes for key, info in listed(store).items()}
        assert found == {key: len(data) for key, data in FILES.items()}
        assert set(listed(store, "deep")) == {key for key in FILES if key.startswith("deep/")}

    def test_lists_one_level(self, store: Store) -> None:
        level = store.list_level("")
        assert level is not None
        assert {info.key for info in level.objects} == {"a.bin", "empty"}
        assert set(level.prefixes) == {"deep", "déjà"}

    def test_returns_whole_objects_and_ranges(self, store: Store) -> None:
        found = listed(store)
        assert set(found) == set(FILES)
        for key, data in FILES.items():
            size, version = len(data), found[key].version
            assert bytes(memoryview(store.get(key, version, 0, size, size))) == data
            if size > 2:
                middle = memoryview(store.get(key, version, 1, size - 2, size))
                assert bytes(middle) == data[1:-1]

    def test_a_rewritten_object_is_never_read_as_the_old_one(
        self, store: Store, folder: Folder
    ) -> None:
        old = listed(store)["a.bin"]
        (folder / "a.bin").write_bytes(b"omega" * 1000)
        if isinstance(folder, Path):
            os.utime(folder / "a.bin", (2e9, 2e9))
        with pytest.raises(ObjectChanged):
            store.get("a.bin", old.version, 0, old.size_bytes, old.size_bytes)
        with pytest.raises(ObjectChanged):
            store.get("a.bin", old.version, 10, 100, old.size_bytes)

    def test_a_deleted_object_is_not_found(self, store: Store, folder: Folder) -> None:
        old = listed(store)["a.bin"]
        (folder / "a.bin").unlink()
        with pytest.raises(ObjectNotFound):
            store.get("a.bin", old.version, 0, old.size_bytes, old.size_bytes)


class WritableContract(StoreContract):
    @pytest.mark.parametrize("size", [0, 1, PART_BYTES + 1])
    def test_a_written_file_is_read_back(self, store: Store, folder: Folder, size: int) -> None:
        data = random.Random(size).randbytes(size)
        version = store.put_file("new/er/file.bin", lambda: pieces(data), size)
        assert (folder / "new/er/file.bin").read_bytes() == data
        found = listed(store)["new/er/file.bin"]
        assert (found.size_bytes, found.version) == (size, version)

    def test_a_file_replaces_an_earlier_one_and_may_have_an_odd_name(
        self, store: Store, folder: Folder
    ) -> None:
        for key in ("a.bin", "deep/c d+e%41#?.txt"):
            before = listed(store)[key].version
            assert store.put_file(key, lambda: pieces(b"other"), 5) != before
            assert (folder / key).read_bytes() == b"other"

    @pytest.mark.parametrize("size", [70_000, PART_BYTES + 9])
    def test_a_broken_upload_leaves_nothing(self, store: Store, folder: Folder, size: int) -> None:
        def broken() -> Iterator[Buffer]:
            yield bytes(size // 2)
            raise ObjectChanged("rewritten while it was read")

        with pytest.raises(ObjectChanged):
            store.put_file("a.bin", broken, size)
        assert set(listed(store)) == set(FILES)
        assert (folder / "a.bin").read_bytes() == FILES["a.bin"]
        if isinstance(folder, Path):
            assert not [path for path in folder.iterdir() if path.name.startswith(".penstock")]

    @pytest.mark.parametrize("came", [4, 6])
    def test_an_upload_of_another_length_than_announced_is_discarded(
        self, store: Store, came: int
    ) -> None:
        with pytest.raises(StoreError):
            store.put_file("new", lambda: pieces(bytes(came)), 5)
        assert "new" not in listed(store)

    def test_a_deleted_file_is_gone_and_may_be_deleted_again(self, store: Store) -> None:
        store.clear_partial("a.bin")
        store.clear_partial("never/there")
        assert set(listed(store)) == set(FILES), "there was nothing to clear"
        store.delete("a.bin")
        store.delete("a.bin")
        assert set(listed(store)) == set(FILES) - {"a.bin"}


class TestLocalStore(WritableContract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        write_tree(tmp_path / "set", FILES)
        return tmp_path / "set"

    @pytest.fixture
    def store(self, folder: Path) -> Store:
        return opened(f"file://{folder}")

    @pytest.mark.parametrize("key", ["../out", "a/../../out", "link/out", "a.bin/b", "x//y", ""])
    def test_nothing_is_written_or_deleted_outside_or_through_a_symlink(
        self, store: Store, folder: Path, key: str
    ) -> None:
        (folder / "link").symlink_to(folder.parent)
        with pytest.raises(PenstockError):
            store.put_file(key, lambda: pieces(b"abc"), 3)
        assert not (folder.parent / "out").exists()
        (folder.parent / "out").write_bytes(b"")
        if key.endswith("/out"):
            with pytest.raises(PenstockError):
                store.delete(key)
        assert (folder.parent / "out").exists()


class TestSeaweedFS(WritableContract):
    @pytest.fixture(scope="class")
    @classmethod
    def bucket(cls, _s3_server: S3) -> ObjectPath:
        # A new one each time: a worker that steals tests may come back to a class it has left.
        return _s3_server.bucket(f"contract-{next(_names)}")

    @pytest.fixture
    def folder(self, bucket: ObjectPath) -> Folder:
        folder = bucket / next(_names)
        write_tree(folder, FILES)
        return folder

    @pytest.fixture
    def store(self, s3: S3, folder: ObjectPath) -> Store:
        return opened(folder.source, endpoint=s3.endpoint)


class TestSeaweedFSThroughObstore(TestSeaweedFS):
    """What our own client leaves to obstore, such as requests that somebody else pays for."""

    @pytest.fixture(autouse=True)
    def payer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_REQUEST_PAYER", "true")


class TestRcloneS3(StoreContract):
    """A server that is known to differ: it answers a range with 200 and the right bytes, and
    ignores If-Match. Its folder is filled on disk: an upload takes it 5 to 20 s under load."""

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
        root = tmp_path_factory.mktemp("rclone")
        with serve_rclone(root) as server:
            yield root, server.endpoint

    @pytest.fixture
    def folder(self, root: tuple[Path, str]) -> Path:
        folder = root[0] / next(_names) / "set"
        write_tree(folder, FILES)
        return folder

    @pytest.fixture
    def store(self, root: tuple[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        return opened(f"s3://{folder.parent.name}/set", endpoint=root[1])


class TestWebdavStore(StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
        root, port = tmp_path_factory.mktemp("webdav"), free_port()
        command = [
            find_program("rclone"),
            "serve",
            "webdav",
            f"--addr=127.0.0.1:{port}",
            root,
            "--config=/dev/null",
            "--dir-cache-time=0s",
            "--poll-interval=0",
        ]
        with running(command, port):
            yield root, f"http://127.0.0.1:{port}"

    @pytest.fixture
    def folder(self, root: tuple[Path, str]) -> Path:
        folder = root[0] / next(_names)
        write_tree(folder, FILES)
        return folder

    @pytest.fixture
    def store(self, root: tuple[Path, str], folder: Path) -> Store:
        return opened(f"{root[1]}/{folder.name}")


class TestPagesOfAWebServer(TestWebdavStore):
    """Python's own server: no WebDAV, no sizes in its pages, no ETags, no ranges."""

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
        root = tmp_path_factory.mktemp("pages")
        handler = partial(_QuietHandler, directory=str(root))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield root, f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
            thread.join()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_command_line_imports_botocore_only_for_a_store_that_needs_it() -> None:
    code = "import sys, penstock.cli.app; sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_object_is_copied_from_bucket_to_bucket(s3: S3) -> None:
    """obstore takes what is uploaded within its own runtime, and panics if that asks it."""
    data = bytes(range(256)) * 1000
    (s3.bucket("copied-from") / "object").write_bytes(data)
    copied = s3.bucket("copied-to") / "object"
    source, target = (
        opened(f"s3://{bucket}", endpoint=s3.endpoint) for bucket in ("copied-from", "copied-to")
    )
    (page,) = source.list_all("")
    (info,) = page

    def chunks() -> Iterator[Buffer]:
        for start in range(0, len(data), 100_000):
            length = min(100_000, len(data) - start)
            yield source.get("object", info.version, start, length, len(data))

    target.put_file("object", chunks, len(data))
    assert copied.read_bytes() == data


def test_an_error_while_producing_chunks_is_raised_and_early_close_ends_the_producer() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"one"
        yield b"two"
        raise ValueError("broken")

    made = read_in_thread(chunks)
    assert [next(made), next(made)] == [b"one", b"two"]
    with pytest.raises(ValueError, match="broken"):
        next(made)
    before = set(threading.enumerate())
    with closing(read_in_thread(lambda: itertools.repeat(b"more"))) as made:
        assert next(made) == b"more"
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("s3://bucket", Source("s3", "bucket", "")),
        ("s3://bucket/a/b/", Source("s3", "bucket", "a/b")),
        ("oss://bucket/dir", Source("oss", "bucket", "dir")),
        ("file:///data/set", Source("file", "", "/data/set")),
        ("https://host:8443/dav/set/", Source("https", "host:8443", "dav/set")),
        ("http://host/my%20data/", Source("http", "host", "my data")),
        ("http://host/100%2525", Source("http", "host", "100%25")),
        ("http://host/caf%E9", Source("http", "host", "caf\udce9")),
    ],
)
def test_a_source_is_parsed(text: str, source: Source) -> None:
    assert parse_source(text) == source
    assert parse_source(str(source)) == source


@pytest.mark.parametrize(
    "text",
    [
        "bucket",
        "/data",
        "ftp://host/x",
        "s3://",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "s3://key:secret@bucket/x",
        "https://user:pw@host/x",
        "file://relative",
    ],
)
def test_an_invalid_source_is_rejected_without_repeating_secrets(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_source(text)
    assert "secret" not in str(caught.value)
    assert ":pw" not in str(caught.value)
