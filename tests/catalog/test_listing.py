"""Parallel listing and refresh, over a store in memory whose trees are drawn at random."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import Buffer

from penstock.catalog.listing import list_in_parallel
from penstock.catalog.refresh import Mounted, Summary, refresh
from penstock.catalog.tree import Tree
from penstock.errors import StoreError
from penstock.store import Level, ObjectInfo
from tests.support.catalogs import nodes_of

PAGE = 1000


class MemoryStore:
    identity = "memory://"

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.requests = 0
        self.fails_below: str | None = None

    def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        if self.fails_below is not None and prefix.startswith(self.fails_below):
            raise StoreError("down")
        start = f"{prefix}/" if prefix else ""
        infos = [self._info(key) for key in sorted(self.sizes) if key.startswith(start)]
        for first in range(0, len(infos) or 1, PAGE):
            self.requests += 1
            yield infos[first : first + PAGE]

    def list_level(self, prefix: str) -> Level:
        self.requests += 1
        start = f"{prefix}/" if prefix else ""
        below = [key[len(start) :] for key in self.sizes if key.startswith(start)]
        return Level(
            [self._info(start + name) for name in below if "/" not in name],
            sorted({start + name.split("/")[0] for name in below if "/" in name}),
        )

    def _info(self, key: str) -> ObjectInfo:
        size = self.sizes[key]
        return ObjectInfo(key, size, 1_700_000_000_000_000_000, f"v{size}")

    def get(self, key: str, version: str, start: int, length: int, size_bytes: int) -> Buffer:
        raise AssertionError("nothing is read")

    def why_unreadable(self, key: str) -> str | None:
        return None


def take_in(tree: Tree, store: MemoryStore) -> Summary:
    return refresh(tree, [Mounted("", store)], lambda *_: None)


def paths(tree: Tree) -> dict[str, int]:
    return {
        path: node.size_bytes
        for path, node in nodes_of(tree).items()
        if node.size_bytes is not None
    }


def test_a_deep_tree_of_many_is_listed_in_full_by_many_threads() -> None:
    keys = {f"{a}/{b:02}/{c:03}": 1 for a in "xyz" for b in range(20) for c in range(50)}
    store = MemoryStore(keys | {"top": 1, "x/loose": 1})
    listed = [info.key for page in list_in_parallel(store) for info in page]
    assert {key for key in listed if not key.endswith("/")} == set(store.sizes)


def test_a_flat_folder_is_streamed_and_not_split() -> None:
    store = MemoryStore({f"{n:05}": 1 for n in range(5500)})
    assert sum(len(page) for page in list_in_parallel(store)) == 5500
    assert store.requests == 6


def test_a_failure_in_one_thread_is_raised_and_nothing_is_taken_in(tmp_path: Path) -> None:
    store = MemoryStore({f"{a}/{c:04}": 1 for a in "xyz" for c in range(900)})
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, store)
    store.sizes["x/new"] = 1
    store.fails_below = "z"
    with pytest.raises(StoreError, match="down"):
        take_in(tree, store)
    assert "x/new" not in paths(tree)
    assert len(paths(tree)) == 2700
    tree.close()


NAMES = st.sampled_from(["a", "b", "c", "dd", "e f", "ü"])
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=4).map("/".join), st.integers(0, 3), max_size=25
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(TREES, min_size=1, max_size=4))
def test_the_tree_equals_the_bucket_after_each_refresh(
    tmp_path_factory: pytest.TempPathFactory, buckets: list[dict[str, int]]
) -> None:
    tree = Tree(tmp_path_factory.mktemp("model") / "catalog.sqlite")
    versions: dict[str, tuple[int, int]] = {}
    for bucket in buckets:
        summary = take_in(tree, MemoryStore(bucket))
        # Where a key is also a folder, the folder shows and the key is hidden.
        expected = {
            key: size
            for key, size in bucket.items()
            if not any(other.startswith(f"{key}/") for other in bucket)
        }
        assert paths(tree) == expected
        assert summary.hidden == len(bucket) - len(expected)
        assert tree.totals() == (len(expected), sum(expected.values()))
        inodes = {
            path: (node.ino, node.size_bytes or 0)
            for path, node in nodes_of(tree).items()
            if not node.is_directory
        }
        for path, (ino, size) in inodes.items():
            before = versions.get(path)
            if before is not None and before[1] == size:
                assert ino == before[0], "what did not change keeps its inode"
            elif before is not None:
                assert ino > before[0], "what changed has a new one"
        versions = inodes
    tree.close()


def test_another_mount_of_the_same_catalog_learns_what_changed(tmp_path: Path) -> None:
    store = MemoryStore({"a": 1, "b": 1})
    one, two = Tree(tmp_path / "catalog.sqlite"), Tree(tmp_path / "catalog.sqlite")
    take_in(one, store)
    assert two.changes_since(0, 100) == [], "the first listing is news to nobody"
    store.sizes = {"a": 2, "c": 1}
    take_in(one, store)
    changes = two.changes_since(0, 100)
    assert {(change.name, bool(change.buried)) for change in changes} == {
        (b"a", True), (b"b", True), (b"c", False),
    }  # fmt: skip
    one.close()
    two.close()


def test_dead_nodes_are_cleared_away_by_the_next_user_of_the_catalog(tmp_path: Path) -> None:
    store = MemoryStore({"a": 1})
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, store)
    (old,) = tree.files()
    store.sizes = {"a": 2}
    take_in(tree, store)
    assert tree.node(old.ino).dead, "a reader may still hold it"
    tree.close()
    again = Tree(tmp_path / "catalog.sqlite")
    assert [node.size_bytes for node in again.files()] == [2]
    with pytest.raises(Exception, match="not in the catalog"):
        again.node(old.ino)
    again.close()
