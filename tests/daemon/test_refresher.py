"""The refresher: what it tells the kernel, and from where it goes on."""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.catalog.listing import list_in_parallel
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import ROOT, Tree
from penstock.daemon.catalog_refresher import Refresher
from penstock.errors import CatalogDamaged, StoreError
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.store import ObjectInfo, Store
from tests.support.catalogs import Pages
from tests.support.damage import CATALOG_DAMAGES
from tests.support.gated_set import MakeSet, Set
from tests.support.trees import write_tree
from tests.support.waiting import PATIENCE_S, wait_until

# Less than a listing or the kernel is held back for: a reader must not need its end.
AT_ONCE_S = PATIENCE_S / 2


def test_a_refresh_requested_before_catching_up_skips_no_change(
    make_set: MakeSet, tmp_path: Path
) -> None:
    """Whoever asks between two servers waits at the socket that both listen on, and comes first."""
    some, counters = make_set({"a": b"a"}), Counters()
    tree, mounts = some.tree, [Mounted("", some.store)]
    seen = tree.last_change()
    write_tree(tmp_path / "set", {"untold": b"b"})
    refresh(tree, mounts, lambda *_: None)  # by a server that was killed at this moment
    kernel = os.memfd_create("kernel")
    reported: list[int] = []
    session = Session(kernel, 1, counters)
    refresher = Refresher(
        tree, mounts, some.files, session, None, 1000, counters, seen, reported.append
    )
    write_tree(tmp_path / "set", {"new": b"c"})
    refresher.refresh_now()
    notified = os.pread(kernel, 10_000, 0)
    assert (b"untold\0" in notified, b"new\0" in notified) == (True, True)
    assert reported[-1] == tree.last_change()
    refresher.catch_up()
    assert os.fstat(kernel).st_size == len(notified)
    os.close(kernel)


@pytest.mark.parametrize("met_by", ["a reader", "the refresh itself"])
def test_a_damaged_catalog_is_rebuilt_and_the_kernel_is_notified(
    make_set: MakeSet, tmp_path: Path, met_by: str
) -> None:
    some, counters = make_set({"kept": b"a", "folder/other": b"b"}), Counters()
    tree, mounts = some.tree, [Mounted("", some.store)]
    known = some.ino("kept")
    kernel = os.memfd_create("kernel")
    refresher = Refresher(
        tree,
        mounts,
        some.files,
        Session(kernel, 1, counters),
        None,
        1000,
        counters,
        None,
        lambda _seen: None,
    )
    tree.on_damage = refresher.heal
    tree.path.write_bytes(b"text")
    write_tree(tmp_path / "set", {"new": b"c"})
    if met_by == "a reader":
        with pytest.raises(CatalogDamaged):
            tree.children(ROOT, 0, 10)
        refresher.list_new()
    else:
        assert refresher.refresh_now().files == 3
    names = [node.name for node in tree.children(ROOT, 0, 10)]
    assert names == [b"folder", b"kept", b"new"]
    assert some.ino("kept") != known, "nothing of it was left"
    notified = os.pread(kernel, 10_000, 0)
    assert all(name + b"\0" in notified for name in names)
    os.close(kernel)


def test_a_deletion_below_a_lost_path_does_not_stop_the_refresher(
    make_set: MakeSet, tmp_path: Path
) -> None:
    some, counters = make_set({"folder/gone": b"a", "folder/kept": b"b"}), Counters()
    kernel = os.memfd_create("kernel")
    mounts, session = [Mounted("", some.store)], Session(kernel, 1, counters)
    refresher = Refresher(
        some.tree, mounts, some.files, session, None, 1000, counters, None, lambda _seen: None
    )
    with some.tree.writing() as database:
        database.execute("DELETE FROM directories WHERE path != x''")
    (tmp_path / "set/folder/gone").unlink()
    some.files.mark_outdated([])  # another server, which remembers no path
    some.files._paths.clear()
    assert refresher.refresh_now().files == 1
    os.close(kernel)


