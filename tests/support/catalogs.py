"""Catalogs as dictionaries, and a store that lists whatever a test gives it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from typing_extensions import Buffer

from penstock.catalog.tree import ROOT, Node, Tree
from penstock.store import Level, ObjectInfo

NOW_NS = 1_700_000_000_000_000_000


def entry(key: str, size: int = 1, mtime_ns: int = NOW_NS, version: str = "v") -> ObjectInfo:
    return ObjectInfo(key, size, mtime_ns, version)


@dataclass
class Pages:
    """A store that lists these pages, however odd they are."""

    pages: Callable[[], Iterator[list[ObjectInfo]]]
    identity: str = "odd://store"

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        return self.pages()

    def list_level(self, prefix: str) -> Level | None:
        return None

    def get(self, key: str, version: str, start: int, length: int, size_bytes: int) -> Buffer:
        raise AssertionError("nothing is read")

    def why_unreadable(self, key: str) -> str | None:
        return None


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
