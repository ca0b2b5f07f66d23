"""Listings of any size come in pages of ours, and little is kept back between two of them."""

import gzip
from pathlib import Path

import pytest

from penstock.catalog.listing import list_in_parallel
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.errors import OptionError, SourceError
from penstock.metrics import Counters
from penstock.operations.locations import Location
from penstock.settings import Part
from penstock.store import Level, ObjectInfo, Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.local import LocalStore
from penstock.store.obstore_listing import MAX_HELD_BACK, EmptyObjects
from penstock.store.source import parse_source
from penstock.store.weblisting import read_manifest
from tests.support.s3 import S3
from tests.support.trees import write_tree


def empty(key: str) -> ObjectInfo:
    return ObjectInfo(key, 0, 0, "v")


class Levels:
    """Says of each level that its names with an `m` are directories, and notes who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, prefix: str) -> Level:
        self.asked.append(prefix)
        start = f"{prefix}/" if prefix else ""
        return Level([empty(f"{start}file")], [f"{start}m"])


def keys(pages: list[list[ObjectInfo]]) -> list[str]:
    return [info.key for page in pages for info in page]


def test_empty_objects_are_listed_as_soon_as_their_directory_has_passed() -> None:
    levels = Levels()
    held = EmptyObjects(levels, ordered=True)
    for key in ("file", "a/file", "a/m", "a/deep/file"):
        held.add(empty(key))
    assert list(held.resolve_before("a/deep/x")) == []
    assert keys(list(held.resolve_before("a/n"))) == ["a/deep/file"]
    assert keys(list(held.resolve_before("b"))) == ["a/file", "a/m/"]
    assert held
    assert keys(list(held.resolve_all())) == ["file"]
    assert levels.asked == ["a/deep", "a", ""]
    assert not held


def test_the_number_of_held_back_objects_is_bounded() -> None:
    levels = Levels()
    held = EmptyObjects(levels, ordered=False)
    for number in range(MAX_HELD_BACK):
        held.add(empty(f"full/{number}"))
    held.add(empty("other/m"))
    reported = keys(list(held.resolve_before("x")))
    assert reported == [*(f"full/{number}" for number in range(MAX_HELD_BACK)), "other/m/"]
    assert levels.asked == ["other"]
    assert not held


# By path segment, as SeaweedFS lists them, "a/x" comes before "a b"; by bytes it comes after it.
CROWDED = {
    **{f"a/{number:04}": b"" for number in range(1010)},
    **{f"{name}/{number:02}": b"x" for name in ("a b", "a-b", "a/b", "a.") for number in range(20)},
    **dict.fromkeys(["a", "a.x", "a/0005.x", "a/b.c", "a b/00/x", "b"], b"y"),
}


@pytest.fixture(scope="session")  # not "module": a worker may come back to this module
def crowded(_s3_server: S3) -> S3:
    write_tree(_s3_server.bucket("crowded"), CROWDED)
    return _s3_server


def open_crowded(s3: S3, prefix: str = "", counters: Counters | None = None) -> Store:
    return open_store(
        parse_source(f"s3://crowded/{prefix}"),
        StoreOptions(endpoint=s3.endpoint),
        counters or Counters(),
    )


def test_every_page_of_a_bucket_of_empty_objects_is_one_request(s3: S3, crowded: S3) -> None:
    counters = Counters()
    pages = list(open_crowded(s3, "a", counters).list_all(""))
    assert [len(page) for page in pages] == [1000, 32]
    assert sorted(keys(pages)) == sorted(key[2:] for key in CROWDED if key.startswith("a/"))
    # Two pages, and one more for the end.
    assert counters.by_label("store_requests") == {"list": 3}


def test_a_server_with_its_own_order_loses_and_doubles_no_name(
    s3: S3, crowded: S3, tmp_path: Path
) -> None:
    store = open_crowded(s3)
    assert sorted(keys(list(store.list_all("")))) == sorted(CROWDED)
    for prefix in ("a", "a b", "a/b"):
        below = [key for key in CROWDED if key.startswith(f"{prefix}/")]
        assert sorted(keys(list(store.list_all(prefix)))) == sorted(below)
    found = keys(list(list_in_parallel(store)))
    assert sorted(key for key in found if not key.endswith("/")) == sorted(CROWDED)
    tree = Tree(tmp_path / "catalog.sqlite")
    summary = refresh(tree, [Mounted("", store)], lambda *_: None)
    hidden = dict(tree.hidden(10))
    tree.close()
    assert set(hidden) == {"a", "a b/00"}, "files and folders at once"
    assert (summary.files, summary.hidden) == (len(CROWDED) - 2, 2)


def test_a_listing_in_another_order_resumes_after_any_key_without_loss(s3: S3, crowded: S3) -> None:
    store = open_crowded(s3)
    pages = s3.client.get_paginator("list_objects_v2").paginate(Bucket="crowded")
    order = [entry["Key"] for page in pages for entry in page["Contents"]]
    assert order != sorted(order), "this server lists by bytes now"
    # Behind a file that is a folder too, SeaweedFS would leave out what the folder holds.
    for behind in ("a", "a b/00", "a/0500", "a/b/19", "a b/19", "a.x", order[999], order[-1]):
        rest = keys(list(store.list_all("", behind)))
        missing = set(order[order.index(behind) + 1 :]) - set(rest)
        assert not missing, behind
        assert len(rest) == len(set(rest))


def test_a_large_folder_is_listed_in_pages_and_not_as_one_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path, {f"flat/{number}": b"" for number in range(1100)})
    store = LocalStore(str(tmp_path), Counters())
    pages = list(store.list_all(""))
    assert [len(page) for page in pages] == [1000, 101]
    assert set(keys(pages)) == {"flat/", *(f"flat/{number}" for number in range(1100))}
    monkeypatch.setattr("penstock.store.local._LEVEL_ENTRIES", 1099)
    assert store.list_level("flat") is None
    monkeypatch.setattr("penstock.store.local._LEVEL_ENTRIES", 1100)
    level = store.list_level("flat")
    assert level is not None
    assert len(level.objects) == 1100


def test_a_migration_has_the_same_bound_as_a_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path, {f"{number}": b"" for number in range(30)})
    parts = (Part("", parse_source(f"file://{tmp_path}"), StoreOptions()),)
    location = Location(parts, "", "here", Counters())
    assert sum(map(len, location.list_all())) == 30
    monkeypatch.setattr("penstock.operations.locations.MOST_FILES", 29)
    with pytest.raises(SourceError, match="more than 29 objects") as refused:
        list(location.list_all())
    assert refused.value.hint


@pytest.mark.parametrize("ending", ["txt", "gz"])
def test_an_endless_line_of_a_manifest_is_rejected_by_number(tmp_path: Path, ending: str) -> None:
    manifest = tmp_path / f"manifest.{ending}"
    text = b"# sizes and paths\n5 good\n7 " + b"x" * 10_000_000
    manifest.write_bytes(gzip.compress(text, 1) if ending == "gz" else text)
    with pytest.raises(OptionError, match=rf"{manifest}:3: a line of more than 65,536") as raised:
        list(read_manifest(manifest))
    assert raised.value.hint


@pytest.mark.parametrize("line", ["² file", f"{'9' * 5000} file", "{" + '"a":[' * 10_000])
def test_an_invalid_number_in_a_manifest_is_rejected_by_line(tmp_path: Path, line: str) -> None:
    manifest = tmp_path / "manifest"
    manifest.write_text(f"5 good\n{line}\n")
    with pytest.raises(OptionError, match=rf"{manifest}:2: not an object line") as raised:
        list(read_manifest(manifest))
    assert len(str(raised.value)) < 400
