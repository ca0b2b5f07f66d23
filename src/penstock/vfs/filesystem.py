"""The tree as a file system: lookup, list, read. One screen of the way of a read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.cache.identity import CachedObject, identify
from penstock.cache.tiered import Cache, Done, Fetch
from penstock.catalog.names import decode
from penstock.catalog.tree import ROOT, Node, Tree
from penstock.errors import ObjectChanged, ObjectNotFound, StaleInode
from penstock.store import Store
from penstock.vfs.neighbours import Neighbours
from penstock.vfs.readahead import Readahead

# Nodes remembered between requests; when full, all are dropped (a lookup costs 5 us). Small,
# because what the kernel knows it does not ask for again.
_NODES_REMEMBERED = 16_384


class File(NamedTuple):
    node: Node
    what: CachedObject
    fetch: Fetch


class FileSystem:
    def __init__(
        self, tree: Tree, stores: Mapping[int, Store], cache: Cache, readahead: Readahead,
        on_outdated: Callable[[], None], neighbours: Neighbours | None = None,
    ) -> None:  # fmt: skip
        """`stores`: by their numbers in the tree, with those that readers may still hold files
        of."""
        self.tree = tree
        self.cache = cache
        self._stores = stores
        self._readahead = readahead
        self._on_outdated = on_outdated
        self._neighbours = neighbours
        self._nodes: dict[int, Node] = {}
        self._files: dict[int, File] = {}
        self._paths: dict[int, str] = {}
        self._folders: dict[bytes, int] = {}

    # -- names --------------------------------------------------------------------------

    def node(self, ino: int) -> Node:
        node = self._nodes.get(ino)
        return node if node is not None else self._remember(self.tree.node(ino))

    def lookup(self, parent: int, name: bytes) -> Node | None:
        node = self.tree.lookup(parent, name)
        return self._remember(node) if node is not None else None

    def find(self, path: bytes) -> Node | None:
        """By its path below the root."""
        folder, _, name = path.rpartition(b"/")
        parent = self._folder(folder)
        return None if parent is None else self.lookup(parent, name)

    def find_many(self, paths: Sequence[bytes]) -> list[Node | None]:
        """The same for many at once."""
        places: list[tuple[int, bytes]] = []
        for path in paths:
            folder, _, name = path.rpartition(b"/")
            places.append((self._folder(folder) or 0, name))
        found = {(node.parent, node.name): node for node in self.tree.lookup_many(places)}
        for node in found.values():
            self._remember(node)
        return [found.get(place) for place in places]

    def path_of(self, node: Node) -> bytes:
        """Its path below the root."""
        names = [node.name]
        while node.parent != ROOT:
            node = self.node(node.parent)
            names.append(node.name)
        return b"/".join(reversed(names))

    def children(self, ino: int, after: int, limit: int) -> list[Node]:
        return [self._remember(node) for node in self.tree.children(ino, after, limit)]

    def totals(self) -> tuple[int, int]:
        return self.tree.totals()

    # -- bytes --------------------------------------------------------------------------

    def read_now(self, ino: int, offset: int, length: int) -> list[memoryview] | None:
        """What is in the local cache; None if something has to be waited for."""
        file = self._file(ino)
        if file.what.size_bytes > self.cache.block_bytes:
            self._readahead.observe(file.what, file.fetch, offset, length)
        elif offset == 0 and self._neighbours is not None:
            self._neighbours.observe(file.node.parent, ino)
        return self.cache.read_now(file.what, offset, length)

    def read(self, ino: int, offset: int, length: int, done: Done) -> None:
        """For after `read_now` has said None. Returns at once; `done` is called once, by whichever
        thread has the bytes, or knows that they will not come."""
        file = self._file(ino)

        def finish(result: list[memoryview] | Exception) -> None:
            if isinstance(result, (ObjectChanged, ObjectNotFound)):
                # The bucket is ahead of our listing: look again soon, and never mix versions.
                if not file.node.dead:
                    self._on_outdated()
                result = StaleInode(str(result))
            done(result)

        self.cache.deliver(file.what, file.fetch, offset, length, finish)

    def file(self, ino: int) -> File:
        """What the cache is asked for, for those who fetch ahead."""
        return self._file(ino)

    def object_of(self, node: Node) -> CachedObject:
        """The same of a file that is not worth remembering."""
        return self._open(node).what

    def note_outdated(self) -> None:
        """The bucket is ahead of our listing: look again soon."""
        self._on_outdated()

    def cached_bytes(self, ino: int) -> int:
        return self.cache.cached_bytes(self._file(ino).what)

    def complete_file(self, ino: int) -> Path | None:
        """The plain file that holds all of it, if the cache has one."""
        return self.cache.complete_file(self._file(ino).what)

    def outdate(self, buried: list[int]) -> None:
        """After a refresh: these inodes died, and what is remembered may be outdated."""
        files = [self.tree.node(ino) for ino in buried]
        self._files = {}
        self._nodes = {}
        self._folders = {}
        self.cache.outdate([self._open(node).what for node in files if not node.is_directory])

    # -- inside -------------------------------------------------------------------------

    def _folder(self, path: bytes) -> int | None:
        if not path:
            return ROOT
        ino = self._folders.get(path)
        if ino is None:
            node = self.find(path)
            if node is None or not node.is_directory:
                return None
            if len(self._folders) >= _NODES_REMEMBERED:
                self._folders = {}
            ino = self._folders[path] = node.ino
        return ino

    def _remember(self, node: Node) -> Node:
        if len(self._nodes) >= _NODES_REMEMBERED:
            self._nodes = {}
        self._nodes[node.ino] = node
        return node

    def _file(self, ino: int) -> File:
        file = self._files.get(ino)
        if file is None:
            if len(self._files) >= _NODES_REMEMBERED:
                self._files = {}
            file = self._files[ino] = self._open(self.node(ino))
        return file

    def _open(self, node: Node) -> File:
        if node.size_bytes is None:
            raise IsADirectoryError(node.ino)
        store = self._stores.get(node.source)
        if store is None:
            raise StaleInode(f"inode {node.ino} is of a source that was not mounted here")
        folder = self._paths.get(node.parent)
        if folder is None:
            if len(self._paths) >= _NODES_REMEMBERED:
                self._paths = {}
            folder = self._paths[node.parent] = self.tree.directory_path(node.parent)
        name = decode(node.name)
        key = f"{folder}/{name}" if folder else name
        version, size = node.version or "", node.size_bytes

        def fetch(start: int, length: int) -> Buffer:
            return store.get(key, version, start, length, size)

        what = identify(store.identity, key, version, size, self.cache.block_bytes)
        return File(node, what, fetch)
