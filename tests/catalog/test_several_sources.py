"""A catalog of several stores: each has its own place, its own number and its own failures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog.places import check_paths, covered_by_others, owner_of
from penstock.catalog.refresh import Mounted, Summary, numbered, refresh, unlisted
from penstock.catalog.tree import Tree
from penstock.errors import OptionError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo
from penstock.store.local import LocalStore
from penstock.store.removed import RemovedStore
from tests.support.catalogs import nodes_of
from tests.support.trees import write_tree


class Written(RemovedStore):
    """A store that lists what a test wrote down, or fails."""

    def __init__(self, identity: str, *keys: str, error: Exception | None = None) -> None:
        super().__init__(identity)
        self.keys = keys
        self.error = error

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        yield [ObjectInfo(key, 10, 0, "v1") for key in self.keys]
        if self.error is not None:
            raise self.error

    def list_level(self, prefix: str) -> Level | None:
        return None


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path / "catalog.sqlite")
    yield made
    made.close()


def take_in(tree: Tree, *mounts: Mounted) -> Summary:
    return refresh(tree, list(mounts), lambda *_: None, in_use=True)


def paths_of(tree: Tree) -> dict[str, int]:
    return {path: node.ino for path, node in nodes_of(tree).items()}


A = Written("a://", "x/1", "x/2", "y", "only/a")
B = Written("b://", "1", "deep/2")


def test_a_place_belongs_to_the_deepest_that_is_mounted_above_it() -> None:
    numbers = {"": 0, "a/b": 1}
    assert owner_of("a", numbers) == (0, "a")
    assert owner_of("a/b", numbers) == (1, "")
    assert owner_of("a/b/c", numbers) == (1, "c")
    assert owner_of("a/bc", numbers) == (0, "a/bc")
    assert owner_of("a", {"a/b": 1}) == (-1, "")
    assert covered_by_others("", ["", "a/b", "c"]) == ["a/b", "c"]
    assert covered_by_others("a", ["", "a/b", "ab", "a"]) == ["b"]


@pytest.mark.parametrize("paths", [["a", "a"], ["", ""], ["a/../b"], ["a/"], ["x" * 256], ["a\0"]])
def test_paths_that_cannot_be_mounted_at_are_refused(paths: list[str]) -> None:
    with pytest.raises(OptionError):
        check_paths(paths)


def test_numbers_stay_when_others_come_and_go(tree: Tree) -> None:
    first = list(numbered(tree, [Mounted("", A), Mounted("b", B)]))
    assert first == [0, 1]
    assert list(numbered(tree, [Mounted("b", B)])) == [1]
    # The same data elsewhere, and other data at the same place, are others.
    assert list(numbered(tree, [Mounted("c", B), Mounted("b", A), Mounted("", A)])) == [2, 3, 0]


def test_a_catalog_from_before_keeps_its_tree(tmp_path: Path) -> None:
    write_tree(tmp_path / "set", {"a/b": b"b"})
    store = LocalStore(str(tmp_path / "set"), Counters())
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, Mounted("", store))
    before = paths_of(tree)
    tree.connection().executescript("DROP TABLE sources; DROP TABLE hidden_of;")
    tree.connection().execute("INSERT INTO hidden VALUES ('odd//key', 'a reason')")
    tree.connection().execute(
        "INSERT OR REPLACE INTO meta VALUES ('hidden_counts', '{\"a reason\": 1}')"
    )
    tree.connection().close()
    tree.close()
    again = Tree(tmp_path / "catalog.sqlite")
    assert unlisted(again, [Mounted("", store)]) == []
    assert (again.totals(), again.hidden_counts()) == ((1, 1), {"a reason": 1})
    assert again.hidden(10) == [("odd//key", "a reason")]
    assert take_in(again, Mounted("", store)).changed == 0
    assert (paths_of(again), again.hidden(10)) == (before, [])
    again.close()


def test_inodes_of_what_is_still_mounted_never_change(tree: Tree) -> None:
    take_in(tree, Mounted("s/b", B))
    before = paths_of(tree)
    take_in(tree, Mounted("", A), Mounted("s/b", B))
    with_a = paths_of(tree)
    assert before.items() <= with_a.items()
    take_in(tree, Mounted("", A), Mounted("s/b", B), Mounted("t", B))
    assert with_a.items() <= paths_of(tree).items()
    take_in(tree, Mounted("s/b", B), Mounted("t", B))
    assert {name: ino for name, ino in paths_of(tree).items() if name[0] != "t"} == before
    take_in(tree)
    assert paths_of(tree) == {}
    assert tree.totals() == (0, 0)


def test_files_of_the_outer_one_have_the_keys_that_they_have_there(tree: Tree) -> None:
    """Whichever comes first: a folder on the way to the inner one is the outer one's."""
    outer = Written("a://", "s/outer", "s/b/hidden", "s/b")
    for mounts in (
        (Mounted("s/b", B), Mounted("", outer)),
        (Mounted("", outer), Mounted("s/b", B)),
    ):
        take_in(tree, *mounts)
        found = paths_of(tree)
        assert sorted(found) == ["s/", "s/b/", "s/b/1", "s/b/deep/", "s/b/deep/2", "s/outer"]
        assert tree.directory_path(found["s/"]) == "s"
        assert tree.directory_path(found["s/b/"]) == ""
        assert tree.directory_path(found["s/b/deep/"]) == "deep"
        assert [key for key, _ in tree.hidden(10)] == ["s/b", "s/b/hidden"]
        take_in(tree)


