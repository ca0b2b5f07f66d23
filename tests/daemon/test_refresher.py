"""The refresher: what it tells the kernel, and from where it goes on."""

import os
from pathlib import Path

from penstock.cache.build import build_cache
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.daemon.refresher import Refresher
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.store.connect import StoreOptions
from penstock.store.reliable import open_reliable_store
from penstock.store.source import parse_source
from penstock.vfs.filesystem import FileSystem
from penstock.vfs.readahead import Readahead
from tests.support.trees import write_tree


def test_a_refresh_that_is_asked_for_before_the_catching_up_skips_no_change(tmp_path: Path) -> None:
    """Whoever asks between two servers waits at the socket that both listen on, and comes first."""
    counters = Counters()
    write_tree(tmp_path / "set", {"a": b"a"})
    store = open_reliable_store(parse_source(f"file://{tmp_path}/set"), StoreOptions(), counters)
    tree, mounts = Tree(tmp_path / "catalog.sqlite"), [Mounted("", store)]
    refresh(tree, mounts, lambda *_: None)
    seen = tree.last_change()
    write_tree(tmp_path / "set", {"untold": b"b"})
    refresh(tree, mounts, lambda *_: None)  # by a server that was killed at this moment
    cache = build_cache(
        [], policy="keep", block_bytes=1 << 20, buffer_bytes=1 << 20, fetchers=1,
        counters=counters, threads=2, deadline_s=5.0, must_open=True,
    )  # fmt: skip
    files = FileSystem(tree, {0: store}, cache, Readahead(cache, 0), lambda: None)
    kernel = os.memfd_create("kernel")
    told: list[int] = []
    refresher = Refresher(
        tree, mounts, files, Session(kernel, 1, counters), None, 1000, counters, seen, told.append
    )
    write_tree(tmp_path / "set", {"new": b"c"})
    refresher.refresh_now()
    notified = os.pread(kernel, 10_000, 0)
    assert (b"untold\0" in notified, b"new\0" in notified) == (True, True)
    assert told[-1] == tree.last_change()
    refresher.catch_up()
    assert os.fstat(kernel).st_size == len(notified)
    cache.close()
    tree.close()
    os.close(kernel)
