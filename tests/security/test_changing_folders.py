"""A folder whose owner swaps links between our looks at it: what lies outside stays outside.

Each step is what a look of ours can meet when the swap happens to fall in between.
"""

import os
import threading
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
    try:
        listed = store.list_level("a").objects
    except PenstockError:
        listed = []
    assert listed == []


def test_a_file_that_became_a_pipe_does_not_hang_its_reader(folders: tuple[Path, Path]) -> None:
    source, _ = folders
    store = LocalStore(str(source), Counters())
    (found,) = store.list_level("real").objects
    (source / "real/file").unlink()
    os.mkfifo(source / "real/file")
    refused: list[PenstockError] = []

    def read() -> None:
        try:
            store.get("real/file", found.version, 0, 6, 6)
        except PenstockError as error:
            refused.append(error)
        except OSError:
            return  # what a pipe says to a read at an offset

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(5)
    hangs = reader.is_alive()
    if hangs:  # let it go, so that this test leaves nothing behind
        os.close(os.open(source / "real/file", os.O_WRONLY))
        reader.join(20)
    assert not hangs
    assert len(refused) == 1


def test_links_inside_the_source_are_followed(folders: tuple[Path, Path]) -> None:
    source, _ = folders
    (source / "link").symlink_to("real/file")
    store = LocalStore(str(source), Counters())
    (found,) = (info for info in store.list_level("").objects if info.key == "link")
    assert store.get("link", found.version, 0, 6, 6) == b"public"
