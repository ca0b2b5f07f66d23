"""Keys that try to name a path elsewhere: from listings, manifests, and folders that change."""

import errno
import json
import os
import re
from pathlib import Path

import pytest

from tests.support.hostile_s3 import BODY, Hostile, entry, object_paths, page
from tests.support.mounts import MODES, Mounter, penstock
from tests.support.trees import read_tree

ESCAPES = {
    "../escape": "a `..` segment in its path",
    "../../../../../../etc/passwd": "a `..` segment in its path",
    "a/../../escape": "a `..` segment in its path",
    "..": "a `..` segment in its path",
    ".": "a `.` segment in its path",
    "a/./b": "a `.` segment in its path",
    "/etc/passwd": "an empty segment in its path",
    "//etc/passwd": "an empty segment in its path",
    "a//b": "an empty segment in its path",
}
CACHED = re.compile(
    r"index\.sqlite(-wal|-shm)?|(index|users)\.lock|objects/([0-9a-f]{2})(/\3[0-9a-f]{30})?|objects"
)


def hidden(mount: Path) -> dict[str, str]:
    return dict(json.loads(penstock("doctor", mount, "-o", "json").stdout)["hidden"])


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_no_key_of_a_listing_names_a_path_outside(
    hostile: Hostile, mounter: Mounter, tmp_path: Path
) -> None:
    hostile.answer = lambda _: page([entry(key) for key in [*ESCAPES, "good/file"]])
    mount = mounter("s3://b", "--endpoint", hostile.endpoint)
    assert read_tree(mount.path) == {"good/file": BODY}
    assert set(object_paths(hostile)) == {"/b/good/file"}
    assert hidden(mount.path) == ESCAPES
    assert set(object_paths(hostile)) == {"/", "/b/good/file"}
    for name in ("../escape", "../../etc/passwd", "good/../../escape"):
        assert not os.path.exists(f"{mount.path}/{name}"), "`..` is the kernel's, and leads out"
    stored = below(tmp_path / "cache")
    assert [path for path in stored if not CACHED.fullmatch(path)] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "mnt1"]


def test_no_line_of_a_manifest_names_a_path_outside(
    hostile: Hostile, mounter: Mounter, tmp_path: Path
) -> None:
    odd = {
        **ESCAPES,
        "nul\0/x": "a NUL in its name",
        "tab\t": "its name has a control character",
        "half\ud800": "its name is not UTF-8",
        "half\ud800/x": "its name is not UTF-8",
    }
    lines = [json.dumps({"path": key, "size": len(BODY)}) for key in [*odd, "good/file"]]
    lines += [f"{2**64} huge", f"{len(BODY)} ../plain"]
    manifest = tmp_path / "manifest"
    manifest.write_text("\n".join(lines))
    source = hostile.endpoint.replace("127.0.0.1", "localhost") + "/set"
    mount = mounter(source, "--manifest", manifest)
    assert read_tree(mount.path) == {"good/file": BODY}
    assert object_paths(hostile) == ["/set/good/file"]
    noted = {key.encode("utf-8", "backslashreplace").decode(): why for key, why in odd.items()}
    assert hidden(mount.path) == {
        **noted,
        "huge": "a size that no file can have",
        "../plain": "a `..` segment in its path",
    }
    # The doctor has knocked at the door, and reads nothing else either.
    assert set(object_paths(hostile)) == {"/", "/set/good/file"}


@pytest.mark.parametrize("mode", MODES)
def test_a_file_replaced_by_a_link_that_leaves_the_source_is_not_followed_to_its_bytes(
    mounter: Mounter, tmp_path: Path, mode: str
) -> None:
    source, secret = tmp_path / "set", tmp_path / "secret"
    source.mkdir()
    (source / "file").write_bytes(b"public")
    secret.write_bytes(b"secret")
    times = (source / "file").stat()
    os.utime(secret, ns=(times.st_atime_ns, times.st_mtime_ns))
    mount = mounter(f"file://{source}", "--mode", mode, "--refresh", "never")
    (source / "file").unlink()
    (source / "file").symlink_to(secret)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        (mount.path / "file").read_bytes()
    mount.refresh()
    assert os.listdir(mount.path) == []
    assert hidden(mount.path) == {"file": "a link that leaves the source"}
    stored = [
        path.read_bytes() for path in (tmp_path / "cache/objects").rglob("*") if path.is_file()
    ]
    assert b"secret" not in b"".join(stored)
