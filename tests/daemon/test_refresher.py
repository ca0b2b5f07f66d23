"""The refresher: what it tells the kernel, and from where it goes on."""

import os
from pathlib import Path

from penstock.catalog.refresh import Mounted, refresh
from penstock.daemon.refresher import Refresher
from penstock.fuse.session import Session
from penstock.metrics import Counters
from tests.support.gated_set import MakeSet
from tests.support.trees import write_tree


def test_a_refresh_that_is_asked_for_before_the_catching_up_skips_no_change(
    make_set: MakeSet, tmp_path: Path
) -> None:
    """Whoever asks between two servers waits at the socket that both listen on, and comes first."""
    some, counters = make_set({"a": b"a"}), Counters()
    tree, mounts = some.tree, [Mounted("", some.store)]
    seen = tree.last_change()
    write_tree(tmp_path / "set", {"untold": b"b"})
    refresh(tree, mounts, lambda *_: None)  # by a server that was killed at this moment
    kernel = os.memfd_create("kernel")
    told: list[int] = []
    session = Session(kernel, 1, counters)
    refresher = Refresher(
        tree, mounts, some.files, session, None, 1000, counters, seen, told.append
    )
    write_tree(tmp_path / "set", {"new": b"c"})
    refresher.refresh_now()
    notified = os.pread(kernel, 10_000, 0)
    assert (b"untold\0" in notified, b"new\0" in notified) == (True, True)
    assert told[-1] == tree.last_change()
    refresher.catch_up()
    assert os.fstat(kernel).st_size == len(notified)
    os.close(kernel)
