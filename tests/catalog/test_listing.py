"""Parallel listings and refreshes of a catalog, over one store in memory or several."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog.file_set import read_sizes
from penstock.catalog.listing import list_in_parallel
from penstock.catalog.refresh import Mounted, Summary, numbered, refresh, unlisted
from penstock.catalog.sources import check_paths, covered_by_others, owner_of
from penstock.catalog.tree import Tree
from penstock.errors import OptionError, PenstockError, SourceError, StoreError
from penstock.store import Level, ObjectInfo
from penstock.store.removed import RemovedStore
from tests.support.catalogs import NOW_NS, nodes_of

PAGE = 1000


class MemoryStore(RemovedStore):
    """A store that lists what a test wrote down, page by page, or fails."""

    def __init__(self, sizes: dict[str, int], identity: str = "memory://") -> None:
        super().__init__(identity)
        self.sizes = sizes
        self.requests = 0
        self.error: Exception | None = None  # raised at the end of a listing
        self.fails_below = ""

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        start = f"{prefix}/" if prefix else ""
        infos = [self._info(key) for key in sorted(self.sizes) if key.startswith(start)]
        for first in range(0, len(infos) or 1, PAGE):
            self.requests += 1
            yield infos[first : first + PAGE]
        if self.error is not None and prefix.startswith(self.fails_below):
            raise self.error

    def list_level(self, prefix: str) -> Level:
        self.requests += 1
        start = f"{prefix}/" if prefix else ""
        below = [key[len(start) :] for key in self.sizes if key.startswith(start)]
        return Level(
            [self._info(start + name) for name in below if "/" not in name],
            sorted({start + name.split("/")[0] for name in below if "/" in name}),
        )

    def _info(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, self.sizes[key], NOW_NS, f"v{self.sizes[key]}")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path / "catalog.sqlite")
    yield made
    made.close()


def take_in(tree: Tree, *mounts: Mounted | MemoryStore, in_use: bool = True) -> Summary:
    """A store without a place is mounted at the root."""
    placed = [one if isinstance(one, Mounted) else Mounted("", one) for one in mounts]
    return refresh(tree, placed, lambda *_: None, in_use=in_use)


def paths(tree: Tree) -> dict[str, int]:
    return {
        path: node.size_bytes
        for path, node in nodes_of(tree).items()
        if node.size_bytes is not None
    }


def numbers(tree: Tree) -> dict[str, int]:
    return {path: node.ino for path, node in nodes_of(tree).items()}


def test_a_deep_tree_is_split_by_its_folders_and_listed_in_full() -> None:
    keys = {f"{a}/{b:02}/{c:03}": 1 for a in "xyz" for b in range(20) for c in range(50)}
    store = MemoryStore(keys | {"top": 1, "x/loose": 1})
    listed = [info.key for page in list_in_parallel(store) for info in page if info.version]
    assert sorted(listed) == sorted(store.sizes)
    assert store.requests == 2 + 3 * (2 + 20), "a page and a level where it is split, a page below"


def test_a_flat_folder_is_streamed_and_not_split() -> None:
    store = MemoryStore({f"{n:05}": 1 for n in range(5500)})
    assert sum(len(page) for page in list_in_parallel(store)) == 5500
    assert store.requests == 6


def test_a_failure_in_one_thread_is_raised_and_nothing_is_applied(tree: Tree) -> None:
    store = MemoryStore({f"{a}/{c:04}": 1 for a in "xyz" for c in range(900)})
    take_in(tree, store)
    store.sizes["x/new"] = 1
    store.error, store.fails_below = StoreError("down"), "z"
    with pytest.raises(StoreError, match="down"):
        take_in(tree, store)
    assert "x/new" not in paths(tree)
    assert len(paths(tree)) == 2700


NAMES = st.sampled_from(["a", "b", "c", "dd", "e f", "ü"])
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=4).map("/".join), st.integers(0, 3), max_size=25
)


@settings(max_examples=25, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=4))
def test_the_tree_equals_the_bucket_after_each_refresh(
    tmp_path_factory: pytest.TempPathFactory, buckets: list[dict[str, int]]
) -> None:
    tree = Tree(tmp_path_factory.mktemp("model") / "catalog.sqlite")
    versions: dict[str, tuple[int, int]] = {}
    for bucket in buckets:
        summary = take_in(tree, MemoryStore(bucket), in_use=False)
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


def test_another_mount_of_the_same_catalog_sees_the_changes(tmp_path: Path, tree: Tree) -> None:
    store = MemoryStore({"a": 1, "b": 1})
    two = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, store, in_use=False)
    assert two.changes_since(0, 100) == [], "the first listing is news to nobody"
    store.sizes = {"a": 2, "c": 1}
    take_in(tree, store)
    changes = two.changes_since(0, 100)
    assert {(change.name, bool(change.buried)) for change in changes} == {
        (b"a", True),
        (b"b", True),
        (b"c", False),
    }
    two.close()


def test_dead_nodes_are_purged_and_their_numbers_never_reused(tmp_path: Path) -> None:
    """The kernel may hold a number for as long as the mount lives."""
    store = MemoryStore({"a": 1, **{f"last{number}": 1 for number in range(5)}})

    def list_again(sizes: dict[str, int]) -> dict[str, int]:
        """A mount that starts clears away what is dead; what dies now, a reader may still hold."""
        tree = Tree(tmp_path / "catalog.sqlite")
        before = list(tree.files())
        store.sizes = sizes
        take_in(tree, store)
        found = numbers(tree)
        for node in before:
            assert tree.node(node.ino).dead == (node.ino not in found.values())
        tree.close()
        return found

    first = list_again(store.sizes)
    assert list_again({"a": 1}) == {"a": first["a"]}
    assert list_again({"a": 1, "new": 1})["new"] > max(first.values())
    again = Tree(tmp_path / "catalog.sqlite")
    with pytest.raises(Exception, match="not in the catalog"):
        again.node(first["last0"])
    again.close()


def test_a_file_that_becomes_a_directory_and_back_gets_new_numbers(tree: Tree) -> None:
    store, seen = MemoryStore({}), list[int]()
    for key in ("x", "x/y", "x"):
        store.sizes = {key: 1}
        take_in(tree, store)
        seen += [ino for path, ino in numbers(tree).items() if path in ("x", "x/")]
    assert len(set(seen)) == 3


ROWS = "INSERT INTO nodes VALUES (?, 1, ?, 0, ?, 0, 'v', ?)"


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """Files 2 to 100, each as large as its number; one directory, and one that is gone."""
    path = tmp_path / "odd ?name%20.sqlite"
    tree = Tree(path)
    files = [(number, b"%d" % number, number, 0) for number in range(2, 101)]
    tree.connection().executemany(ROWS, [*files, (101, b"folder", None, 0), (102, b"gone", 7, 1)])
    tree.close()
    return path


def test_sizes_are_sampled_beside_a_mount(catalog: Path) -> None:
    assert list(read_sizes(catalog, 1000)) == list(range(2, 101))
    assert list(read_sizes(catalog, 10)) == [11, 21, 31, 41, 51, 61, 71, 81, 91]


def test_sizes_are_read_from_a_rebuilt_catalog(catalog: Path) -> None:
    """Its numbers begin far from the first, and few of them are multiples of anything."""
    with closing(sqlite3.connect(catalog, isolation_level=None)) as database:
        database.execute("UPDATE nodes SET ino = ino + ? WHERE ino > 1", (1_700_000_000 << 24,))
    assert list(read_sizes(catalog, 10)) == [11, 21, 31, 41, 51, 61, 71, 81, 91]


def test_no_catalog_is_created_where_none_is(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"none\.sqlite"):
        read_sizes(tmp_path / "none.sqlite", 10)
    assert list(tmp_path.iterdir()) == []


# -- several stores: each has its own place, its own number and its own failures ---------------


def written(identity: str, *keys: str) -> MemoryStore:
    return MemoryStore(dict.fromkeys(keys, 10), identity)


A = written("a://", "x/1", "x/2", "y", "only/a")
B = written("b://", "1", "deep/2")


def test_a_path_belongs_to_the_deepest_mount_above_it() -> None:
    numbers = {"": 0, "a/b": 1}
    assert owner_of("a", numbers) == (0, "a")
    assert owner_of("a/b", numbers) == (1, "")
    assert owner_of("a/b/c", numbers) == (1, "c")
    assert owner_of("a/bc", numbers) == (0, "a/bc")
    assert owner_of("a", {"a/b": 1}) == (-1, "")
    assert covered_by_others("", ["", "a/b", "c"]) == ["a/b", "c"]
    assert covered_by_others("a", ["", "a/b", "ab", "a"]) == ["b"]


@pytest.mark.parametrize("paths", [["a", "a"], ["", ""], ["a/../b"], ["a/"], ["x" * 256], ["a\0"]])
def test_invalid_mount_paths_are_rejected(paths: list[str]) -> None:
    with pytest.raises(OptionError):
        check_paths(paths)


def test_inode_numbers_stay_when_other_sources_come_and_go(tree: Tree) -> None:
    first = list(numbered(tree, [Mounted("", A), Mounted("b", B)]))
    assert first == [0, 1]
    assert list(numbered(tree, [Mounted("b", B)])) == [1]
    # The same data elsewhere, and other data at the same place, are others.
    assert list(numbered(tree, [Mounted("c", B), Mounted("b", A), Mounted("", A)])) == [2, 3, 0]


def test_a_catalog_of_an_earlier_release_keeps_its_tree(tmp_path: Path) -> None:
    store = written("a://", "a/b")
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, store)
    before = numbers(tree)
    tree.connection().executescript("DROP TABLE sources; DROP TABLE hidden_of;")
    tree.connection().execute("INSERT INTO hidden VALUES ('odd//key', 'a reason')")
    tree.connection().execute(
        "INSERT OR REPLACE INTO meta VALUES ('hidden_counts', '{\"a reason\": 1}')"
    )
    tree.connection().close()
    tree.close()
    (tmp_path / "catalog.sqlite.sums").unlink()
    again = Tree(tmp_path / "catalog.sqlite")
    assert unlisted(again, [Mounted("", store)]) == []
    assert (again.totals(), again.hidden_counts()) == ((1, 10), {"a reason": 1})
    assert again.hidden(10) == [("odd//key", "a reason")]
    assert take_in(again, store).changed == 0
    assert (numbers(again), again.hidden(10)) == (before, [])
    again.close()


def test_inodes_of_mounted_sources_never_change(tree: Tree) -> None:
    take_in(tree, Mounted("s/b", B))
    before = numbers(tree)
    take_in(tree, Mounted("", A), Mounted("s/b", B))
    with_a = numbers(tree)
    assert before.items() <= with_a.items()
    take_in(tree, Mounted("", A), Mounted("s/b", B), Mounted("t", B))
    assert with_a.items() <= numbers(tree).items()
    take_in(tree, Mounted("s/b", B), Mounted("t", B))
    assert {name: ino for name, ino in numbers(tree).items() if name[0] != "t"} == before
    take_in(tree)
    assert numbers(tree) == {}
    assert tree.totals() == (0, 0)


def test_files_of_the_outer_source_keep_their_own_keys(tree: Tree) -> None:
    """Whichever comes first: a folder on the way to the inner one is the outer one's."""
    outer = written("a://", "s/outer", "s/b/hidden", "s/b")
    outer.sizes["s/b/"] = 0  # a marker that the inner one covers hides nothing
    for mounts in (
        (Mounted("s/b", B), Mounted("", outer)),
        (Mounted("", outer), Mounted("s/b", B)),
    ):
        take_in(tree, *mounts)
        found = numbers(tree)
        assert sorted(found) == ["s/", "s/b/", "s/b/1", "s/b/deep/", "s/b/deep/2", "s/outer"]
        assert tree.directory_path(found["s/"]) == "s"
        assert tree.directory_path(found["s/b/"]) == ""
        assert tree.directory_path(found["s/b/deep/"]) == "deep"
        assert [key for key, _ in tree.hidden(10)] == ["s/b", "s/b/hidden"]
        take_in(tree)


