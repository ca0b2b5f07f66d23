"""Keys that cannot be paths: each has a stated answer, and none hides another in silence.

The server is moto, which takes any key. SeaweedFS and rclone make paths of keys.
"""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.catalog.names import DOUBLE_ROLE, MARKER_WITH_DATA
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.metrics import Counters
from penstock.store.connect import StoreOptions, open_store
from penstock.store.source import parse_source
from tests.support.catalogs import nodes_of
from tests.support.isolation import isolate
from tests.support.mounts import Mount, Mounter, mounting, penstock
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, serve_moto
from tests.support.trees import read_tree


@pytest.fixture(scope="module")
def _moto() -> Iterator[S3]:
    with serve_moto() as server:
        yield server


@pytest.fixture
def moto(_moto: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return _moto


ODD: dict[str, tuple[bytes, str | None]] = {
    # key: (bytes, why it is hidden; None: it is shown)
    "plain.txt": (b"plain", None),
    "a//b": (b"x", "an empty segment in its path"),
    "a/./b": (b"x", "a `.` segment in its path"),
    "a/../b": (b"x", "a `..` segment in its path"),
    "../escape": (b"x", "a `..` segment in its path"),
    "..": (b"x", "a `..` segment in its path"),
    "/leading": (b"x", "an empty segment in its path"),
    "leading": (b"not the one with the slash", None),
    "marker/": (b"", None),
    "marker-with-data/": (b"data", MARKER_WITH_DATA),
    "both": (b"file", DOUBLE_ROLE),
    "both/child": (b"child", None),
    "n" * 255: (b"just fits", None),
    "n" * 256: (b"too long", "a name longer than 255 bytes"),
    "é" * 200 + "/x": (b"too long in bytes", "a name longer than 255 bytes"),
    "Case": (b"upper", None),
    "case": (b"lower", None),
    "zero": (b"", None),
    "sp ace+plus%41": (b"quoted", None),
    "tab\tname": (b"x", "its name has a control character"),
}


def fill(server: S3, bucket: str, keys: dict[str, bytes]) -> None:
    server.client.create_bucket(Bucket=bucket)
    for key, data in keys.items():
        server.client.put_object(Bucket=bucket, Key=key, Body=data)


def test_each_odd_key_is_shown_or_counted_with_its_reason(moto: S3, mounter: Mounter) -> None:
    fill(moto, "odd", {key: data for key, (data, _) in ODD.items()})
    mount = mounter("s3://odd", "--endpoint", moto.endpoint)
    expected = {
        key: data for key, (data, why) in ODD.items() if why is None and not key.endswith("/")
    }
    assert read_tree(mount.path) == expected
    assert (mount.path / "marker").is_dir()
    assert (mount.path / "marker-with-data").is_dir()
    answer = json.loads(penstock("doctor", mount.path, "-o", "json").stdout)
    assert dict(answer["hidden"]) == {key: why for key, (_, why) in ODD.items() if why}
    assert mount.stats()["hidden"] == sum(why is not None for _, why in ODD.values())
    assert "cannot be shown as files" in mount.said
    output = penstock("doctor", mount.path).stdout
    assert all(repr(key) in output for key, (_, why) in ODD.items() if why)


def test_empty_objects_and_directory_markers_differ_without_an_exact_listing(
    moto: S3, tmp_path: Path
) -> None:
    """No key here makes the fast listing fail, which strips trailing slashes."""
    keys = {"empty-file": b"", "empty-dir/": b"", "dir/": b"", "dir/x": b"x", "dir/empty": b""}
    fill(moto, "markers", keys)
    options = StoreOptions(endpoint=moto.endpoint)
    store = open_store(parse_source("s3://markers"), options, Counters())
    with closing(Tree(tmp_path / "catalog.sqlite")) as tree:
        refresh(tree, [Mounted("", store)], lambda *_: None)
        assert set(nodes_of(tree)) == set(keys)


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount of a folder with a very large file, and one whose name is not UTF-8."""
    place = tmp_path_factory.mktemp("odd-files")
    folder = place / "set"
    folder.mkdir()
    with open(folder / "huge.bin", "wb") as file:
        file.truncate(5 << 40)  # this needs a file system such as ext4, xfs or tmpfs
    (folder / os.fsdecode(LATIN)).write_bytes(b"latin-1")
    with pytest.MonkeyPatch.context() as patch, mounting(place) as mount:
        isolate(patch, place / "state")
        yield mount(f"file://{folder}")


LATIN = b"caf\xe9.txt"


def test_an_object_of_five_tebibytes_is_listed_with_its_size(odd_files: Mount) -> None:
    huge = odd_files.path / "huge.bin"
    assert huge.stat().st_size == 5 << 40
    with open(huge, "rb") as file:
        file.seek((5 << 40) - 10)
        assert file.read() == bytes(10)


def test_names_that_are_not_utf8_are_shown_as_bytes(odd_files: Mount) -> None:
    assert LATIN in os.listdir(bytes(odd_files.path))
    assert (odd_files.path / os.fsdecode(LATIN)).read_bytes() == b"latin-1"