def test_a_refresher_that_may_have_missed_changes_makes_the_kernel_look_up_all_names(
    make_set: MakeSet,
) -> None:
    """Another mount of the same bucket has put the next one in its place."""
    some, counters = make_set({"file": b"a", "folder/other": b"b"}), Counters()
    kernel = os.memfd_create("kernel")
    mounts, session = [Mounted("", some.store)], Session(kernel, 1, counters)
    reported: list[int] = []
    refresher = Refresher(
        some.tree, mounts, some.files, session, None, 1000, counters, 5, reported.append
    )
    with some.tree.writing() as database:
        database.execute("INSERT INTO meta VALUES ('changes_from', 1000)")
    refresher.refresh_now()
    notified = os.pread(kernel, 10_000, 0)
    assert all(name + b"\0" in notified for name in (b"file", b"folder", b"other"))
    assert reported == [1000]
    refresher.refresh_now()
    assert os.fstat(kernel).st_size == len(notified), "once"
    os.close(kernel)


def test_a_server_starts_while_the_kernel_waits_for_a_reader_of_that_server(
    make_set: MakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.daemon.catalog_refresher._CATCHES_UP_WITHIN_S", 0.01)
    some, counters = make_set({"a": b"a"}), Counters()
    mounts, seen = [Mounted("", some.store)], some.tree.last_change()
    write_tree(tmp_path / "set", {"untold": b"b"})
    refresh(some.tree, mounts, lambda *_: None)  # by a server that was killed at this moment
    kernel, answered = os.memfd_create("kernel"), threading.Event()
    session = Session(kernel, 1, counters)
    reported: list[bytes] = []

    def invalidate(_parent: int, name: bytes) -> None:
        answered.wait(PATIENCE_S)
        reported.append(name)

    monkeypatch.setattr(session, "invalidate_entry", invalidate)
    refresher = Refresher(
        some.tree, mounts, some.files, session, None, 1000, counters, seen, lambda _seen: None
    )
    refresher.start(at_once=False)
    assert reported == []
    answered.set()
    wait_until(lambda: reported == [b"untold"])
    refresher.stop()
    os.close(kernel)


@pytest.fixture
def started(make_set: MakeSet) -> Iterator[Callable[..., tuple[Set, Refresher, Session]]]:
    """A refresher that runs, and that readers of a damaged catalog call."""
    kernel, running = os.memfd_create("kernel"), list[Refresher]()

    def start(files: dict[str, bytes], *others: Mounted) -> tuple[Set, Refresher, Session]:
        some, counters = make_set(files), Counters()
        session = Session(kernel, 1, counters)
        mounts = [Mounted("", some.store), *others]
        refresher = Refresher(
            some.tree, mounts, some.files, session, None, 1000, counters, None, lambda _seen: None
        )
        some.tree.on_damage = refresher.heal
        running.append(refresher)
        refresher.start(at_once=False)
        return some, refresher, session

    yield start
    for one in running:
        one.stop()
    os.close(kernel)


def spoil_the_index(tree: Tree) -> None:
    """The rows themselves are on other pages."""
    CATALOG_DAMAGES["leaf_page_of_an_index"](tree.path, random.Random(1))


def answers(ask: Callable[[], object]) -> bool:
    """As a request that is parked asks again and again."""
    try:
        ask()
    except CatalogDamaged:
        return False
    return True


def test_a_catalog_damaged_during_a_listing_is_rebuilt_at_once(
    started: Callable[..., tuple[Set, Refresher, Session]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_LEAST_INTERVAL_S", "_HEALS_EVERY_S"):
        monkeypatch.setattr(f"penstock.daemon.catalog_refresher.{pause}", 0.1)
    some, refresher, _ = started({"a": b"a", "b": b"b"})
    listing, goes_on = threading.Semaphore(0), threading.Event()

    def list_slowly(store: Store, *, silence_s: float) -> Iterator[list[ObjectInfo]]:
        listing.release()
        yield []
        assert goes_on.wait(PATIENCE_S)
        yield from list_in_parallel(store, silence_s=silence_s)

    monkeypatch.setattr("penstock.catalog.refresh.list_in_parallel", list_slowly)
    refresher.request()
    known = some.tree.node(some.ino("a"))
    for _ in range(2):  # also while the one that heals lasts
        assert listing.acquire(timeout=PATIENCE_S)
        spoil_the_index(some.tree)
        wait_until(lambda: answers(lambda: some.tree.lookup(ROOT, b"a")), timeout_s=AT_ONCE_S)
        assert some.tree.node(known.ino) == known
        assert not some.tree.is_complete()
        goes_on.set()
        goes_on = threading.Event()
    goes_on.set()
    wait_until(some.tree.is_complete)


def test_a_source_that_cannot_be_listed_is_retried_after_a_pause(
    started: Callable[..., tuple[Set, Refresher, Session]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though readers of a catalog that is not complete ask for it all the time."""
    pauses: list[float] = []
    paused = threading.Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        paused.wait(PATIENCE_S)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
    monkeypatch.setattr("penstock.daemon.catalog_refresher.time", clock)

    def fail() -> Iterator[list[ObjectInfo]]:
        raise StoreError("it does not answer")

    some, refresher, _ = started({"a": b"a"}, Mounted("other", Pages(fail)))
    spoil_the_index(some.tree)
    answers(lambda: some.tree.children(ROOT, 0, 10))
    # As readers do; the one above may come too late, if the first listing met the damage.
    refresher.heal()
    wait_until(lambda: 5.0 in pauses, timeout_s=AT_ONCE_S)
    paused.set()


def test_a_catalog_is_listed_while_the_kernel_waits_for_a_reader_of_that_server(
    started: Callable[..., tuple[Set, Refresher, Session]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel takes the lock of a folder to forget a name in it, and `ls` holds that lock."""
    some, refresher, session = started({"a": b"a"})
    tells, answered = threading.Event(), threading.Event()
    reported: list[bytes] = []

    def invalidate(_parent: int, name: bytes) -> None:
        tells.set()
        assert answered.wait(PATIENCE_S)
        reported.append(name)

    monkeypatch.setattr(session, "invalidate_entry", invalidate)
    write_tree(tmp_path / "set", {"new": b"b"})
    refresher.request()
    assert tells.wait(PATIENCE_S)
    spoil_the_index(some.tree)
    list_root = lambda: some.tree.children(ROOT, 0, 10)  # noqa: E731
    assert not answers(list_root)
    wait_until(lambda: answers(list_root), timeout_s=AT_ONCE_S)
    assert reported == []
    answered.set()
    wait_until(lambda: b"new" in reported)


def test_log_entries_held_by_a_reader_are_sealed_when_it_ends(
    started: Callable[..., tuple[Set, Refresher, Session]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.daemon.catalog_refresher._FIRST_LISTING_AGAIN_S", 0.1)
    monkeypatch.setattr("penstock.catalog.database._CHECKPOINT_WAIT_MS", 10)
    some, refresher, _ = started({"a": b"a"})
    seal, attempts = Tree.checkpoint, list[Tree]()

    def counted(tree: Tree) -> None:
        seal(tree)
        attempts.append(tree)

    monkeypatch.setattr(Tree, "checkpoint", counted)
    with closing(sqlite3.connect(some.tree.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM nodes").fetchone()
        write_tree(tmp_path / "set", {"new": b"b"})
        refresher.refresh_now()
        assert not some.tree.is_checkpointed()
        before = len(attempts)
        refresher.heal()
        wait_until(lambda: len(attempts) > before)
    wait_until(some.tree.is_checkpointed)
