"""The tree as a file system: names, bytes, and what readers of an outdated file see."""

import os
from pathlib import Path

import pytest

from penstock.cache.tier import TierSpec
from penstock.errors import StaleInode, StoreError
from penstock.vfs import filesystem
from penstock.vfs.filesystem import FileSystem
from penstock.vfs.neighbours import Neighbours
from penstock.vfs.readahead import Readahead
from tests.support.gated_set import BLOCK, MakeSet, Set
from tests.support.waiting import wait_until

FILES = {"a": b"alpha", "d/e/f": b"deep", "large": bytes(3 * BLOCK)}


@pytest.fixture
def some(make_set: MakeSet) -> Set:
    return make_set(FILES)


def read(files: FileSystem, ino: int, offset: int, length: int) -> object:
    answers: list[list[memoryview] | Exception] = []
    files.read(ino, offset, length, answers.append)
    (answer,) = wait_until(lambda: answers)
    return answer if isinstance(answer, Exception) else b"".join(answer)


def test_a_path_is_found_and_a_node_has_its_path(some: Set) -> None:
    files = some.files
    for path in (b"a", b"d/e/f", b"d/e", b"d"):
        node = files.find(path)
        assert node is not None
        assert files.path_of(node) == path
        assert files.node(node.ino) == node
    assert [files.find(path) for path in (b"x", b"x/a", b"a/b", b"d/x")] == [None] * 4
    files.outdate([])  # nothing is remembered
    found = files.find_many([b"a", b"nowhere/a", b"a/b", b"d/e/f"])
    assert [node and node.name for node in found] == [b"a", None, None, b"f"]
    assert all(files.node(node.ino) is node for node in found if node), "each is remembered"
    assert [node.name for node in files.children(1, 0, 10)] == [b"a", b"d", b"large"]


def test_bytes_are_at_hand_once_they_have_been_fetched(
    make_set: MakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = make_set(FILES, TierSpec("SSD", (tmp_path / "cache",), 1 << 20))
    files, ino = some.files, some.ino("d/e/f")
    assert files.read_now(ino, 0, 100) is None
    assert files.complete_file(ino) is None
    assert read(files, ino, 1, 2) == b"ee"
    assert read(files, some.ino("a"), 0, 100) == b"alpha"
    assert read(files, some.ino("large"), BLOCK - 1, 2) == bytes(2)
    some.cache.settle()
    assert files.read_now(ino, 1, 2) == [b"ee"]
    assert [files.cached_bytes(some.ino(name)) for name in FILES] == [5, 4, 2 * BLOCK]
    assert (files.complete_file(ino) or Path()).read_bytes() == b"deep"
    asked = [("a", 0), ("d/e/f", 0), ("large", 0), ("large", BLOCK)]
    assert sorted(some.store.asked) == asked, "each once"
    error = StoreError("down")

    def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(some.store, "get", fail)
    assert read(files, some.ino("large"), 2 * BLOCK, 5) is error, "told as it is"


def test_only_what_can_be_a_run_of_files_or_of_blocks_is_observed(
    some: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[object] = []
    neighbours = Neighbours(lambda *_: None)
    readahead = Readahead(some.cache, 0)
    monkeypatch.setattr(neighbours, "observe", lambda parent, ino: runs.append((parent, ino)))
    monkeypatch.setattr(readahead, "observe", lambda _what, _fetch, *where: runs.append(where))
    files = FileSystem(some.tree, {0: some.store}, some.cache, readahead, lambda: None, neighbours)
    small = some.ino("a")
    files.read_now(small, 0, 100)
    files.read_now(small, 2, 100)
    files.read_now(some.ino("large"), BLOCK, 10)
    assert runs == [(1, small), (BLOCK, 10)]


def test_a_directory_is_no_file_and_a_source_that_left_is_stale(some: Set) -> None:
    with pytest.raises(IsADirectoryError):
        some.files.file(some.ino("d"))
    other = FileSystem(some.tree, {}, some.cache, Readahead(some.cache, 0), lambda: None)
    with pytest.raises(StaleInode, match="not mounted here"):
        other.file(some.ino("a"))


@pytest.mark.parametrize("change", ["rewritten", "deleted"])
def test_a_bucket_ahead_of_the_listing_makes_a_read_stale_and_a_refresh_due(
    some: Set, tmp_path: Path, change: str
) -> None:
    due: list[bool] = []
    files = FileSystem(
        some.tree, {0: some.store}, some.cache, Readahead(some.cache, 0), lambda: due.append(True)
    )
    ino = some.ino("a")
    if change == "deleted":
        (tmp_path / "set/a").unlink()
    else:
        (tmp_path / "set/a").write_bytes(b"omega")
        os.utime(tmp_path / "set/a", (2e9, 2e9))
    assert isinstance(read(files, ino, 0, 100), StaleInode)
    assert due == [True]
    some.refresh()
    files.outdate([])
    assert files.node(ino).dead
    assert isinstance(read(files, ino, 0, 100), StaleInode)
    assert due == [True], "the listing knows already that this file is gone"


def test_what_was_remembered_is_forgotten_when_it_died(some: Set, tmp_path: Path) -> None:
    old = some.ino("d/e/f")
    outdated: list[object] = []
    some.cache.outdate = outdated.extend  # type: ignore[method-assign]
    what = some.files.file(old).what
    (tmp_path / "set/d/e/f").write_bytes(b"rewritten")
    some.refresh()
    assert outdated == [what]
    assert some.ino("d/e/f") != old
    assert some.files.node(old).dead


def test_no_more_is_remembered_than_so_much(some: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_NODES_REMEMBERED", 1)
    files = some.files
    for _ in range(2):
        for path in FILES:
            assert files.file(some.ino(path)).what.key == path
    for memo in (files._nodes, files._files, files._paths, files._folders):
        assert len(memo) == 1
