"""Listings that no honest store gives: endless, repeating, huge, malformed. Each is bounded."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.catalog import listing
from penstock.catalog.names import KEY_MAX_BYTES
from penstock.catalog.refresh import Mounted, Summary, refresh
from penstock.catalog.staging import StagedListing
from penstock.catalog.tree import ROOT, Tree
from penstock.errors import SourceError, StoreError
from penstock.store import Level, ObjectInfo
from tests.support.catalogs import NOW_NS, Pages, entry
from tests.support.waiting import wait_until


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "catalog.sqlite")
    take_in(tree, [entry("there/before")])
    yield tree
    tree.close()


def take_in(tree: Tree, entries: list[ObjectInfo], most_files: int = 10**8) -> Summary:
    return take_in_pages(tree, lambda: iter([entries]), most_files)


def take_in_pages(
    tree: Tree, pages: Callable[[], Iterator[list[ObjectInfo]]], most_files: int = 10**8
) -> Summary:
    return refresh(tree, [Mounted("", Pages(pages))], lambda *_: None, most_files=most_files)


def names(tree: Tree) -> list[str]:
    return [node.name.decode() for node in tree.children(ROOT, 0, 100)]


def numbered(start: int, count: int = 1000) -> list[ObjectInfo]:
    return [entry(f"{number:09}") for number in range(start, start + count)]


# -- listings without an end --------------------------------------------------------------


@pytest.mark.parametrize(
    "cycle",
    [
        *([numbered(1000 * page) for page in range(count)] for count in (1, 2, 7)),
        *([[entry(key, 0)] * 1000] for key in ("marker/", "a//b", "../x")),
    ],
)
def test_a_listing_that_repeats_itself_is_stopped(
    tree: Tree, cycle: list[list[ObjectInfo]]
) -> None:
    sent = 0

    def pages() -> Iterator[list[ObjectInfo]]:
        nonlocal sent
        for page in itertools.cycle(cycle):
            sent += 1
            yield page

    with pytest.raises(SourceError, match="repeats itself") as caught:
        take_in_pages(tree, pages)
    assert caught.value.hint
    assert sent <= 4 * len(cycle) + 10 + listing._QUEUED_PAGES + 2
    assert names(tree) == ["there"], "the tree is as it was"


@pytest.mark.parametrize(
    "key", ["{}", "{}/x", "x/" * 50 + "{}/" + "y/" * 50 + "f", "{}/", "{}//", "\0{}"]
)
def test_directories_and_hidden_objects_count_toward_the_limit(tree: Tree, key: str) -> None:
    def pages() -> Iterator[list[ObjectInfo]]:
        for number in itertools.count():
            yield [entry(key.format(number), 0)]

    with pytest.raises(SourceError, match="more than 1,000 files and directories") as caught:
        take_in_pages(tree, pages, most_files=1000)
    assert "--max-files" in (caught.value.hint or "")
    assert names(tree) == ["there"]
    assert take_in(tree, numbered(0), most_files=1000).files == 1000


def test_an_entry_listed_three_times_is_one_entry_with_its_last_values(tree: Tree) -> None:
    def pages() -> Iterator[list[ObjectInfo]]:
        for size in (1, 2, 3):
            yield from ([entry(f"{part}/{n}", size) for n in range(1000)] for part in range(6))

    summary = take_in_pages(tree, pages)
    assert (summary.files, summary.size_bytes) == (6000, 18_000)


def left_behind() -> list[threading.Thread]:
    """Idle ones may take a moment to end."""
    return [thread for thread in listing._abandoned if thread.is_alive()]


def test_hanging_requests_end_the_listing_and_do_not_accumulate(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(listing, "_JOIN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(listing, "_MAX_ABANDONED", 2)

    def pages() -> Iterator[list[ObjectInfo]]:
        let_go.wait()
        yield []

    store = Mounted("", Pages(pages))
    for number in (1, 2):
        with pytest.raises(StoreError, match=r"no progress for 0\.1 s"):
            refresh(tree, [store], lambda *_: None, silence_s=0.1)
        wait_until(lambda number=number: len(left_behind()) == number)
    with pytest.raises(StoreError, match="2 requests of earlier listings still hang"):
        refresh(tree, [store], lambda *_: None, silence_s=0.01)
    assert names(tree) == ["there"]
    waiting = list(listing._abandoned)
    assert all(thread.daemon for thread in waiting), "the process can end without them"
    let_go.set()
    for thread in waiting:
        thread.join(20)
    assert take_in(tree, [entry("again")]).files == 1


def test_the_queue_of_prefixes_is_bounded_for_a_wide_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "_QUEUED_PREFIXES", 20)
    monkeypatch.setattr(listing, "_FULL_PAGE", 200)
    levels, all_queued = list[str](), threading.Event()

    class Wide(Pages):
        def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
            above = f"{prefix}/" if prefix else ""
            if prefix == "0" or prefix.count("/") == 1:
                yield [entry(f"{above}file")]
            else:
                assert not prefix or all_queued.wait(30)
                yield [entry(f"{above}{n}/file") for n in range(200)]

        def list_level(self, prefix: str) -> Level:
            levels.append(prefix)
            above = f"{prefix}/" if prefix else ""
            return Level([], [f"{above}{n}" for n in range(200)])

    found: list[str] = []
    for page in listing.list_in_parallel(Wide(lambda: iter(()))):
        found += [info.key for info in page if info.version]
        if found:  # that of prefix 0, for which all others are queued first
            all_queued.set()
    assert len(found) == len(set(found)) == 1 + 199 * 200
    assert 1 < len(levels) <= 1 + 20 + listing._THREADS, "200 if each were split"


# -- entries that cannot be right -----------------------------------------------------------

NO_SIZE = "a size that no file can have"
NOT_SENT_BACK = "a version (ETag) with characters that cannot be sent back"
TOO_LONG = "a path longer than 4,095 bytes"
ODD = {
    "a size below zero": (entry("x", -1), NO_SIZE),
    "a size of 2**63": (entry("x", 2**63), NO_SIZE),
    "a version of 1 MB": (
        entry("x", version="v" * 1_000_000),
        "a version (ETag) longer than 1,024 characters",
    ),
    "a version with a line end": (entry("x", version="v\r\nX-Evil: 1"), NOT_SENT_BACK),
    "a version with a surrogate": (entry("x", version="v\ud800"), NOT_SENT_BACK),
    "a version with an umlaut": (entry("x", version="vü"), NOT_SENT_BACK),
    "half a surrogate pair in its name": (entry("a\ud800b"), "its name is not UTF-8"),
    "half a surrogate pair in its folder": (entry("\udfff/b"), "its name is not UTF-8"),
    "a NUL in its folder": (entry("a\0b/c"), "a NUL in its name"),
    "a key of 4,096 bytes": (entry("k/" * 2048), TOO_LONG),
    "a key of 3 MB that is no text": (entry("\ud800" * 1_000_000), TOO_LONG),
    "a key of 4,096 bytes in 2,048 characters": (entry("é" * 2048), TOO_LONG),
}


@pytest.mark.parametrize("name", ODD)
def test_implausible_entries_are_hidden_with_a_reason(tree: Tree, name: str) -> None:
    odd, reason = ODD[name]
    summary = take_in(tree, [odd, entry("good")])
    assert (summary.files, summary.hidden) == (1, 1)
    assert tree.hidden_counts() == {reason: 1}
    ((noted, why),) = tree.hidden(10)
    assert why == reason
    assert noted.encode(), "it can be printed"
    assert len(noted) < KEY_MAX_BYTES * 6


def test_long_keys_with_a_common_start_are_recorded_separately(tree: Tree) -> None:
    summary = take_in(tree, [entry("k" * 10_000 + str(n)) for n in range(100)])
    assert summary.hidden == 100
    assert len({key for key, _ in tree.hidden(1000)}) == 100
    assert all(len(key) < 250 for key, _ in tree.hidden(1000))


@pytest.mark.parametrize(
    ("told_ns", "kept_ns"),
    [(-1, 0), (-(10**30), 0), (10**30, 2**63 - 1), (2**63, 2**63 - 1), (NOW_NS, NOW_NS)],
)
def test_a_time_out_of_range_is_clamped(tree: Tree, told_ns: int, kept_ns: int) -> None:
    take_in(tree, [entry("x", mtime_ns=told_ns)])
    (node,) = tree.files()
    assert node.mtime_ns == kept_ns


def test_a_sum_of_sizes_that_overflows_is_capped(tree: Tree) -> None:
    summary = take_in(tree, [entry(f"{n}", 2**63 - 1) for n in range(5)])
    assert (summary.files, summary.size_bytes) == (5, 2**63 - 1)
    take_in(tree, [entry(f"{n}", 5 << 40) for n in range(1000)])
    assert tree.totals() == (1000, 5000 << 40)


def test_a_key_of_two_thousand_segments_is_a_path(tree: Tree) -> None:
    key = "/".join("d" * 2048)
    assert len(key) == KEY_MAX_BYTES
    assert take_in(tree, [entry(key)]).files == 1
    ino = ROOT
    for _ in range(2047):
        found = tree.lookup(ino, b"d")
        assert found is not None
        ino = found.ino
    assert tree.directory_path(ino) == key[:-2]


def test_an_answer_that_breaks_the_library_is_a_source_error(tree: Tree) -> None:
    def pages(error: Exception) -> Iterator[list[ObjectInfo]]:
        yield numbered(0)
        raise error

    for error in (KeyError("Size"), ValueError("year 20000"), EOFError(), RecursionError()):
        with pytest.raises(SourceError, match=f"cannot be parsed .{type(error).__name__}"):
            take_in_pages(tree, lambda error=error: pages(error))
    assert names(tree) == ["there"]


# -- what is kept -----------------------------------------------------------------------------


def test_the_first_hidden_objects_are_listed_and_all_are_counted(tree: Tree) -> None:
    summary = take_in(
        tree, [entry(f"{n:06}//x") for n in range(12_000)] + [entry(f"z/{n}\0") for n in range(500)]
    )
    assert summary.hidden == 12_500
    assert tree.hidden_counts() == {
        "an empty segment in its path": 12_000,
        "a NUL in its name": 500,
    }
    assert len(tree.hidden(100_000)) == 10_000
    take_in(tree, [entry("good")])
    assert (tree.hidden_counts(), tree.hidden(10)) == ({}, [])


def test_directories_forgotten_in_between_are_found_again(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.catalog.staging._DIRECTORIES_CACHED", 3)
    remember, remembered = StagedListing._remember, list[int]()

    def note(self: StagedListing, path: str, found: int | str) -> None:
        remember(self, path, found)
        remembered.append(len(self._directories))

    monkeypatch.setattr(StagedListing, "_remember", note)
    keys = [f"{a}/{b}/{c}" for c in range(3) for b in range(4) for a in range(5)]
    first, again = (take_in(tree, [entry(key) for key in keys]) for _ in range(2))
    assert first.files == again.files == 60
    assert first.changed == 1 + 5 + 20 + 60 + 1, "each directory once"
    assert again.changed == 0, "and the same ones again"
    assert max(remembered) == 3
