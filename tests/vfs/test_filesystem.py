"""The tree as a file system: names, bytes, and what readers of an outdated file see."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.cache.identity import CachedObject
from penstock.cache.tier import TierSpec
from penstock.errors import StaleInode, StoreError
from penstock.vfs import filesystem
from penstock.vfs.filesystem import SHARED_WORDS, FileSystem
from penstock.vfs.readahead import Ahead, Readahead
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


def test_a_path_resolves_to_a_node_that_has_that_path(some: Set) -> None:
    files = some.files
    for path in (b"a", b"d/e/f", b"d/e", b"d"):
        node = files.find(path)
        assert node is not None
        assert files.path_of(node) == path
        assert files.node(node.ino) == node
    assert [files.find(path) for path in (b"x", b"x/a", b"a/b", b"d/x")] == [None] * 4
    files.mark_outdated([])  # nothing is remembered
    found = files.find_many([b"a", b"nowhere/a", b"a/b", b"d/e/f"])
    assert [node and node.name for node in found] == [b"a", None, None, b"f"]
    assert all(files.node(node.ino) is node for node in found if node), "each is remembered"
    assert [node.name for node in files.children(1, 0, 10)] == [b"a", b"d", b"large"]


def test_bytes_are_available_at_once_after_they_were_fetched(
    make_set: MakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = make_set(FILES, TierSpec("SSD", (tmp_path / "cache",), 1 << 20))
    files, ino = some.files, some.ino("d/e/f")
    assert files.read_now(ino, 0, 100) is None
    assert files.complete_file(ino) is None
    assert read(files, ino, 1, 2) == b"ee"
    assert read(files, some.ino("a"), 0, 100) == b"alpha"
    assert read(files, some.ino("large"), BLOCK - 1, 2) == bytes(2)
    some.cache.wait_until_stored()
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


class Watching(Readahead):
    """Notes what it is told, and wants one block."""

    def __init__(self) -> None:
        super().__init__(BLOCK, 1)
        self.seen: list[tuple[int, int, bool]] = []
        self.expected: list[tuple[int, int]] = []
        self.ahead = Ahead(range(0), 0)

    def observe(self, obj: CachedObject, offset: int, length: int, *, is_stored: bool) -> Ahead:
        self.seen.append((offset, length, is_stored))
        return self.ahead

    def expect(self, obj: CachedObject, number: int, window: int) -> None:
        self.expected.append((number, window))


class Small:
    """Notes what it is told of small files."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bool]] = []

    def observe(self, parent: int, ino: int, *, is_stored: bool) -> None:
        self.seen.append((parent, ino, is_stored))


def test_only_reads_that_can_be_sequential_are_observed(make_set: MakeSet, tmp_path: Path) -> None:
    some = make_set(FILES, TierSpec("SSD", (tmp_path / "cache",), 1 << 20))
    small_reads, readahead = Small(), Watching()
    files = FileSystem(some.tree, {0: some.store}, some.cache, readahead, lambda: None, small_reads)
    small, large = some.ino("a"), some.ino("large")
    assert files.read_now(small, 0, 100) is None
    files.read_now(small, 2, 100)
    assert (small_reads.seen, readahead.seen) == ([(1, small, False)], [])
    assert files.read_now(large, BLOCK, 10) is None
    assert readahead.seen == [], "seen when it is asked for again, to be fetched"
    assert read(files, large, BLOCK, 10) == bytes(10)
    some.cache.wait_until_stored()
    assert files.read_now(large, BLOCK + 10, 10) == [bytes(10)]
    some.cache.drop_idle()
    assert files.read_now(large, BLOCK + 20, 10) == [bytes(10)]
    assert readahead.seen == [
        (BLOCK, 10, False),
        (BLOCK + 10, 10, False),
        (BLOCK + 20, 10, True),
    ]
    assert read(files, small, 0, 100) == b"alpha"
    some.cache.wait_until_stored()
    assert files.read_now(small, 0, 100) == [b"alpha"]
    assert small_reads.seen == [(1, small, False), (1, small, True)]
    assert files.read_now(small, 5, 100) == [], "behind the end there is nothing to fetch"


