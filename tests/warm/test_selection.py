"""Which files paths, folders and patterns mean, in a catalog of real keys."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.catalog.tree import Tree
from penstock.errors import NoSuchPath
from penstock.warm.selection import select
from tests.support.catalogs import nodes_of
from tests.support.gated_set import MakeSet

FILES = {
    "a.txt": 3, "b.txt": 1, "train/n1/x.jpg": 5, "train/n1/y.png": 4, "train/n2/x.jpg": 9,
    "train/n2/deep/er/x.jpg": 2, "train/.hidden": 7, "val/n1/x.jpg": 6, "val/[1]*.jpg": 8,
    "val/1.jpg": 10, "train-2/x.jpg": 11,
}  # fmt: skip


@pytest.fixture
def tree(make_set: MakeSet, tmp_path: Path) -> Tree:
    some = make_set({name: bytes(size) for name, size in FILES.items()})
    for name, size in FILES.items():  # the smallest is the newest
        os.utime(tmp_path / "set" / name, (2e9 - size, 2e9 - size))
    some.refresh()
    return some.tree


def names(
    tree: Tree,
    patterns: Sequence[str] = (),
    listed: Sequence[str] = (),
    order: str = "name",
    *,
    everything: bool = False,
) -> list[str]:
    picked = select(tree, patterns, listed, order, everything=everything)
    paths = {node.ino: path for path, node in nodes_of(tree).items()}
    found = [paths[ino] for ino in picked.inos]
    assert picked.size_bytes == sum(FILES[name] for name in found)
    return found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.txt", ["a.txt"]),
        ("./train//n1/", ["train/n1/x.jpg", "train/n1/y.png"]),
        ("train/*/x.jpg", ["train/n1/x.jpg", "train/n2/x.jpg"]),
        ("train/**/x.jpg", ["train/n1/x.jpg", "train/n2/x.jpg", "train/n2/deep/er/x.jpg"]),
        ("**/**/deep/**", ["train/n2/deep/er/x.jpg"]),
        ("**/[!a-w].jpg", ["train-2/x.jpg", "train/n1/x.jpg", "train/n2/x.jpg",
                           "train/n2/deep/er/x.jpg", "val/1.jpg", "val/n1/x.jpg"]),
        ("train/*", ["train/.hidden", "train/n1/x.jpg", "train/n1/y.png", "train/n2/x.jpg",
                     "train/n2/deep/er/x.jpg"]),
        ("val/[1]*.jpg", ["val/[1]*.jpg"]),  # there is one of that name
        ("val/[12].jpg", ["val/1.jpg"]),
        ("", sorted(FILES)),
    ],
)  # fmt: skip
def test_a_pattern_selects(tree: Tree, pattern: str, expected: list[str]) -> None:
    assert sorted(names(tree, [pattern])) == sorted(expected)


def test_a_path_named_twice_is_selected_once_and_a_list_has_no_patterns(tree: Tree) -> None:
    found = names(tree, ["train", "train/n1", "**/x.jpg"], ["train/n1/x.jpg", "train"])
    assert len(found) == len(set(found)) == 7
    assert names(tree, listed=["val/[1]*.jpg"]) == ["val/[1]*.jpg"]
    with pytest.raises(NoSuchPath, match=r"\*\.txt is not on the mount"):
        names(tree, listed=["*.txt"])


def test_files_are_ordered_by_folder_size_or_date(tree: Tree) -> None:
    found = names(tree, everything=True)
    assert sorted(found) == sorted(FILES)
    assert found == sorted(found, key=lambda name: (name.rpartition("/")[0], name))
    largest, newest = (names(tree, order=order, everything=True) for order in ("largest", "newest"))
    assert [FILES[name] for name in largest] == sorted(FILES.values(), reverse=True)
    assert newest == largest[::-1]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("train/n1/x.jpeg", "did you mean train/n1/x.jpg?"),
        ("a.txt/b", "did you mean a.txt?"),
        ("../etc", None),
        ("zzzzzzzz", None),
        ("train/*.gif", None),
    ],
)
def test_a_missing_path_is_named_with_the_nearest_one(
    tree: Tree, path: str, hint: str | None
) -> None:
    with pytest.raises(NoSuchPath) as caught:
        names(tree, [path])
    assert path in str(caught.value)
    assert caught.value.hint == (hint or NoSuchPath.default_hint)
