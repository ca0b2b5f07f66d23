"""Keys that cannot be paths: each has a stated answer, and none hides another in silence.

A real S3 server whose keys are free text (moto): rclone's are file names, and so cannot be odd.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.names import DOUBLE_ROLE, MARKER_WITH_DATA
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import ROOT, Node, Tree
from penstock.metrics import Counters
from penstock.store.connect import StoreOptions, open_store
from penstock.store.source import parse_source
from tests.conftest import Mounter, free_port, penstock, read_tree, running


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def s3_client(moto: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    import botocore.session

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    session = botocore.session.get_session()
    return session.create_client("s3", region_name="us-east-1", endpoint_url=moto)


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


def fill(client: Any, bucket: str, keys: dict[str, tuple[bytes, str | None]]) -> None:
    client.create_bucket(Bucket=bucket)
    for key, (data, _) in keys.items():
        client.put_object(Bucket=bucket, Key=key, Body=data)


def shown(mount: Path) -> dict[str, bytes]:
    return read_tree(mount)


def test_each_odd_key_is_shown_or_counted_with_its_reason(
    moto: str, s3_client: Any, mounter: Mounter
) -> None:
    fill(s3_client, "odd", ODD)
    mount = mounter("s3://odd", "--endpoint", moto)
    expected = {
        key: data for key, (data, why) in ODD.items() if why is None and not key.endswith("/")
    }
    assert shown(mount.path) == expected
    assert (mount.path / "marker").is_dir()
    assert (mount.path / "marker-with-data").is_dir()
    answer = json.loads(penstock("doctor", mount.path, "-o", "json").stdout)
    assert dict(answer["hidden"]) == {key: why for key, (_, why) in ODD.items() if why}
    assert mount.stats()["hidden"] == sum(why is not None for _, why in ODD.values())
    assert "cannot be shown as files" in mount.said
    told = penstock("doctor", mount.path).stdout
    assert all(repr(key) in told for key, (_, why) in ODD.items() if why)


def test_empty_objects_are_told_from_directory_markers_without_an_exact_listing(
    moto: str, s3_client: Any, mounter: Mounter
) -> None:
    """No key here makes the fast listing fail, which strips trailing slashes."""
    keys: dict[str, tuple[bytes, str | None]] = {
        "empty-file": (b"", None), "empty-dir/": (b"", None), "dir/": (b"", None),
        "dir/x": (b"x", None), "dir/empty": (b"", None),
    }  # fmt: skip
    fill(s3_client, "markers", keys)
    mount = mounter("s3://markers", "--endpoint", moto)
    assert shown(mount.path) == {"empty-file": b"", "dir/x": b"x", "dir/empty": b""}
    assert (mount.path / "empty-dir").is_dir()
    assert list((mount.path / "empty-dir").iterdir()) == []


def test_a_mount_of_a_prefix_sees_only_what_is_below_it(
    moto: str, s3_client: Any, mounter: Mounter
) -> None:
    keys: dict[str, tuple[bytes, str | None]] = {
        "p/x": (b"x", None), "p//y": (b"y", None), "pq/z": (b"z", None),
    }  # fmt: skip
    fill(s3_client, "prefixed", keys)
    mount = mounter("s3://prefixed/p", "--endpoint", moto)
    assert shown(mount.path) == {"x": b"x"}
    assert mount.stats()["hidden"] == 1


def test_an_object_of_five_tebibytes_is_listed_with_its_size(
    tmp_path: Path, mounter: Mounter
) -> None:
    folder = tmp_path / "huge"
    folder.mkdir()
    with open(folder / "huge.bin", "wb") as file:
        try:
            file.truncate(5 << 40)
        except OSError:  # ext4 ends at 16 TiB, but other file systems may end earlier
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
            pytest.fail("this machine's file system holds no file of 5 TiB")
    mount = mounter(f"file://{folder}")
    assert (mount.path / "huge.bin").stat().st_size == 5 << 40
    with open(mount.path / "huge.bin", "rb") as file:
        file.seek((5 << 40) - 10)
        assert file.read() == bytes(10)


def test_names_that_are_not_utf8_are_shown_as_their_bytes(tmp_path: Path, mounter: Mounter) -> None:
    folder = tmp_path / "latin"
    folder.mkdir()
    name = b"caf\xe9.txt"
    with open(bytes(folder) + b"/" + name, "wb") as file:
        file.write(b"latin-1")
    mount = mounter(f"file://{folder}")
    with open(bytes(mount.path) + b"/" + name, "rb") as file:
        assert file.read() == b"latin-1"


def children(tree: Tree, ino: int) -> list[Node]:
    return tree.children(ino, 0, 100)


def test_a_file_that_becomes_a_directory_and_back_gets_new_inodes(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "x").write_bytes(b"file")
    store = open_store(parse_source(f"file://{folder}"), StoreOptions(), Counters())
    tree = Tree(tmp_path / "catalog.sqlite")
    seen: list[int] = []
    for kind in ("file", "directory", "file"):
        if kind == "directory":
            (folder / "x").unlink()
            (folder / "x").mkdir()
        elif seen:
            (folder / "x").rmdir()
            (folder / "x").write_bytes(b"file again")
        refresh(tree, [Mounted("", store)], lambda *_: None)
        (node,) = children(tree, ROOT)
        assert node.is_directory == (kind == "directory")
        seen.append(node.ino)
    assert len(set(seen)) == 3
