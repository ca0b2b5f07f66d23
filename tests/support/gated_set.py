"""A file system over a folder whose store answers when it is let."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Buffer

from penstock.cache.build import build_tier
from penstock.cache.fetch import FetchResult, GetRange, PushBlock
from penstock.cache.identity import CachedObject
from penstock.cache.tier import TierSpec
from penstock.cache.tiered import Cache
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.metrics import Counters
from penstock.store.local import LocalStore
from penstock.vfs.filesystem import FileSystem
from penstock.vfs.readahead import Readahead
from tests.support.trees import write_tree

BLOCK = 64 * 1024


class GatedStore(LocalStore):
    def __init__(self, root: str) -> None:
        super().__init__(root, Counters())
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[tuple[str, int]] = []

    def get(
        self, key: str, version: str, start: int, length: int, size_bytes: int, *progress: Any
    ) -> Buffer:
        self.asked.append((key, start))
        self.gate.wait(30)
        return super().get(key, version, start, length, size_bytes)


class CountingCache(Cache):
    fetches_ahead = 0

    def fetch_ahead(
        self,
        obj: CachedObject,
        get: GetRange,
        number: int,
        place: PushBlock | None,
        missing_since_s: float,
    ) -> FetchResult:
        self.fetches_ahead += 1
        return super().fetch_ahead(obj, get, number, place, missing_since_s)


class Set:
    """A data set: its files, its store, its cache."""

    def __init__(
        self, folder: Path, files: dict[str, bytes], buffer_bytes: int, tiers: Sequence[TierSpec]
    ) -> None:
        (folder / "set").mkdir()
        write_tree(folder / "set", files)
        self.store = GatedStore(str(folder / "set"))
        self.tree = Tree(folder / "catalog.sqlite")
        self.cache = CountingCache(
            [build_tier(tier, "keep", Counters()) for tier in tiers],
            block_bytes=BLOCK,
            buffer_bytes=buffer_bytes,
            large_threads=2,
            counters=Counters(),
        )
        self.files = FileSystem(
            self.tree, {0: self.store}, self.cache, Readahead(BLOCK, 0), lambda: None
        )
        self.refresh()

    def refresh(self) -> None:
        before = self.tree.last_change()
        refresh(self.tree, [Mounted("", self.store)], lambda *_: None)
        changes = self.tree.changes_since(before, 10_000)
        self.files.mark_outdated([change.buried for change in changes if change.buried])

    def ino(self, name: str) -> int:
        node = self.files.find(os.fsencode(name))
        assert node is not None
        return node.ino


MakeSet = Callable[..., Set]


@pytest.fixture
def make_set(tmp_path: Path) -> Iterator[MakeSet]:
    made: list[Set] = []

    def make(files: dict[str, bytes], *tiers: TierSpec, buffer_bytes: int = 100 * BLOCK) -> Set:
        made.append(Set(tmp_path, files, buffer_bytes, tiers))
        return made[-1]

    yield make
    for one in made:
        one.store.gate.set()
        one.cache.close()
        one.tree.close()