class Others:
    """Other processes, which own every second block."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def prefetch(self, ino: int, obj: CachedObject, number: int, window: int) -> bool:
        if number % 2:
            self.asked.append((number, window))
        return bool(number % 2)


@pytest.mark.parametrize("way", ["read", "read_now"])
def test_the_next_blocks_are_fetched_by_their_owner_while_there_is_room(
    make_set: MakeSet, way: str
) -> None:
    some = make_set({"large": bytes(9 * BLOCK)}, buffer_bytes=3 * BLOCK)
    others, readahead = Others(), Watching()
    files = FileSystem(
        some.tree, {0: some.store}, some.cache, readahead, lambda: None, remote=others
    )
    ino = some.ino("large")
    if way == "read_now":
        assert read(files, ino, 0, 10) == bytes(10)
        wait_until(lambda: not some.cache.fetching)
    some.store.gate.clear()
    readahead.ahead = Ahead(range(1, 9), 4)
    if way == "read":
        files.read(ino, 0, 10, lambda _answer: None)
    else:
        assert files.read_now(ino, 10, 10) == [bytes(10)]
    assert others.asked[:3] == [(1, 4), (3, 4), (5, 4)]
    started = len(readahead.expected)
    assert readahead.expected == [(number, 4) for number in (2, 4, 6, 8)][:started]
    assert some.cache.fetching <= 3
    assert started in (3, 4), "the first for which there is no room is the last"
    some.store.gate.set()
    wait_until(lambda: not some.cache.fetching)
    assert {start // BLOCK for _, start in some.store.asked} <= {0, 2, 4, 6}


def test_nodes_changed_by_another_process_are_forgotten(some: Set, tmp_path: Path) -> None:
    generation = [0] * SHARED_WORDS
    ours, theirs = (
        FileSystem(
            some.tree,
            {0: some.store},
            some.cache,
            Readahead(BLOCK, 0),
            lambda: None,
            shared=generation,
        )
        for _ in range(2)
    )
    ino = some.ino("a")
    assert not ours.node(ino).dead
    assert not ours.file(ino).node.dead
    (tmp_path / "set/a").unlink()
    some.refresh()
    assert not ours.node(ino).dead, "nobody has told it"
    theirs.mark_outdated([ino])
    assert ours.file(ino).node.dead
    assert ours.node(ino).dead


def test_a_directory_is_not_a_file_and_a_removed_source_is_stale(some: Set) -> None:
    with pytest.raises(IsADirectoryError):
        some.files.file(some.ino("d"))
    other = FileSystem(some.tree, {}, some.cache, Readahead(BLOCK, 0), lambda: None)
    with pytest.raises(StaleInode, match="not mounted here"):
        other.file(some.ino("a"))


@pytest.mark.parametrize("change", ["rewritten", "deleted"])
def test_a_rewritten_object_makes_a_read_stale_and_requests_a_refresh(
    some: Set, tmp_path: Path, change: str
) -> None:
    due: list[bool] = []
    files = FileSystem(
        some.tree, {0: some.store}, some.cache, Readahead(BLOCK, 0), lambda: due.append(True)
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
    files.mark_outdated([])
    assert files.node(ino).dead
    assert isinstance(read(files, ino, 0, 100), StaleInode)
    assert due == [True], "the listing knows already that this file is gone"


def test_a_read_of_a_stale_block_is_an_error_also_when_retried_in_parts(
    make_set: MakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel asks for each page of a READ that failed, and would hand a program the first ones
    as a short read."""
    some = make_set(FILES, TierSpec("SSD", (tmp_path / "cache",), 1 << 20))
    ino, shared = some.ino("large"), [0] * SHARED_WORDS
    other = FileSystem(
        some.tree, {0: some.store}, some.cache, Readahead(BLOCK, 0), lambda: None, shared=shared
    )
    files = FileSystem(
        some.tree, {0: some.store}, some.cache, Readahead(BLOCK, 0), lambda: None, shared=shared
    )
    assert read(files, ino, 0, 4096) == bytes(4096)
    some.cache.wait_until_stored()
    clock = SimpleNamespace(monotonic=lambda: 100.0)  # the file is stale for a second only
    monkeypatch.setattr(filesystem, "time", clock)
    (tmp_path / "set/large").write_bytes(b"omega")
    assert files.read_now(ino, 0, 2 * BLOCK) is None
    assert isinstance(read(files, ino, 0, 2 * BLOCK), StaleInode)
    for process in (files, other):
        with pytest.raises(StaleInode, match="large"):
            process.read_now(ino, 0, 4096)
        assert process.read_now(some.ino("a"), 0, 5) is None, "others are read as before"
    clock.monotonic = lambda: 102.0
    assert files.read_now(ino, 0, 4096) == [bytes(4096)], "it is cached, and nobody asks for more"


def test_dead_nodes_are_forgotten(some: Set, tmp_path: Path) -> None:
    old = some.ino("d/e/f")
    outdated: list[object] = []
    some.cache.mark_outdated = outdated.extend  # type: ignore[method-assign]
    obj = some.files.file(old).obj
    (tmp_path / "set/d/e/f").write_bytes(b"rewritten")
    some.refresh()
    assert outdated == [obj]
    assert some.ino("d/e/f") != old
    assert some.files.node(old).dead


def test_the_number_of_remembered_nodes_is_bounded(
    some: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_NODES_REMEMBERED", 1)
    files = some.files
    for _ in range(2):
        for path in FILES:
            assert files.file(some.ino(path)).obj.key == path
    for memo in (files._nodes, files._files, files._paths, files._folders):
        assert len(memo) == 1
