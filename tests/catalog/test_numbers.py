"""Inode numbers: the kernel may hold one for as long as the mount lives."""

from pathlib import Path

from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from tests.support.catalogs import Pages, entry, nodes_of


def test_a_number_is_never_used_again_also_when_its_node_is_cleared_away(tmp_path: Path) -> None:
    keys: list[str] = ["a", "b", "last"]

    def list_again() -> dict[str, int]:
        """A mount that starts clears away what is dead."""
        tree = Tree(tmp_path / "catalog.sqlite")
        store = Pages(lambda: iter([[entry(key) for key in keys]]))
        refresh(tree, [Mounted("", store)], lambda *_: None)
        numbers = {path: node.ino for path, node in nodes_of(tree).items()}
        tree.close()
        return numbers

    first = list_again()
    keys.remove("last")
    assert list_again() == {name: first[name] for name in keys}
    keys.append("new")
    assert list_again()["new"] > max(first.values())
