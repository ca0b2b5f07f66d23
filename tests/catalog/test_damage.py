"""A damaged catalog: found, set aside, and made anew with the numbers that files had."""

import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.catalog import database as database_module
from penstock.catalog.file_set import FileSet
from penstock.catalog.page_sums import PageSums, SumsFile, damaged_pages, is_held_by_the_dead
from penstock.catalog.refresh import Mounted, numbered, refresh, unlisted
from penstock.catalog.salvage import _salvage
from penstock.catalog.tree import ROOT, Node, Tree
from penstock.errors import CatalogDamaged, StaleInode, StoreError
from penstock.store import ObjectInfo
from tests.support.catalogs import Pages, entry, nodes_of
from tests.support.damage import CATALOG_DAMAGES
from tests.support.waiting import wait_until

PAGE_BYTES = 4096


def keys(count: int = 1500) -> list[ObjectInfo]:
    """Enough for interior pages in the tables and the indexes."""
    return [
        entry(f"folder-{n // 100:02}/some-file-of-that-name-{n:05}", n, version=f"version-{n}")
        for n in range(count)
    ]


def store_of(infos: list[ObjectInfo]) -> Pages:
    return Pages(lambda: iter([infos]))


def take_in(tree: Tree, store: Pages) -> int:
    return refresh(tree, [Mounted("", store)], lambda *_: None, in_use=True).changed


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, Node]]:
    """The files of a catalog that is at rest, and what is in it."""
    folder = tmp_path_factory.mktemp("sealed")
    tree = Tree(folder / "catalog.sqlite")
    take_in(tree, store_of(keys()))
    nodes = nodes_of(tree)
    tree.connection().close()
    tree.close()
    return {path.name: path.read_bytes() for path in folder.iterdir()}, nodes


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / "catalog.sqlite"


def pages_of(path: Path, kind: int) -> list[int]:
    """The offsets of pages of this kind: 13 and 5 are leaves and inner pages of tables."""
    data = path.read_bytes()
    return [at for at in range(PAGE_BYTES, len(data), PAGE_BYTES) if data[at] == kind]


def spoil(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), data, at)


