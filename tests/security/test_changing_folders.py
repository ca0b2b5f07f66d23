"""A folder whose owner swaps links between our looks at it: what lies outside stays outside.

Each step is what a look of ours can meet when the swap happens to fall in between.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.store.local import LocalStore

SECRET = b"secret"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    source, outside = tmp_path / "set", tmp_path / "outside"
    (source / "real").mkdir(parents=True)
    outside.mkdir()
    (source / "real/file").write_bytes(b"public")
    (outside / "file").write_bytes(SECRET)
    return source, outside


def point(source: Path, target: Path) -> None:
    """`a` leads there, from one moment to the next."""
    (source / "new").symlink_to(target)
    os.replace(source / "new", source / "a")


def version_of(path: Path) -> str:
    """What a listing would have said of it."""
    (path.parent / "only").mkdir()
    (path.parent / "only/file").hardlink_to(path)
    ((info,),) = LocalStore(str(path.parent / "only"), Counters()).list_all("")
    return info.version


def test_bytes_are_not_read_through_a_link_that_leaves_the_source(
    folders: tuple[Path, Path],
) -> None:
    source, outside = folders
    version = version_of(outside / "file")
    store = LocalStore(str(source), Counters())
    point(source, source / "real")
    assert store.why_unreadable("a/file") is None
    point(source, outside)
    with pytest.raises(PenstockError):
        store.get("a/file", version, 0, len(SECRET), len(SECRET))


def test_a_folder_is_not_listed_through_a_link_that_leaves_the_source(
    folders: tuple[Path, Path],
) -> None:
    source, outside = folders
    store = LocalStore(str(source), Counters())
    point(source, outside)
    level = store.list_level("a")
    assert level is not None
    assert (level.objects, level.prefixes) == ([], [])


def test_a_file_that_became_a_pipe_does_not_hang_its_reader(folders: tuple[Path, Path]) -> None:
    source, _ = folders
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