def test_what_is_mounted_over_dies_also_if_the_outer_one_cannot_be_listed(tree: Tree) -> None:
    outer = Written("a://", "x/1", "x/2", "y")
    take_in(tree, Mounted("", outer))
    outer.error = StoreError("away")
    summary = take_in(tree, Mounted("", outer), Mounted("x", B), Mounted("y", B))
    assert [str(failure) for failure in summary.failures] == ["away"]
    assert sorted(paths_of(tree)) == [
        "x/", "x/1", "x/deep/", "x/deep/2", "y/", "y/1", "y/deep/", "y/deep/2"
    ]  # fmt: skip
    rows = {row.number: (row.files, row.size_bytes) for row in tree.sources()}
    assert rows == {0: (0, 0), 1: (2, 20), 2: (2, 20)}
    assert [one.path for one in unlisted(tree, [Mounted("", outer), Mounted("x", B)])] == [""]


def test_a_listing_that_breaks_in_the_middle_leaves_its_source_as_it_was(tree: Tree) -> None:
    inner = Written("b://", "1", "2")
    take_in(tree, Mounted("a", A), Mounted("b", inner))
    before = paths_of(tree)
    inner.keys, inner.error = ("1", "new"), SourceError("broken")
    changed = Written("a://", "x/1", "fresh")
    summary = take_in(tree, Mounted("a", changed), Mounted("b", inner))
    assert (summary.files, [failure.path for failure in summary.failures]) == (4, ["b"])
    found = paths_of(tree)
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


def test_a_million_names_of_a_new_source_are_not_told_one_by_one(tree: Tree) -> None:
    """No kernel can know a name in a folder that it does not know."""
    take_in(tree, Mounted("a", A))
    before = tree.last_change()
    many = Written("m://", *(f"d/{n}" for n in range(500)), "top")
    take_in(tree, Mounted("a", A), Mounted("m", many))
    told = [change.name for change in tree.changes_since(before, 1000)]
    assert sorted(told) == [b"d", b"m", b"top"]


def test_more_files_than_are_allowed_are_those_of_all_together(tree: Tree) -> None:
    mounts = [Mounted("a", A), Mounted("b", B)]
    summary = refresh(tree, mounts, lambda *_: None, most_files=6)
    assert [failure.path for failure in summary.failures] == ["b"]
    assert "more than 6 files" in str(summary.failures[0])
