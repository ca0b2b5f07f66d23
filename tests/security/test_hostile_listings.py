"""A server that lies about what it holds: a mount is refused in seconds, or goes on as it was."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.errors import SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.source import parse_source
from tests.cli.conftest import one_refusal
from tests.conftest import Mount, Mounter, penstock
from tests.security.hostile import BODY, Answer, Hostile, Query, entry, keys, page, third

MIB_KIB = 1024
BOMB = "<!DOCTYPE b [<!ENTITY a 'aaaaaaaaaa'>{}]>".format(
    "".join(f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in itertools.pairwise("abcdefghijk"))
)
OUTSIDE = "<!DOCTYPE x [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"

# Each ends with exit 2: the endpoint is no object store. The first needs most: 15 pages.
REFUSED: dict[str, tuple[Answer, str]] = {
    "the same page for ever": (lambda _: page(keys(0), "again"), "its listing repeats itself"),
    "pages in a circle": (
        lambda query: page(
            keys(1000 * (int(query.get("continuation-token", "0")) % 3)),
            str(int(query.get("continuation-token", "0")) + 1),
        ),
        "its listing repeats itself",
    ),
    "the same odd key for ever": (
        lambda _: page([entry("../x")] * 1000, "again"),
        "its listing repeats itself",
    ),
    "a third page that is cut": (third(page(keys(2000))[:5000]), "does not answer as an object"),
    "a third page that is no XML": (third(b"\x00\xff\xfe" * 100), "does not answer as an object"),
    "a size below zero": (third(page([entry("x", -5)])), "does not answer as an object"),
    "a size that is no number": (third(page([entry("x", "much")])), "does not answer as an object"),
    "no size": (
        third(page(["<Contents><Key>x</Key></Contents>"])),
        "does not answer as an object",
    ),
    "a time that is none": (
        third(page([entry("x", when="yesterday")])),
        "does not answer as an object",
    ),
    "a time in the year 20000": (
        third(page([entry("x", when="+20000-01-01T00:00:00Z")])),
        "a listing that cannot be understood",
    ),
    "a billion laughs": (third(page([entry("&k;")], doctype=BOMB)), "does not answer as an object"),
    "a file of this machine": (
        third(page([entry("&x;")], doctype=OUTSIDE)),
        "does not answer as an object",
    ),
}

# The same through botocore, which lists what the fast client cannot express.
EXACTLY: dict[str, tuple[str, str]] = {
    "a billion laughs": (page([entry("&k;")], doctype=BOMB), "does not answer as an object"),
    "a file of this machine": (
        page([entry("&x;")], doctype=OUTSIDE),
        "does not answer as an object",
    ),
    "no size": (page(["<Contents><Key>x</Key></Contents>"]), "a listing that cannot be understood"),
    "a size that is no number": (page([entry("x", "much")]), "a listing that cannot be understood"),
    "more, and no word of where": (
        page([entry("x")]).replace("false", "true"),
        "a listing that cannot be understood",
    ),
}


def exactly(second: str) -> Answer:
    """A key that only the exact listing can show, and then that listing."""

    def answer(query: Query) -> str:
        return second if "encoding-type" in query else page([entry("../x")])

    return answer


ALL = REFUSED | {f"{name}, exactly": (exactly(bad), says) for name, (bad, says) in EXACTLY.items()}


@pytest.mark.parametrize("name", ALL)
def test_a_mount_of_it_is_refused_in_seconds(hostile: Hostile, tmp_path: Path, name: str) -> None:
    hostile.answer, says = ALL[name]
    (tmp_path / "mnt").mkdir()
    one_refusal(
        ["mount", "s3://b", str(tmp_path / "mnt"), "--endpoint", hostile.endpoint, "--no-cache"],
        says=says,
    )
    assert len(hostile.asked) < 60


@pytest.fixture
def mount(hostile: Hostile, mounter: Mounter) -> Mount:
    hostile.answer = lambda _: page([entry("good/file"), entry("other")])
    return mounter(
        "s3://b", "--endpoint", hostile.endpoint, "--refresh", "never", "--deadline", "3s"
    )


def test_a_refresh_that_meets_it_fails_and_leaves_the_tree_as_it_was(
    hostile: Hostile, mount: Mount
) -> None:
    for name, (answer, says) in ALL.items():
        hostile.answer = answer
        result = penstock("refresh", mount.path)
        assert (result.returncode, says in result.stderr) == (2, True), (name, result.stderr)
        assert sorted(os.listdir(mount.path)) == ["good", "other"], name
    assert (mount.path / "good/file").read_bytes() == BODY
    # A billion laughs would be ten gigabytes; all of this together stays below a quarter of one.
    status = Path(f"/proc/{mount.stats()['pid']}/status").read_text().splitlines()
    most_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    assert most_kib < 256 * MIB_KIB
    hostile.answer = lambda _: page([entry("new")])
    mount.refresh()
    assert os.listdir(mount.path) == ["new"]


def test_a_listing_that_is_cut_off_fails_as_storage_does(hostile: Hostile, mount: Mount) -> None:
    hostile.cut = True
    result = penstock("refresh", mount.path)
    assert result.returncode in (2, 3), result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir(mount.path)) == ["good", "other"]


def test_what_cannot_be_right_of_one_object_hides_that_object_alone(
    hostile: Hostile, mount: Mount
) -> None:
    reasons = {
        "huge": "a size that no file can have",
        "long-version": "a version (ETag) longer than 1,024 characters",
        "split-version": "a version (ETag) with characters that cannot be sent back",
    }
    hostile.answer = lambda _: page(
        [
            entry("huge", 2**63),
            entry("long-version", etag="e" * 1_000_000),
            entry("split-version", etag="e&#13;&#10;X-Evil: 1"),
            entry("k" * 1_000_000),
            entry("/".join("d" * 512)),
            entry("late", when="9999-12-31T23:59:59Z"),
            entry("early", when="0001-01-01T00:00:00Z"),
            entry("good"),
        ]
    )
    mount.refresh()
    assert sorted(os.listdir(mount.path)) == ["d", "early", "good", "late"]
    deep = mount.path / "/".join("d" * 512)
    for path in (mount.path / "late", mount.path / "early", mount.path / "good", deep):
        assert path.read_bytes() == BODY
        assert path.stat().st_mtime >= 0
    found = dict(json.loads(penstock("doctor", mount.path, "-o", "json").stdout)["hidden"])
    long = next(key for key in found if key.startswith("kkk"))
    assert len(long) < 250
    assert found.pop(long) == "a path longer than 4,095 bytes"
    assert found == reasons


def test_of_very_many_hidden_objects_the_doctor_lists_the_first_and_counts_the_rest(
    hostile: Hostile, mount: Mount
) -> None:
    too_long = "x" * 256
    hostile.answer = lambda _: page([entry(f"{n:05}{too_long}") for n in range(10_500)])
    mount.refresh()
    assert mount.stats()["hidden"] == 10_500
    told = penstock("doctor", mount.path, "--limit", "20000").stdout.splitlines()
    told = told[told.index("10,500 objects cannot be shown as files:") :]
    assert told[1] == "  10,500  a name longer than 255 bytes"
    assert len(told) == 2 + 10_000 + 1
    assert told[-1] == "… and 500 more (counted, not listed)"
    assert penstock("doctor", mount.path, "--limit", "10").stdout.splitlines()[-1] == (
        "… and 10,490 more (--limit)"
    )


# -- what has no end, asked for by the parts themselves -------------------------------------------


@pytest.fixture
def store(hostile: Hostile) -> Store:
    options = StoreOptions(endpoint=hostile.endpoint)
    return open_store(parse_source("s3://b"), options, Counters())


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "catalog.sqlite")
    yield tree
    tree.close()


def test_a_listing_that_always_goes_on_ends_at_the_limit(
    hostile: Hostile, store: Store, tree: Tree
) -> None:
    numbers = itertools.count()
    hostile.answer = lambda _: page(keys(1000 * next(numbers)), "more")
    with pytest.raises(SourceError, match="more than 10,000 files and directories"):
        refresh(tree, [Mounted("", store)], lambda *_: None, most_files=10_000)
    assert len(hostile.asked) < 50
    assert tree.listed_at() is None


def test_empty_pages_for_ever_end_after_a_silence(
    hostile: Hostile, store: Store, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.catalog.listing._THREADS_END_WITHIN_S", 0.1)
    ended = False

    def answer(_query: Query) -> str:
        return page([], None if ended else "more")

    hostile.answer = answer
    with pytest.raises(StoreError, match="has brought nothing for 1 s"):
        refresh(tree, [Mounted("", store)], lambda *_: None, silence_s=1)
    ended = True  # lets the thread in the library go
    assert tree.listed_at() is None
