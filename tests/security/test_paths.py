"""Keys that try to name a path elsewhere: from listings, manifests, and folders that change."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.store.local import LocalStore
from tests.support.liar import BODY, Liar, entry, object_paths, page
from tests.support.mounts import Mounter, penstock
from tests.support.trees import read_tree, write_tree

ESCAPES = {
    key: f"{what} segment in its path"
    for what, keys in {
        "a `..`": ("../escape", "../../../../../../etc/passwd", "a/../../escape", ".."),
        "a `.`": (".", "a/./b"),
        "an empty": ("/etc/passwd", "//etc/passwd", "a//b"),
    }.items()
    for key in keys
}
CACHED = re.compile(
    r"index\.sqlite(-wal|-shm)?|(index|users)\.lock|objects/([0-9a-f]{2})(/\3[0-9a-f]{30})?|objects"
)


def hidden(mount: Path) -> dict[str, str]:
    return dict(json.loads(penstock("doctor", mount, "-o", "json").stdout)["hidden"])


def test_no_key_of_a_listing_names_a_path_outside(
    liar: Liar, mounter: Mounter, tmp_path: Path
) -> None:
    liar.answer = lambda _: page([entry(key) for key in [*ESCAPES, "good/file"]])
    mount = mounter("s3://b", "--endpoint", liar.endpoint)
    assert read_tree(mount.path) == {"good/file": BODY}
    assert set(object_paths(liar)) == {"/b/good/file"}
    assert hidden(mount.path) == ESCAPES
    assert set(object_paths(liar)) == {"/", "/b/good/file"}
    cache = tmp_path / "cache"
    stored = [str(path.relative_to(cache)) for path in cache.rglob("*")]
    assert [path for path in stored if not CACHED.fullmatch(path)] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "mnt1"]


def test_no_line_of_a_manifest_names_a_path_outside(
    liar: Liar, mounter: Mounter, tmp_path: Path
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
    source = liar.endpoint.replace("127.0.0.1", "localhost") + "/set"
    mount = mounter(source, "--manifest", manifest)
    assert read_tree(mount.path) == {"good/file": BODY}
    assert object_paths(liar) == ["/set/good/file"]
    noted = {key.encode("utf-8", "backslashreplace").decode(): why for key, why in odd.items()}
    assert hidden(mount.path) == {
        **noted,
        "huge": "a size that no file can have",
        "../plain": "a `..` segment in its path",
    }
    # The doctor has knocked at the door, and reads nothing else either.
    assert set(object_paths(liar)) == {"/", "/set/good/file"}


# -- folders whose owner swaps links between our looks at them: each step is what a look can meet --

SECRET = b"secret"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_tree(tmp_path, {"set/real/file": b"public", "outside/file": SECRET})
    return tmp_path / "set"


def point(source: Path, target: Path) -> None:
    """`a` leads there, from one moment to the next."""
    (source / "new").symlink_to(target)
    os.replace(source / "new", source / "a")


def test_no_bytes_are_read_through_a_symlink_that_leaves_the_source(source: Path) -> None:
    outside = source.with_name("outside")
    ((info,),) = LocalStore(str(outside), Counters()).list_all("")
    store = LocalStore(str(source), Counters())
    point(source, source / "real")
    assert store.why_unreadable("a/file") is None
    point(source, outside)
    with pytest.raises(PenstockError):
        store.get("a/file", info.version, 0, len(SECRET), len(SECRET))
    # Nor is a folder listed.
    level = store.list_level("a")
    assert level is not None
    assert (level.objects, level.prefixes) == ([], [])


def test_a_file_that_became_a_pipe_does_not_block_its_reader(source: Path) -> None:
    store = LocalStore(str(source), Counters())
    (found,) = store.list_level("real").objects
    (source / "real/file").unlink()
    os.mkfifo(source / "real/file")
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(store.get, "real/file", found.version, 0, 6, 6)
        try:
            error = read.exception(timeout=30)
        finally:  # let go of one that hangs, so that this test ends
            os.close(os.open(source / "real/file", os.O_RDWR))
    assert isinstance(error, PenstockError)
