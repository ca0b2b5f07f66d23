"""What lies on a disk: catalog, index and files of a cache, with bytes changed by whatever."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.cache.worker_tier import WorkerDirectory
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import ROOT, Node, Tree
from penstock.errors import PenstockError
from tests.fuzz.target import Check, Target, watching
from tests.support.cache_fill import (
    BLOCK,
    DATA,
    OBJECTS,
    blocks_of,
    empty,
    fill,
    let_go_of_connections,
    open_cache,
    use,
)
from tests.support.cache_samples import Disk
from tests.support.catalogs import Pages, entry

_EDIT_BYTES = 5  # where (4), and what is flipped there (1)
_MOST_EDITS = 64


class _Edit(NamedTuple):
    at: int
    flip: int


def _edits(data: bytes) -> list[_Edit]:
    chunks = [data[n : n + _EDIT_BYTES] for n in range(0, len(data), _EDIT_BYTES)]
    return [_Edit(int.from_bytes(one[:4], "little"), one[-1]) for one in chunks[:_MOST_EDITS]]


def _apply(edits: list[_Edit], file: Path) -> bool:
    """Whether anything is different now."""
    before = file.read_bytes()
    content = bytearray(before)
    for edit in edits:
        content[edit.at % len(content)] ^= edit.flip
    file.write_bytes(content)
    return content != before


# -- the index of a cache ------------------------------------------------------------------------


class _Saved:
    """A filled cache directory, and copies of its files to put back."""

    def __init__(self, folder: Path) -> None:
        self.path, self._saved = folder / "cache", folder / "saved"
        self._saved.mkdir()
        cache = open_cache(self.path)
        fill(cache)
        cache.close()
        del cache
        let_go_of_connections()
        for file in (self.path / "index.sqlite", *self.path.glob("objects/*/*")):
            shutil.copy2(file, self._saved)

    def restore(self) -> None:
        let_go_of_connections()
        empty(self.path)
        for file in self._saved.iterdir():
            named = "" if file.name.startswith("index") else f"objects/{file.name[:2]}"
            shutil.copy2(file, self.path / named / file.name)


@contextmanager
def _open_index(folder: Path) -> Iterator[Check]:
    with watching() as bugs:
        saved = _Saved(folder)

        def check(data: bytes) -> None:
            saved.restore()
            _apply(_edits(data), saved.path / "index.sqlite")
            disk = Disk(saved.path)
            guarded = disk.guard()
            use(guarded, disk, rounds=2)
            guarded.close()
            bugs.check()

        yield check


# -- one file of a cache -------------------------------------------------------------------------


class _Silent:
    """Whom a worker tells: see Reporter."""

    def stored(self, *_: object) -> None: ...
    def wants_room(self, *_: object) -> None: ...
    def wrong(self, *_: object) -> None: ...
    def lost(self, *_: object) -> None: ...
    def used(self, *_: object) -> None: ...
    def failed(self, *_: object) -> None: ...


@contextmanager
def _open_cached_file(folder: Path) -> Iterator[Check]:
    with watching() as bugs:
        saved = _Saved(folder)
        names = [name for name, data in DATA.items() if len(data) <= BLOCK]

        def check(data: bytes) -> None:
            name = names[data[0] % len(names) if data else 0]
            (block,), obj = blocks_of(OBJECTS[name]), OBJECTS[name]
            digest = obj.digest.hex()
            file = saved.path / "objects" / digest[:2] / digest
            original, sums = file.read_bytes(), os.getxattr(file, "user.penstock.sums")
            try:
                is_changed = _apply(_edits(data[2:]), file)
                if data[1:] and data[1] & 1:
                    os.setxattr(file, "user.penstock.sums", data[2:][:64])
                shared = WorkerDirectory(0, saved.path, _Silent(), tracks_use=False)
                shared.enable()
                found = shared.read(block, 0, block.length)
                assert found in (None, original)
                assert found is None or not is_changed
            finally:
                file.write_bytes(original)
                os.setxattr(file, "user.penstock.sums", sums)
            bugs.check()

        yield check


# -- the catalog -----------------------------------------------------------------------------------

_MOST_NODES = 1000
_FILES = ("", ".sums")
_IN_SUMS = 1 << 31  # where the first edit lies here or behind, the sums are damaged instead
_KEYS = [f"d{n % 3}/f{n:03}" for n in range(40)] + ["../hidden", "e/"]


@contextmanager
def _open_catalog(folder: Path) -> Iterator[Check]:
    pristine, path = folder / "pristine.sqlite", folder / "catalog.sqlite"
    tree = Tree(pristine)
    store = Pages(lambda: iter([[entry(key, n) for n, key in enumerate(_KEYS)]]))
    refresh(tree, [Mounted("", store)], lambda *_: None)
    truth = _seen(tree)
    tree.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    tree.close()
    # The catalog itself, and the sums of its pages; no locks and no log.
    content = {end: Path(f"{pristine}{end}").read_bytes() for end in _FILES}

    def check(data: bytes) -> None:
        let_go_of_connections()
        for file in folder.glob("catalog.sqlite*"):
            file.unlink()
        for end, whole in content.items():
            Path(f"{path}{end}").write_bytes(whole)
        edits = _edits(data)
        in_sums = any(edit.at >= _IN_SUMS for edit in edits[:1])
        _apply(edits, Path(f"{path}.sums") if in_sums else path)
        try:
            with closing(Tree(path)) as damaged, _closed_after(damaged):
                seen = _seen(damaged)
        except PenstockError:
            return
        assert seen == truth, "a damaged catalog gives another answer"

    yield check


@contextmanager
def _closed_after(tree: Tree) -> Iterator[None]:
    """A tree keeps the file open as long as the process lives, and here are thousands of them."""
    try:
        yield
    finally:
        tree.connection().close()
        os.close(tree._descriptor())


def _seen(tree: Tree) -> object:
    """All that readers and commands are told of a catalog."""
    nodes: list[Node] = []
    waiting = [ROOT]
    while waiting:
        found = tree.children(waiting.pop(), 0, 2 * len(_KEYS))
        waiting += [node.ino for node in found if node.is_directory and len(nodes) < _MOST_NODES]
        nodes += found
    return nodes, tree.totals(), tree.hidden(100), [row.files for row in tree.sources()]


_SOME_EDITS = [b"", b"\x1c\0\0\0\1", b"\x12\0\0\0\1", b"\x00\x10\0\0\xff", b"\x64\0\0\0\x0d"]

INDEX_TARGET = Target(
    "index",
    "a cache with a damaged index gives no wrong byte, and never fails a reader",
    _open_index,
    _SOME_EDITS,
    smoke_inputs=40,
)
CACHED_FILE_TARGET = Target(
    "cached-file",
    "a cached file is read as it was stored, or not at all, whatever sums it carries",
    _open_cached_file,
    [b"\0\0", b"\1\1", b"\2\0" + b"\0\0\0\0\1"],
)
CATALOG_TARGET = Target(
    "catalog",
    "a damaged catalog gives the right answers or an error of ours",
    _open_catalog,
    _SOME_EDITS,
    smoke_inputs=60,
)
