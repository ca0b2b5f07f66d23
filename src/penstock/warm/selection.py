"""Select files by paths, folders and patterns, looked up in the catalog.

A pattern has `*`, `?` and `[…]` for parts of one name, and `**` for any number of folders. If a
file or folder has exactly the given name, it is selected, whatever characters are in the name. A
folder selects everything below it. A path that does not exist is an error, reported before anything
begins.

Threading: one thread; the tree is read from the catalog, not through the mount.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator

from penstock.catalog.file_set import FileSet, Selection
from penstock.catalog.names import decode, encode
from penstock.catalog.tree import ROOT, Node, Tree
from penstock.errors import NoSuchPath, nearest

_CHILDREN_AT_ONCE = 1000
_PICKED_AT_ONCE = 1000
_NAMES_COMPARED = 10_000  # to suggest the closest one
_ANY_FOLDERS = "**"


def select(
    tree: Tree,
    patterns: Iterable[str],
    listed: Iterable[str],
    order: str,
    *,
    everything: bool,
    skip_missing: bool = False,
) -> Selection:
    """Select files by `patterns`, and by `listed` paths without pattern characters; all relative to
    the root. `everything` selects the whole tree. `skip_missing` applies to the listed paths."""
    chosen = _Selector(tree)
    if everything:
        chosen.add_folder(ROOT)
    for pattern in patterns:
        if not chosen.add_path(pattern) and not chosen.add_pattern(pattern):
            raise NoSuchPath(
                f"{pattern}: no path on the mount has this name or matches it",
                hint=_nearest(tree, pattern),
            )
    missing, first = 0, ""
    for path in listed:
        if not chosen.add_path(path):
            missing, first = missing + 1, first or path
    if missing and not skip_missing:
        more = f", and {missing - 1:,} more of the list" if missing > 1 else ""
        raise NoSuchPath(f"{first} is not on the mount{more}", hint=_nearest(tree, first))
    return chosen.take(order)


class _Selector:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._picked = FileSet(tree)
        self._pending: list[int] = []
        self._folder: tuple[str, Node | None] | None = None  # of the previous path: mostly the same

    def add_path(self, path: str) -> bool:
        node = self._find(path)
        if node is not None:
            self._add(node)
        return node is not None

    def add_pattern(self, pattern: str) -> bool:
        """Return False if nothing matches."""
        parts: list[str] = []
        for part in pattern.split("/"):
            if part not in ("", ".") and not (part == _ANY_FOLDERS == "".join(parts[-1:])):
                parts.append(part)
        if not any(map(_is_pattern, parts)):
            return False
        return self._descend(ROOT, parts)

    def add_folder(self, ino: int) -> None:
        self._picked.add_below(ino)

    def take(self, order: str) -> Selection:
        self._picked.add(self._pending)
        return self._picked.take(order)

    def _descend(self, folder: int, parts: list[str]) -> bool:
        part, rest = parts[0], parts[1:]
        if part == _ANY_FOLDERS and not rest:
            self.add_folder(folder)
            return True
        if part == _ANY_FOLDERS:
            found = self._descend(folder, rest)
            for child in self._children(folder, lambda _name: True):
                if child.is_directory:
                    found = self._descend(child.ino, parts) or found
            return found
        if not _is_pattern(part):
            child = self._tree.lookup(folder, encode(part))
            return child is not None and self._match_rest(child, rest)
        found = False
        for child in self._children(folder, _matcher(part)):
            found = self._match_rest(child, rest) or found
        return found

    def _match_rest(self, node: Node, rest: list[str]) -> bool:
        if rest:
            return node.is_directory and self._descend(node.ino, rest)
        self._add(node)
        return True

    def _add(self, node: Node) -> None:
        if node.is_directory:
            self.add_folder(node.ino)
            return
        self._pending.append(node.ino)
        if len(self._pending) >= _PICKED_AT_ONCE:
            self._picked.add(self._pending)
            self._pending.clear()

    def _find(self, path: str) -> Node | None:
        folder, _, name = path.rpartition("/")
        if self._folder is None or self._folder[0] != folder:
            node: Node | None = self._tree.node(ROOT)
            for part in folder.split("/"):
                node = self._child(node, part)
            self._folder = folder, node
        return self._child(self._folder[1], name)

    def _child(self, folder: Node | None, name: str) -> Node | None:
        if folder is None or name in ("", "."):
            return folder
        return self._tree.lookup(folder.ino, encode(name)) if folder.is_directory else None

    def _children(self, folder: int, matches: Callable[[str], object]) -> Iterator[Node]:
        after = 0
        while some := self._tree.children(folder, after, _CHILDREN_AT_ONCE):
            yield from (node for node in some if matches(decode(node.name)))
            after = some[-1].ino


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


def _matcher(part: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(part)).match


def _nearest(tree: Tree, path: str) -> str | None:
    """Return a hint with the closest name, in the folder where the path stops to exist."""
    folder, known = tree.node(ROOT), ""
    for part in path.split("/"):
        if part in ("", "."):
            continue
        child = tree.lookup(folder.ino, encode(part))
        if child is not None and child.is_directory:
            folder, known = child, f"{known}{part}/"
            continue
        names = [decode(node.name) for node in tree.children(folder.ino, 0, _NAMES_COMPARED)]
        near = nearest(part, names)
        return f"did you mean {known}{near}?" if near else None
    return None
