"""A look at a catalog's sizes, beside the mount that uses it."""

from pathlib import Path

import pytest

from penstock.catalog.sizes import read_sizes
from penstock.catalog.tree import Tree
from penstock.errors import PenstockError

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


def test_all_sizes_are_read_if_there_are_few(catalog: Path) -> None:
    assert list(read_sizes(catalog, 1000)) == list(range(2, 101))


def test_of_many_files_every_so_manieth_is_read(catalog: Path) -> None:
    assert list(read_sizes(catalog, 10)) == [11, 22, 33, 44, 55, 66, 77, 88, 99]


def test_nothing_is_made_where_no_catalog_is(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"none\.sqlite"):
        read_sizes(tmp_path / "none.sqlite", 10)
    assert list(tmp_path.iterdir()) == []