def test_a_path_that_is_mounted_over_dies_even_if_the_outer_source_cannot_be_listed(
    tree: Tree,
) -> None:
    outer = written("a://", "x/1", "x/2", "y")
    take_in(tree, Mounted("", outer))
    outer.error = StoreError("away")
    summary = take_in(tree, Mounted("", outer), Mounted("x", B), Mounted("y", B))
    assert [str(failure) for failure in summary.failures] == ["away"]
    assert sorted(numbers(tree)) == [
        "x/",
        "x/1",
        "x/deep/",
        "x/deep/2",
        "y/",
        "y/1",
        "y/deep/",
        "y/deep/2",
    ]
    rows = {row.number: (row.files, row.size_bytes) for row in tree.sources()}
    assert rows == {0: (0, 0), 1: (2, 20), 2: (2, 20)}
    assert [one.path for one in unlisted(tree, [Mounted("", outer), Mounted("x", B)])] == [""]


def test_a_listing_that_breaks_midway_leaves_its_source_unchanged(tree: Tree) -> None:
    inner = written("b://", "1", "2")
    take_in(tree, Mounted("a", A), Mounted("b", inner))
    before = numbers(tree)
    inner.sizes, inner.error = {"1": 10, "new": 10}, SourceError("broken")
    changed = written("a://", "x/1", "fresh")
    summary = take_in(tree, Mounted("a", changed), Mounted("b", inner))
    assert (summary.files, [failure.path for failure in summary.failures]) == (4, ["b"])
    found = numbers(tree)
    assert {name for name in found if name[0] == "b"} == {"b/", "b/1", "b/2"}
    assert found["b/2"] == before["b/2"]
    assert sorted(name for name in found if name[0] == "a") == ["a/", "a/fresh", "a/x/", "a/x/1"]


