"""The catalog's tree as a file system: lookup, list, read. A read passes `read_now`, and
`read` where bytes must be fetched."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from typing_extensions import Buffer

from penstock.cache.fetch import BeginGet, FetchJob, GetRange
from penstock.cache.identity import Block, CachedObject, block_of, identify
from penstock.cache.tiered import Cache, OnData
from penstock.catalog.names import decode
from penstock.catalog.tree import ROOT, Node, Tree
from penstock.errors import ObjectChanged, ObjectNotFound, StaleInode
from penstock.store import Pending, Progress, Store
from penstock.vfs.random_reads import LARGEST_REQUEST_BYTES, LEAST_FILE_BYTES
from penstock.vfs.readahead import Ahead, Readahead

# Nodes remembered between requests; when full, all are dropped (a lookup costs 5 us). Small,
# because the kernel does not request again what it caches.
_NODES_REMEMBERED = 16_384
# Memory that processes share, in words of 8 bytes: the tree's generation, and from the second word
# on pairs of a stale inode and until when it is stale (ms). A later inode may overwrite an earlier
# one, which is then merely found stale again.
SHARED_WORDS = 512
_STALE_PLACES = SHARED_WORDS // 2 - 1
_STALE_MS = 1000


class File(NamedTuple):
    node: Node
    obj: CachedObject
    get: GetRange
    begin: BeginGet
    block: Block | None  # the whole object, if it has one block


class SmallReadObserver(Protocol):
    """Observes small files that are read from their beginning."""

    def observe(self, parent: int, ino: int, *, is_stored: bool) -> None: ...


class RandomReadObserver(Protocol):
    """Observes requests for cached bytes of large files that may be random reads."""

    def observe(self, ino: int, obj: CachedObject, offset: int, length: int) -> None: ...


class RemotePrefetch(Protocol):
    """Prefetches in the other processes that serve this mount."""

    def prefetch(self, ino: int, obj: CachedObject, number: int, window: int) -> bool:
        """Send a block to the process that owns it for prefetch; False if that is this process."""
        ...


class FileSystem:
    def __init__(
        self,
        tree: Tree,
        stores: Mapping[int, Store],
        cache: Cache,
        readahead: Readahead,
        on_outdated: Callable[[], None],
        small_reads: SmallReadObserver | None = None,
        remote: RemotePrefetch | None = None,
        shared: "list[int] | memoryview[int] | None" = None,
        random_reads: RandomReadObserver | None = None,
    ) -> None:
        """`stores`: by their numbers in the tree, removed sources included while readers may hold
        their files. `shared`: `SHARED_WORDS` words, which other processes may share."""
        self.tree = tree
        self.cache = cache
        self._stores = stores
        self._readahead = readahead
        self._on_outdated = on_outdated
        self._small_reads = small_reads
        self._remote = remote
        self._random_reads = random_reads
        self._shared = [0] * SHARED_WORDS if shared is None else shared
        self._remembered_generation = self._shared[0]
        self._nodes: dict[int, Node] = {}
        self._files: dict[int, File] = {}
        self._paths: dict[int, str] = {}
        self._folders: dict[bytes, int] = {}

    # -- names --------------------------------------------------------------------------

    def node(self, ino: int) -> Node:
        if self._shared[0] != self._remembered_generation:
            self._forget()
        node = self._nodes.get(ino)
        return node if node is not None else self._remember(self.tree.node(ino))

    def lookup(self, parent: int, name: bytes) -> Node | None:
        node = self.tree.lookup(parent, name)
        return self._remember(node) if node is not None else None

    def find(self, path: bytes) -> Node | None:
        """Return the node at a path below the root."""
        folder, _, name = path.rpartition(b"/")
        parent = self._folder(folder)
        return None if parent is None else self.lookup(parent, name)

    def find_many(self, paths: Sequence[bytes]) -> list[Node | None]:
        """Return the nodes at many paths."""
        places: list[tuple[int, bytes]] = []
        for path in paths:
            folder, _, name = path.rpartition(b"/")
            places.append((self._folder(folder) or 0, name))
        found = {(node.parent, node.name): node for node in self.tree.lookup_many(places)}
        for node in found.values():
            self._remember(node)
        return [found.get(place) for place in places]

    def path_of(self, node: Node) -> bytes:
        """Return the node's path below the root."""
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
        """Return what memory or the local cache holds; None if anything must be fetched."""
        file = self._file(ino)
        if self._shared[_stale_place(ino)] == ino:
            self._refuse_stale(file)
        if file.block is None:
            return self._read_large_now(file, offset, length)
        size = file.obj.size_bytes
        if offset >= size:
            return []
        data = self.cache.read_block(file.block, offset, min(offset + length, size))
        if offset == 0 and self._small_reads is not None:
            self._small_reads.observe(file.node.parent, ino, is_stored=data is not None)
        if data is None:
            return None
        if size > LEAST_FILE_BYTES:
            self._note_random_read(file, offset, length)
        return [data]

    def _read_large_now(self, file: File, offset: int, length: int) -> list[memoryview] | None:
        block = block_of(file.obj, offset // self.cache.block_bytes, self.cache.block_bytes)
        in_memory = self.cache.fetches.find(block) is not None
        parts = self.cache.read_now(file.obj, offset, length)
        if parts is not None:
            is_stored = not in_memory
            self._prefetch(
                file, self._readahead.observe(file.obj, offset, length, is_stored=is_stored)
            )
            self._note_random_read(file, offset, length)
        return parts

    def _note_random_read(self, file: File, offset: int, length: int) -> None:
        if length < LARGEST_REQUEST_BYTES and self._random_reads is not None:
            self._random_reads.observe(file.node.ino, file.obj, offset, length)

    def read(
        self, ino: int, offset: int, length: int, done: OnData, *, return_job: bool = False
    ) -> FetchJob | None:
        """Read after `read_now` returned None.

        It returns at once; `done` is called once, by the thread that has the bytes or the error.
        `return_job`: see Cache.
        """
        file = self._file(ino)

        def finish(result: list[memoryview] | Exception) -> None:
            if isinstance(result, (ObjectChanged, ObjectNotFound)):
                # The bucket is newer than our listing: list it again soon, and never mix versions.
                if not file.node.dead:
                    self._on_outdated()
                self._note_stale(ino)
                result = StaleInode(str(result))
            done(result)

        ahead = None
        if file.block is None:
            ahead = self._readahead.observe(file.obj, offset, length, is_stored=False)
        job = self.cache.deliver(
            file.obj, file.get, offset, length, finish, return_job=return_job, begin=file.begin
        )
        if ahead is not None:
            self._prefetch(file, ahead)
        return job

    def _note_stale(self, ino: int) -> None:
        """Remember that the inode is stale. The kernel repeats a READ that failed, page by page. If
        the first pages were then answered from the cache, the reader would get a short read."""
        place = _stale_place(ino)
        self._shared[place + 1] = int(time.monotonic() * 1000) + _STALE_MS
        self._shared[place] = ino

    def _refuse_stale(self, file: File) -> None:
        if time.monotonic() * 1000 < self._shared[_stale_place(file.node.ino) + 1]:
            raise StaleInode(f"{file.obj.key} has changed in the bucket")

    def _prefetch(self, file: File, ahead: Ahead) -> None:
        for number in ahead.numbers:
            if not self._prefetch_one(file, number, ahead.window):
                break

    def _prefetch_one(self, file: File, number: int, window: int) -> bool:
        remote, ino = self._remote, file.node.ino
        if remote is not None and remote.prefetch(ino, file.obj, number, window):
            return True
        return self.prefetch(ino, number, window)

    def prefetch(self, ino: int, number: int, window: int) -> bool:
        """Start fetching a block ahead of its reader, in this process; False if there is no room
        for it."""
        file = self._file(ino)
        self._readahead.expect(file.obj, number, window)
        return self.cache.prefetch(file.obj, file.get, number)

    def block_at(self, ino: int, offset: int) -> tuple[CachedObject, int]:
        """Return the object, and the number of the block in which a read from `offset` begins."""
        return self._file(ino).obj, offset // self.cache.block_bytes

    def file(self, ino: int) -> File:
        """Return what the cache needs to fetch the file."""
        return self._file(ino)

    def object_of(self, node: Node) -> CachedObject:
        """Return the object of a file without remembering it."""
        return self._open(node).obj

    def note_outdated(self) -> None:
        """The bucket is newer than our listing: list it again soon."""
        self._on_outdated()

    def cached_bytes(self, ino: int) -> int:
        return self.cache.cached_bytes(self._file(ino).obj)

    def complete_file(self, ino: int) -> Path | None:
        """Return the plain file that holds the whole object, if the cache has one."""
        return self.cache.complete_file(self._file(ino).obj)

    def mark_outdated(self, buried: list[int]) -> None:
        """After a refresh: forget remembered nodes, and mark the objects of these dead inodes in
        the cache."""
        self._shared[0] += 1
        self._forget()
        objects: list[CachedObject] = []
        for node in self.tree.nodes(buried).values():
            if not node.is_directory:
                with suppress(StaleInode):  # its folder's path was on a damaged page
                    objects.append(self._open(node).obj)
        self.cache.mark_outdated(objects)

    # -- inside -------------------------------------------------------------------------

    def _folder(self, path: bytes) -> int | None:
        if not path:
            return ROOT
        if self._shared[0] != self._remembered_generation:
            self._forget()
        ino = self._folders.get(path)
        if ino is None:
            node = self.find(path)
            if node is None or not node.is_directory:
                return None
            if len(self._folders) >= _NODES_REMEMBERED:
                self._folders = {}
            ino = self._folders[path] = node.ino
        return ino

    def _forget(self) -> None:
        # Set first: later lookups are of this generation, or of a later one.
        self._remembered_generation = self._shared[0]
        self._files = {}
        self._nodes = {}
        self._folders = {}

    def _remember(self, node: Node) -> Node:
        if len(self._nodes) >= _NODES_REMEMBERED:
            self._nodes = {}
        self._nodes[node.ino] = node
        return node

    def _file(self, ino: int) -> File:
        if self._shared[0] != self._remembered_generation:
            self._forget()
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
            raise StaleInode(f"inode {node.ino} belongs to a source that is not mounted here")
        folder = self._paths.get(node.parent)
        if folder is None:
            if len(self._paths) >= _NODES_REMEMBERED:
                self._paths = {}
            folder = self._paths[node.parent] = self.tree.directory_path(node.parent)
        name = decode(node.name)
        key = f"{folder}/{name}" if folder else name
        version, size = node.version or "", node.size_bytes

        def get(start: int, length: int, progress: Progress | None = None) -> Buffer:
            return store.get(key, version, start, length, size, progress)

        def begin() -> Pending | None:
            return store.begin(key, version, size)

        block_bytes = self.cache.block_bytes
        obj = identify(store.identity, key, version, size, block_bytes)
        block = block_of(obj, 0, block_bytes) if size <= block_bytes else None
        return File(node, obj, get, begin, block)


def _stale_place(ino: int) -> int:
    return 2 + 2 * (ino % _STALE_PLACES)