@pytest.mark.parametrize("name", CATALOG_DAMAGES)
def test_a_catalog_damaged_while_closed_is_rebuilt_when_opened(
    name: str, tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    files, before = sealed
    path = put(tmp_path, files)
    CATALOG_DAMAGES[name](path, random.Random(1))
    tree, store = Tree(path), store_of(keys())
    if tree.is_complete():  # what was damaged held nothing that counts
        assert name in ("log", "shared_memory")
    else:
        assert tree.damage() is not None
        assert unlisted(tree, [Mounted("", store)])
        take_in(tree, store)
    after = nodes_of(tree)
    assert {path: node[4:] for path, node in after.items()} == {
        path: node[4:] for path, node in before.items() if not node.is_directory
    } | {path: node[4:] for path, node in after.items() if node.is_directory}
    assert after.keys() == before.keys()
    tree.close()


@pytest.mark.parametrize("name", CATALOG_DAMAGES)
def test_a_catalog_damaged_while_read_gives_all_names_or_an_error(
    name: str, tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    files, before = sealed
    path = put(tmp_path, files)
    tree, store = Tree(path), store_of(keys())
    reader = Tree(path, read_only=True)  # as a worker has it
    assert nodes_of(tree) == nodes_of(reader) == before
    CATALOG_DAMAGES[name](path, random.Random(2))
    for one in (tree, reader):
        try:
            assert nodes_of(one) == before
            assert one.lookup(ROOT, b"nothing") is None
        except CatalogDamaged:
            pass
    tree.repair()
    take_in(tree, store)
    assert nodes_of(tree) == nodes_of(reader)
    assert nodes_of(reader).keys() == before.keys()
    tree.close()


def test_a_catalog_damaged_while_a_server_opens_it_is_rebuilt_by_that_server(
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, before = sealed
    path = put(tmp_path, files)
    for step in ("_create", "checkpoint", "_enter"):
        with monkeypatch.context() as patch:
            patch.setattr(Tree, step, _damaged_before(getattr(Tree, step)))
            tree = Tree(path)
        assert tree.found_damaged is not None
        CATALOG_DAMAGES["text"](path, random.Random(3))
        store = store_of(keys())
        assert tree.with_repair(partial(numbered, tree, [Mounted("", store)])).keys() == {0}
        take_in(tree, store)
        assert nodes_of(tree).keys() == before.keys()
        tree.close()


def _damaged_before(step: Callable[[Tree], object]) -> Callable[[Tree], object]:
    """The first time, something happens to the file just before this step of opening it."""
    damages = [CATALOG_DAMAGES["text"]]

    def damaged_step(tree: Tree) -> object:
        if damages:
            damages.pop()(tree.path, random.Random(3))
        return step(tree)

    return damaged_step


@pytest.mark.parametrize("kind", [5, 13], ids=["interior", "leaf"])
def test_files_keep_their_inode_numbers_if_their_own_pages_are_intact(
    kind: int, tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    files, before = sealed
    path = put(tmp_path, files)
    tree = Tree(path)
    # Of leaves: one in the midst of the nodes, and not the one that has the sources.
    offset = pages_of(path, kind)[-1 if kind == 5 else len(pages_of(path, kind)) // 2]
    spoil(path, offset + 50, b"\x5a" * 500)
    with pytest.raises(CatalogDamaged):
        tree.children(ROOT, 0, 10)
    damage = tree.repair()
    assert damage is not None
    kept = {name: node for name, node in before.items() if not isinstance(_node(tree, node), int)}
    assert len(kept) == len(before) if kind == 5 else len(before) - 200 < len(kept) < len(before)
    # Before it was listed: files are known by their numbers and names; what is not there is not
    # said not to be.
    some = next(node for name, node in kept.items() if name.startswith("folder-03/"))
    assert tree.lookup(some.parent, some.name) == some
    for ask in (
        lambda: tree.lookup(ROOT, b"nothing"),
        lambda: tree.children(ROOT, 0, 10),
        lambda: tree.lookup_many([(ROOT, b"nothing")]),
        lambda: list(tree.files()),
        lambda: FileSet(tree),
    ):
        with pytest.raises(CatalogDamaged, match="rebuilt"):
            ask()
    take_in(tree, store_of(keys()))
    after = nodes_of(tree)
    assert after.keys() == before.keys()
    assert {name: after[name] for name in kept} == kept
    # What got a new number is told to the kernel, and no number was given out twice.
    reported = {change.name for change in tree.changes_since(0, 10_000)}
    fresh = [node for name, node in after.items() if name not in kept]
    assert {node.name for node in fresh} <= reported
    known = {node.ino for node in before.values()}
    assert not known & {node.ino for node in fresh}
    tree.close()


def _node(tree: Tree, node: Node) -> Node | int:
    try:
        return tree.node(node.ino)
    except StaleInode:
        return node.ino


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(flips=st.sets(st.integers(0, 2**40), min_size=1, max_size=30), while_open=st.booleans())
def test_random_damage_leaves_names_and_attributes_right_or_causes_an_error(
    flips: set[int],
    while_open: bool,
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
) -> None:
    files, before = sealed
    for old in tmp_path.iterdir():
        old.unlink()
    path = put(tmp_path, files)
    tree = Tree(path) if while_open else None
    damaged = bytearray(files["catalog.sqlite"])
    for bit in {flip % (8 * len(damaged)) for flip in flips}:
        damaged[bit // 8] ^= 1 << bit % 8
    spoil(path, 0, damaged)
    tree = tree or Tree(path)
    with pytest.raises(CatalogDamaged):
        nodes_of(tree)
    tree.repair()
    take_in(tree, store_of(keys()))
    after = nodes_of(tree)
    assert after.keys() == before.keys()
    assert all(after[name][4:] == node[4:] for name, node in before.items() if node[4] is not None)
    tree.close()


@pytest.mark.parametrize("table", ["nodes", "directories"])
def test_an_open_folder_whose_number_is_lost_is_an_error_and_not_empty(
    table: str, tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    """For example in the midst of listing it."""
    path = put(tmp_path, sealed[0])
    tree = Tree(path)
    (folder,) = (node for name, node in sealed[1].items() if name == "folder-03/")
    some = tree.children(folder.ino, 0, 10)
    ask = f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'"
    (root,) = tree.connection().execute(ask).fetchone()
    leaf = root if table == "directories" else _first_leaf(path, root)
    spoil(path, (leaf - 1) * PAGE_BYTES + 10, b"\x5a" * 4000)
    assert tree.repair() is not None
    take_in(tree, store_of(keys()))
    for ask_it in (
        lambda: tree.children(folder.ino, 0, 10),
        lambda: tree.children(folder.ino, some[-1].ino, 10),
        lambda: tree.lookup(folder.ino, some[0].name),
    ):
        with pytest.raises(StaleInode):
            ask_it()
    assert nodes_of(tree).keys() == sealed[1].keys()
    tree.close()


def _first_leaf(path: Path, root: int) -> int:
    """Of a table whose root is an inner page: the first of its cells points to it."""
    page = path.read_bytes()[(root - 1) * PAGE_BYTES :][:PAGE_BYTES]
    cell = int.from_bytes(page[12:14], "big")
    return int.from_bytes(page[cell : cell + 4], "big")


def test_the_later_of_two_rows_of_one_name_is_alive(tmp_path: Path) -> None:
    """A page that SQLite does not use any more may hold what was before."""
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, store_of([entry("a", 1, version="new")]))
    node = nodes_of(tree)["a"]
    run = tree.connection().execute
    run("DROP INDEX nodes_by_name")
    run("INSERT INTO nodes VALUES (?, 1, x'61', 0, 1, 0, 'old', 0)", (node.ino - 1,))
    tree.checkpoint()
    spoil(tree.path, 100, b"\x5a" * 100)  # of the schema
    assert tree.repair() is not None
    assert tree.lookup(ROOT, b"a") == node
    assert tree.node(node.ino - 1).dead == 1
    tree.close()


def test_free_pages_reveal_nothing_about_rewritten_files(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    for version in range(4):
        tree = Tree(path)
        take_in(tree, store_of([one._replace(version=f"v{version}") for one in keys()]))
        tree.close()
    tree = Tree(path)
    expected = set(tree.connection().execute("SELECT * FROM nodes"))
    sealed = SumsFile(path).read()
    with open(path, "rb") as file:
        found = [
            row
            for salvaged in _salvage(file.fileno(), sealed)
            for row in salvaged.rows
            if salvaged.table == "nodes"
        ]
    assert set(found) == expected
    tree.close()


def test_inode_numbers_survive_deletion_of_the_catalog_under_its_mount(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, store_of(keys(300)))
    before = nodes_of(tree)
    tree.path.unlink()
    with pytest.raises(CatalogDamaged, match="is gone"):
        tree.lookup(ROOT, b"folder-00")
    assert tree.repair() is not None
    take_in(tree, store_of(keys(300)))
    assert nodes_of(tree) == before
    tree.close()


def test_sources_keep_their_numbers_whatever_is_damaged(tmp_path: Path) -> None:
    """A running server knows its stores by them."""
    tree, store, other = Tree(tmp_path / "catalog.sqlite"), store_of(keys(5)), store_of(keys(5))
    mounts = [Mounted("first", store), Mounted("second", other)]
    assert list(numbered(tree, mounts)) == [0, 1]
    assert list(numbered(tree, mounts[1:])) == [1]
    spoil(tree.path, 0, b"\0" * tree.path.stat().st_size)
    assert tree.repair() is not None
    assert list(numbered(tree, mounts[1:])) == [1]
    tree.close()


def test_a_refresh_detects_changes_made_by_the_disk(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    tree = Tree(path)
    status = path.stat()
    spoil(path, pages_of(path, 13)[5] + 2000, b"\x5a")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    requests = 0

    def counted() -> list[ObjectInfo]:
        nonlocal requests
        requests += 1
        return keys()

    with pytest.raises(CatalogDamaged, match="1 of its"):
        take_in(tree, Pages(lambda: iter([counted()])))
    assert requests == 0
    tree.close()


def test_a_catalog_damaged_during_a_listing_is_not_built_upon(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    tree = Tree(path)

    def listing() -> Iterator[list[ObjectInfo]]:
        yield keys()[:700]
        spoil(path, pages_of(path, 13)[5] + 2000, b"\x5a")
        yield keys()[700:]

    with pytest.raises(CatalogDamaged):
        take_in(tree, Pages(listing))
    assert tree.repair() is not None
    take_in(tree, store_of(keys()))
    assert nodes_of(tree).keys() == sealed[1].keys()
    tree.close()


def test_the_damaged_catalog_is_kept_and_a_failed_listing_changes_nothing(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    spoil(path, 0, b"no header")
    damaged = path.read_bytes()
    tree = Tree(path)

    def fail() -> list[ObjectInfo]:
        raise StoreError("it does not answer")

    for _ in range(2):
        with pytest.raises(StoreError):
            take_in(tree, Pages(lambda: iter([fail()])))
        tree.close()
        tree = Tree(path)  # the next server
        assert not tree.is_complete()
    assert (tmp_path / "catalog.sqlite.damaged").read_bytes() == damaged
    take_in(tree, store_of(keys()))
    assert (tree.is_complete(), nodes_of(tree).keys()) == (True, sealed[1].keys())
    tree.close()


def test_a_process_killed_while_it_seals_a_catalog_leaves_it_whole(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    files, before = sealed
    path = put(tmp_path, {**files, "catalog.sqlite.sums": b""})
    tree = Tree(path)
    assert (tree.is_complete(), nodes_of(tree)) == (True, before)
    assert (tmp_path / "catalog.sqlite.sums").stat().st_size > 0
    tree.close()


def test_a_catalog_without_checksums_that_lacks_files_is_rebuilt(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, {"catalog.sqlite": sealed[0]["catalog.sqlite"]})
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM nodes WHERE ino = (SELECT max(ino) FROM nodes)")
    database.close()
    tree = Tree(path)
    damage = tree.damage()
    assert damage is not None
    assert "it has 1,499 files, and 1,500 were listed" in damage
    tree.close()


@pytest.mark.parametrize(
    ("found", "spoilt"), [(b"CREATE TABLE nodes", b"CREATE TABL\xcf nodes"), (b"\2\2", b"\7\2")]
)
def test_a_catalog_without_checksums_that_sqlite_cannot_open_is_rebuilt(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]], found: bytes, spoilt: bytes
) -> None:
    """A schema that is no text; a header that says that it can only be read."""
    whole = sealed[0]["catalog.sqlite"]
    tree = Tree(put(tmp_path, {"catalog.sqlite": whole.replace(found, spoilt, 1)}))
    assert tree.damage() is not None
    assert not tree.is_complete()
    tree.close()


def test_a_briefly_locked_catalog_is_waited_for(
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    failures, connect = [busy, busy], database_module._connect_once

    def connect_at_last(address: str, *, read_only: bool) -> sqlite3.Connection:
        if failures:
            raise failures.pop()
        return connect(address, read_only=read_only)

    monkeypatch.setattr(database_module, "_connect_once", connect_at_last)
    reader = Tree(put(tmp_path, sealed[0]), read_only=True)
    assert nodes_of(reader) == sealed[1]
    assert not failures


def test_log_entries_of_another_process_are_sealed_by_the_next(tmp_path: Path) -> None:
    """Killed between its transaction and the sealing."""
    path = tmp_path / "catalog.sqlite"
    tree = Tree(path)
    take_in(tree, store_of(keys(10)))
    tree.connection().execute("UPDATE meta SET value = 7 WHERE key = 'files'")
    assert (tmp_path / "catalog.sqlite-wal").stat().st_size > 0
    again = Tree(path)
    assert (again.totals()[0], again.damage()) == (7, None)
    assert (tmp_path / "catalog.sqlite-wal").stat().st_size == 0
    for one in (tree, again):
        one.close()


def test_processes_killed_while_they_apply_listings_leave_no_damage(
    tmp_path: Path,
) -> None:
    path = tmp_path / "catalog.sqlite"
    context = multiprocessing.get_context("fork")

    def take_in_more(taken: "Synchronized[int]") -> None:
        tree = Tree(path)
        while True:
            some = [entry(f"more/{n}", 1, version=f"{taken.value}") for n in range(50)]
            take_in(tree, store_of([*keys(200), *some]))
            taken.value += 1

    for kills in range(1, 7):
        taken = context.Value("i", 0)
        child = context.Process(target=take_in_more, args=(taken,))
        child.start()
        wait_until(lambda taken=taken, kills=kills: taken.value >= kills, "nothing is taken in")
        child.kill()
        child.join()
        tree = Tree(path)
        assert (tree.damage(), tree.is_complete(), len(nodes_of(tree))) == (None, True, 253)
        tree.close()


def test_only_sealing_changes_the_file(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "catalog.sqlite")
    for count in (10, 500, 20):
        take_in(tree, store_of(keys(count)))
        tree.verify()
    other = Tree(tmp_path / "catalog.sqlite")
    assert nodes_of(other) == nodes_of(tree)
    take_in(other, store_of(keys(30)))
    assert nodes_of(other) == nodes_of(tree)
    for one in (tree, other):
        one.close()


@pytest.mark.parametrize("change", [os.utime, lambda path: os.chmod(path, 0o600)])
def test_a_touched_catalog_file_is_not_treated_as_damaged(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, store_of(keys(10)))
    change(tree.path)
    assert len(nodes_of(tree)) == 11
    assert tree.repair() is None
    tree.close()


def _change_a_version(path: Path) -> None:
    """Damage that makes sense to SQLite: no index has it."""
    data = path.read_bytes()
    spoil(path, data.index(b"version-700"), b"version-7OO")


def _spoil_a_leaf(path: Path) -> None:
    spoil(path, pages_of(path, 13)[5] + 8, b"\x5a" * 200)


@pytest.mark.parametrize("damage", [_change_a_version, _spoil_a_leaf])
@pytest.mark.parametrize("moment", ["before the log is moved", "afterwards"])
def test_damage_just_before_a_transaction_is_sealed_is_detected_and_costs_few_numbers(
    moment: str,
    damage: Callable[[Path], None],
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, before = sealed
    path = put(tmp_path, files)
    tree = Tree(path)
    seal, move_log = Tree.checkpoint, database_module._move_log

    def damage_and_seal(tree: Tree) -> None:
        damage(path)
        seal(tree)

    def move_and_damage(connection: sqlite3.Connection) -> bool:
        moved = move_log(connection)
        damage(path)
        return moved

    with monkeypatch.context() as patch:
        if moment == "afterwards":
            patch.setattr(database_module, "_move_log", move_and_damage)
        else:
            patch.setattr(Tree, "checkpoint", damage_and_seal)
        with pytest.raises(CatalogDamaged, match="1 of its"), tree.writing() as database:
            database.execute("UPDATE meta SET value = 7 WHERE key = 'bytes'")
    assert tree.repair() is not None
    take_in(tree, store_of(keys()))
    after = nodes_of(tree)
    assert {name: node.version for name, node in after.items()} == {
        name: node.version for name, node in before.items()
    }
    assert sum(after[name].ino == node.ino for name, node in before.items()) > 1000
    tree.close()


def test_damage_is_detected_while_a_reader_blocks_the_checkpoint(
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database_module, "_CHECKPOINT_WAIT_MS", 10)
    path = put(tmp_path, sealed[0])
    tree = Tree(path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM nodes").fetchone()
    take_in(tree, store_of(keys(1400)))
    assert not tree.is_checkpointed()
    tree.verify()
    _change_a_version(path)
    with pytest.raises(CatalogDamaged, match="1 of its"):
        tree.node(ROOT)
    spoil(path, path.read_bytes().index(b"version-7OO"), b"version-700")
    reader.close()
    take_in(tree, store_of(keys(1400)))  # the next refresh, with nothing to take in
    assert tree.is_checkpointed()
    assert len(nodes_of(tree)) == 1414
    tree.close()


def test_readers_that_need_different_parts_of_the_log_do_not_count_as_damage(
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SQLite moves the pages that the second one does not need, and no others."""
    monkeypatch.setattr(database_module, "_CHECKPOINT_WAIT_MS", 10)
    path = put(tmp_path, sealed[0])
    tree = Tree(path)
    first, second = (sqlite3.connect(path, isolation_level=None) for _ in range(2))
    for reader, count in ((first, 1400), (second, 1300)):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM nodes").fetchone()
        if reader is second:
            first.close()
        take_in(tree, store_of(keys(count)))
        assert not tree.is_checkpointed()
        tree.verify()
        assert len(nodes_of(tree)) == count + count // 100
    second.close()
    tree.checkpoint()
    assert tree.is_checkpointed()
    tree.verify()
    assert (tree.damage(), len(nodes_of(tree))) == (None, 1313)
    tree.close()


def test_a_catalog_whose_folder_was_removed_is_rebuilt(tmp_path: Path) -> None:
    tree, store = Tree(tmp_path / "catalogs/catalog.sqlite"), store_of(keys(300))
    take_in(tree, store)
    before = nodes_of(tree)
    shutil.rmtree(tmp_path / "catalogs")
    for ask in (
        tree.verify,
        lambda: tree.node(ROOT),
        lambda: Tree(tree.path, read_only=True).node(ROOT),
        lambda: take_in(tree, store),
    ):
        with pytest.raises(CatalogDamaged, match="is gone"):
            ask()
    assert tree.repair() is not None
    assert (tmp_path / "catalogs").stat().st_mode & 0o777 == 0o700
    take_in(tree, store)
    assert nodes_of(tree).keys() == before.keys()
    tree.close()


def test_new_catalogs_left_by_killed_servers_are_removed_by_the_next_attempt(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    child = subprocess.Popen(["sleep", "100"])
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = {f"{path.name}.{pid}{end}" for pid in (ended.pid, child.pid) for end in ("", "-wal")}
    for name in left:
        (tmp_path / name).touch()
    tree = Tree(path)
    other = Tree(path)  # it does not clear away: someone uses it
    for name in left:
        (tmp_path / name).touch()
    _spoil_a_leaf(path)
    assert other.repair() is not None
    child.kill()
    child.wait()
    found = {one.name for one in tmp_path.iterdir()}
    assert found & left == {f"{path.name}.{child.pid}", f"{path.name}.{child.pid}-wal"}
    for one in (tree, other):
        one.close()


@pytest.mark.parametrize("is_open", [False, True])
def test_a_schema_that_is_not_text_is_damage_for_every_reader(
    is_open: bool, tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    reader = Tree(path, read_only=True)
    if is_open:
        assert reader.node(ROOT).ino == ROOT
    spoil(path, path.read_bytes().index(b"CREATE TABLE nodes"), b"CREATE TABL\xcf nodes")
    if is_open:
        for pragma in ("shrink_memory", "writable_schema = RESET"):  # it reads the schema again
            reader.connection().execute(f"PRAGMA {pragma}")
    with pytest.raises(CatalogDamaged):
        reader.node(ROOT)


def test_a_new_catalog_is_not_checked_while_readers_are_locked_out(
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = put(tmp_path, sealed[0])
    tree = Tree(path)
    _spoil_a_leaf(path)
    monkeypatch.delattr(database_module, "_check_all")  # 3 s for a million files
    assert tree.repair() is not None
    tree.verify()
    assert tree.node(ROOT).ino == ROOT
    tree.close()


def test_a_damaged_catalog_is_compared_once_for_all_readers(
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = put(tmp_path, sealed[0])
    tree = Tree(path)
    whole = path.read_bytes()
    _spoil_a_leaf(path)
    comparisons: list[int] = []

    def counted(descriptor: int, sealed: PageSums) -> set[int]:
        comparisons.append(descriptor)
        return damaged_pages(descriptor, sealed)

    monkeypatch.setattr(database_module, "damaged_pages", counted)
    for _ in range(3):
        with pytest.raises(CatalogDamaged, match="1 of its"):
            tree.node(ROOT)
    assert len(comparisons) == 1
    path.write_bytes(whole)  # someone has mended it, perhaps within a tick of the clock
    assert tree.repair() is None
    assert tree.node(ROOT).ino == ROOT
    tree.close()


def test_a_listing_stops_when_its_catalog_was_replaced(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    tree = Tree(path)
    healer = threading.Thread(target=tree.repair)
    listed: list[int] = []

    def listing() -> Iterator[list[ObjectInfo]]:
        yield keys()[:700]
        _spoil_a_leaf(path)
        healer.start()
        healer.join()
        for at in range(700, 1500):
            listed.append(at)
            yield keys()[at : at + 1]

    mounts = [Mounted("", Pages(listing)), Mounted("other", store_of(keys(3)))]
    with pytest.raises(CatalogDamaged, match="rebuilt meanwhile"):
        refresh(tree, mounts, lambda *_: None, only=mounts[:1], in_use=True)
    assert len(listed) < 700
    tree.close()


def test_a_transaction_on_a_catalog_replaced_before_it_was_sealed_fails(
    tmp_path: Path,
    sealed: tuple[dict[str, bytes], dict[str, Node]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = put(tmp_path, sealed[0])
    tree, seal = Tree(path), Tree.checkpoint

    def replaced_before(tree: Tree) -> None:
        _spoil_a_leaf(path)
        healer = threading.Thread(target=tree.repair)
        healer.start()
        healer.join()
        seal(tree)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "checkpoint", replaced_before)
        with pytest.raises(CatalogDamaged, match="rebuilt meanwhile"), tree.writing() as database:
            database.execute("UPDATE meta SET value = 7 WHERE key = 'bytes'")
    take_in(tree, store_of(keys()))
    assert nodes_of(tree).keys() == sealed[1].keys()
    tree.close()


# Its first thread has ended, and another has not: as when one of a killed process hangs in the
# kernel. SYS_exit ends one thread only.
HALF_DEAD = """
import ctypes, fcntl, os, sys, threading, time
fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_SH)
threading.Thread(target=time.sleep, args=(60,)).start()
print("locked", flush=True)
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""


def test_the_lock_of_a_killed_process_that_cannot_end_blocks_nobody(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    seal = SumsFile(path)
    before = seal.read()
    words = [sys.executable, "-c", HALF_DEAD, str(seal.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            state = Path(f"/proc/{holder.pid}/stat")
            wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "ended")
            with seal.exclusive():
                assert seal.read() == before
            tree = Tree(path)
            assert tree.found_damaged is None
            tree.close()
        finally:
            holder.kill()


def test_the_lock_of_a_live_process_is_waited_for(tmp_path: Path) -> None:
    seal = SumsFile(tmp_path / "c.sqlite")
    with seal.shared():
        descriptor = os.open(seal.path, os.O_RDONLY)
        assert not is_held_by_the_dead(descriptor)
        os.close(descriptor)


def test_a_catalog_truncated_while_others_read_it_is_damaged_at_once(
    tmp_path: Path, sealed: tuple[dict[str, bytes], dict[str, Node]]
) -> None:
    path = put(tmp_path, sealed[0])
    tree, other = Tree(path), Tree(path)
    reader = other.connection()
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM nodes").fetchone()
    os.truncate(path, 0)

    def ask() -> list[Node]:  # a thread that has no connection yet
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(tree.children, ROOT, 0, 10).result(timeout=10)

    with pytest.raises(CatalogDamaged, match="is empty"):
        ask()
    reader.execute("ROLLBACK")
    tree.close()
    other.close()