def test_the_number_of_changes_only_grows(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, Mounted("a", A))
    before = tree.change_number()
    take_in(tree, Mounted("a", A))
    assert tree.change_number() == before > 0
    tree.close()
    again = Tree(tmp_path / "catalog.sqlite")  # which clears away what everybody knows
    assert (again.change_number(), again.last_change()) == (before, 0)
    take_in(again, Mounted("a", A), Mounted("b", B))
    assert again.change_number() > before
    again.close()


def test_names_of_a_large_new_source_are_not_invalidated_one_by_one(tree: Tree) -> None:
    """No kernel can know a name in a folder that it does not know."""
    take_in(tree, Mounted("a", A))
    before = tree.last_change()
    many = written("m://", *(f"d/{n}" for n in range(500)), "top")
    take_in(tree, Mounted("a", A), Mounted("m", many))
    reported = [change.name for change in tree.changes_since(before, 1000)]
    assert sorted(reported) == [b"d", b"m", b"top"]


def test_the_limit_of_files_applies_to_all_sources_together(tree: Tree) -> None:
    mounts = [Mounted("a", A), Mounted("b", B)]
    summary = refresh(tree, mounts, lambda *_: None, most_files=6)
    assert [failure.path for failure in summary.failures] == ["b"]
    assert "more than 6 files" in str(summary.failures[0])
