"""Catalogs as dictionaries, and a store that lists whatever a test gives it."""

from collections.abc import Callable, Iterator

from penstock.catalog.tree import ROOT, Node, Tree
from penstock.store import ObjectInfo
from penstock.store.removed import RemovedStore

NOW_NS = 1_700_000_000_000_000_000


def entry(key: str, size: int = 1, mtime_ns: int = NOW_NS, version: str = "v") -> ObjectInfo:
    return ObjectInfo(key, size, mtime_ns, version)


class Pages(RemovedStore):
    """A store that lists these pages, however odd they are."""

    def __init__(self, pages: Callable[[], Iterator[list[ObjectInfo]]]) -> None:
        super().__init__("odd://store")
        self.pages = pages

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        return self.pages()


def nodes_of(tree: Tree) -> dict[str, Node]:
    """Every node that is shown, by its path. Paths of folders end in a slash."""
    found: dict[str, Node] = {}
    waiting = [(ROOT, "")]
    while waiting:
        ino, above = waiting.pop()
        after = 0
        while nodes := tree.children(ino, after, 50):
            for node in nodes:
                path = f"{above}{node.name.decode()}{'/' if node.is_directory else ''}"
                found[path] = node
                if node.is_directory:
                    waiting.append((node.ino, path))
            after = nodes[-1].ino
    return found
