"""A server that lies about what it holds: a mount is refused in seconds, or goes on as it was.
Listings that only seem to be over, that never are, or that list something else."""

import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.errors import SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.reliable import open_reliable_store
from penstock.store.source import parse_source
from tests.support.hostile_s3 import BODY, Answer, Hostile, Query, entry, hostile_s3, page
from tests.support.mounts import Mount, fail, penstock
from tests.support.s3 import KEYS
from tests.support.shared_mounts import Shared, sharing

GOOD = page([entry("good/file"), entry("other")])
BOMB = "<!DOCTYPE b [<!ENTITY a 'aaaaaaaaaa'>{}]>".format(
    "".join(f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in itertools.pairwise("abcdefghijk"))
)
WEB_PAGE = "<html><body><p>The network wants you to log in.</p></body></html>"
OUTSIDE = "<!DOCTYPE x [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"


def keys(first: int, count: int = 1000) -> list[str]:
    return [entry(f"{number:06}") for number in range(first, first + count)]


def endless(last: str) -> str:
    return last.replace("<IsTruncated>false", "<IsTruncated>true")


def circle(query: Query) -> str:
    number = int(query.get("continuation-token", "0"))
    return page(keys(1000 * (number % 3)), str(number + 1))


def third(bad: str | bytes) -> Answer:
    """Two good pages of a thousand, then this."""

    def answer(query: Query) -> str | bytes:
        token = query.get("continuation-token")
        if token is None:
            return page(keys(0), "second")
        return page(keys(1000), "third") if token == "second" else bad

    return answer


NO_STORE = "does not answer as an object"
REPEATS = "its listing repeats itself"
UNCLEAR = "a listing that cannot be understood"
# Each ends with exit 2: the endpoint is no object store. The first needs most: 15 pages.
REFUSED: dict[str, tuple[Answer, str]] = {
    "the same page for ever": (lambda _: page(keys(0), "again"), REPEATS),
    "pages in a circle": (circle, REPEATS),
    "the same odd key for ever": (lambda _: page([entry("../x")] * 200, "again"), REPEATS),
    "a web page": (lambda _: WEB_PAGE, NO_STORE),
    "a third page that is a web page": (third(WEB_PAGE), NO_STORE),
    "more, and no word of where": (third(endless(page(keys(2000)))), "more lies behind"),
    "a third page that is no XML": (third(b"\x00\xff\xfe" * 100), NO_STORE),
    "a size that is no number": (third(page([entry("x", "much")])), NO_STORE),
    "a time that is none": (third(page([entry("x", when="yesterday")])), NO_STORE),
    "a time in the year 20000": (third(page([entry("x", when="+20000-01-01T00:00:00Z")])), UNCLEAR),
    "a billion laughs": (third(page([entry("&k;")], doctype=BOMB)), NO_STORE),
    "a file of this machine": (third(page([entry("&x;")], doctype=OUTSIDE)), NO_STORE),
}

# The same through botocore, which lists what the fast client cannot express.
EXACTLY: dict[str, tuple[str, str]] = {
    "a billion laughs": (page([entry("&k;")], doctype=BOMB), NO_STORE),
    "a file of this machine": (page([entry("&x;")], doctype=OUTSIDE), NO_STORE),
    "no size": (page(["<Contents><Key>x</Key></Contents>"]), UNCLEAR),
    "more, and no word of where": (endless(page([entry("x")])), UNCLEAR),
}


def exactly(second: str) -> Answer:
    """A key that only the exact listing can show, and then that listing."""

    def answer(query: Query) -> str:
        return second if "encoding-type" in query else page([entry("../x")])

    return answer


# What these answer when they are asked what comes behind their last key.
AFTER = {
    "a third page that is a web page": WEB_PAGE,
    "more, and no word of where": page(keys(3000)),
}
ALL = REFUSED | {f"{name}, exactly": (exactly(bad), says) for name, (bad, says) in EXACTLY.items()}


def opened(hostile: Hostile, source: str = "s3://b/p") -> Store:
    return open_store(parse_source(source), StoreOptions(endpoint=hostile.endpoint), Counters())


@pytest.fixture
def store(hostile: Hostile) -> Store:
    return opened(hostile, "s3://b")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "catalog.sqlite")
    yield tree
    tree.close()


def list_anew(tree: Tree, store: Store, **limits: int) -> None:
    refresh(tree, [Mounted("", store)], lambda *_: None, **limits)


@pytest.mark.parametrize("name", ALL)
def test_a_refresh_that_meets_it_fails_and_leaves_the_tree_as_it_was(
    hostile: Hostile, store: Store, tree: Tree, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("penstock.catalog.incoming._REPEATS_FORGIVEN", 1000)
    hostile.answer = lambda _: GOOD
    list_anew(tree, store)
    listed_at, files = tree.listed_at(), list(tree.files())
    assert len(files) == 2
    hostile.asked.clear()
    hostile.answer, says = ALL[name]
    hostile.after = lambda _: AFTER.get(name, page([]))
    with pytest.raises(SourceError, match=says):
        list_anew(tree, store)
    assert (tree.listed_at(), list(tree.files())) == (listed_at, files)
    assert 0 < len(hostile.asked) < 60


@pytest.fixture(scope="module")
def _mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hostile, Shared]]:
    folder = tmp_path_factory.mktemp("mounted")
    with hostile_s3() as hostile, sharing(folder, KEYS) as mounter:
        hostile.answer = lambda _: GOOD
        options = ("--endpoint", hostile.endpoint, "--refresh", "never", "--deadline", "3s")
        yield hostile, Shared(mounter("s3://b", *options), folder / "state")


@pytest.fixture
def mounted(
    _mounted: tuple[Hostile, Shared], monkeypatch: pytest.MonkeyPatch
) -> tuple[Hostile, Mount]:
    """A server and its mount, which shows `good/file` and `other`."""
    hostile, shared = _mounted
    mount = shared.enter(monkeypatch)
    hostile.answer, hostile.cut = lambda _: GOOD, False
    mount.refresh()
    return hostile, mount


def test_a_bomb_or_a_cut_costs_a_mount_nothing(mounted: tuple[Hostile, Mount]) -> None:
    hostile, mount = mounted
    hostile.cut = True  # it fails as storage does
    assert "Traceback" not in fail("refresh", mount.path, code=3)
    assert sorted(os.listdir(mount.path)) == ["good", "other"]
    hostile.cut = False
    for name in ("a billion laughs", "a billion laughs, exactly"):
        hostile.answer, says = ALL[name]
        assert says in fail("refresh", mount.path)
        assert sorted(os.listdir(mount.path)) == ["good", "other"]
    assert (mount.path / "good/file").read_bytes() == BODY
    # It would be ten gigabytes.
    status = Path(f"/proc/{mount.stats()['pid']}/status").read_text().splitlines()
    most_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    assert most_kib < 256 * 1024
    hostile.answer = lambda _: page([entry("new")])
    mount.refresh()
    assert os.listdir(mount.path) == ["new"]


def test_of_very_many_hidden_objects_the_doctor_lists_the_first_and_counts_the_rest(
    mounted: tuple[Hostile, Mount],
) -> None:
    hostile, mount = mounted
    too_long = "x" * 256
    hostile.answer = lambda _: page([entry(f"{n:05}{too_long}") for n in range(10_500)])
    mount.refresh()
    assert mount.stats()["hidden"] == 10_500
    told = penstock("doctor", mount.path, "--limit", "20000").stdout.splitlines()
    _, reason, *listed, rest = told[told.index("10,500 objects cannot be shown as files:") :]
    assert reason == "  10,500  a name longer than 255 bytes"
    assert (len(listed), rest) == (10_000, "… and 500 more (counted, not listed)")
    assert penstock("doctor", mount.path, "--limit", "10").stdout.splitlines()[-1] == (
        "… and 10,490 more (--limit)"
    )


def test_empty_pages_for_ever_end_after_a_silence(
    hostile: Hostile, store: Store, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.catalog.listing._THREADS_END_WITHIN_S", 0.1)
    ended = False

    def answer(_query: Query) -> str:
        return page([], None if ended else "more")

    hostile.answer = answer
    with pytest.raises(StoreError, match="has brought nothing for 1 s"):
        list_anew(tree, store, silence_s=1)
    ended = True  # lets the thread in the library go
    assert tree.listed_at() is None


# -- the end of a listing ---------------------------------------------------------------


def listed(store: Store) -> list[str]:
    return [info.key for page in store.list_all("") for info in page]


def test_a_level_without_an_end_is_given_up(hostile: Hostile) -> None:
    """A level is listed as a whole, in memory. One that goes on and on is listed in pages."""
    most = 200  # so that this test ends in any case

    def answer(_query: Query) -> str:
        asked = len(hostile.asked)
        names = [entry(f"{asked:04}-{number}") for number in range(10)]
        return page(names, "more" if asked < most else None)

    hostile.answer = answer
    assert opened(hostile, "s3://b").list_level("") is None
    assert len(hostile.asked) <= most // 2


def below_p(first: int, count: int = 1000, when: str = "2024-01-01T00:00:00.000Z") -> list[str]:
    return [entry(f"p/{number:06}", when=when) for number in range(first, first + count)]


def two_pages(query: Query) -> str:
    return page(below_p(1000)) if "continuation-token" in query else page(below_p(0), "second")


def test_a_listing_of_one_page_is_believed_and_a_longer_one_asked_for_its_end(
    hostile: Hostile,
) -> None:
    hostile.answer = lambda _: page(below_p(0, 999))
    assert len(listed(opened(hostile))) == 999
    assert len(hostile.asked) == 1
    hostile.asked.clear()
    hostile.answer = two_pages
    assert len(listed(opened(hostile))) == 2000
    assert [("start-after" in asked) for asked in hostile.asked] == [False, False, True]
    hostile.after = lambda _: page(below_p(0), "second")  # it passes over start-after
    assert len(listed(opened(hostile))) == 2000


def test_what_is_written_while_it_is_listed_is_no_sign_of_a_lost_page(hostile: Hostile) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    hostile.answer, hostile.after = two_pages, lambda _: page(below_p(2000, 3, now))
    assert listed(opened(hostile))[-1] == "002002"


def test_a_check_that_fails_for_a_moment_is_made_again(hostile: Hostile) -> None:
    busy = "<Error><Code>SlowDown</Code><Message>later</Message></Error>"
    answers = [busy, page([]), page([])]  # then behind the last key once more, and its check
    hostile.answer, hostile.after = two_pages, lambda _: answers.pop(0)
    counters = Counters()
    store = open_reliable_store(
        parse_source("s3://b/p"), StoreOptions(endpoint=hostile.endpoint), counters
    )
    assert len(listed(store)) == 2000
    assert counters.by_label("store_retries") == {"slow_down": 1}
    assert answers == []


def test_a_prefix_of_odd_characters_is_found_again_in_its_keys(hostile: Hostile) -> None:
    for prefix in ("sp ace+plus%41", "a~b*c#?", "é", "p.q"):
        found = page([entry(f"{prefix}/x"), entry(f"{prefix}/", 0)])
        hostile.answer = hostile.after = lambda _, found=found: found
        store = opened(hostile, f"s3://b/{prefix}")
        assert listed(store)[0] == "x"
        level = store.list_level("")
        assert level is not None
        assert [info.key for info in level.objects] == ["x"]


def test_an_endpoint_that_lists_what_was_not_asked_for_is_refused(hostile: Hostile) -> None:
    """It ignores the prefix. Names from elsewhere would stand for other objects' bytes."""
    hostile.answer = lambda _: page([entry("p/x"), entry("other/y")])
    with pytest.raises(SourceError, match="other/y"):
        listed(opened(hostile))
    with pytest.raises(SourceError, match="other/y"):
        opened(hostile).list_level("")


def test_a_level_that_ends_without_its_end_is_refused(hostile: Hostile) -> None:
    hostile.answer = lambda query: WEB_PAGE if "continuation-token" in query else two_pages(query)
    with pytest.raises(SourceError, match="does not answer as an object store"):
        opened(hostile).list_level("")
    hostile.answer = lambda _: endless(page(below_p(0)))
    with pytest.raises(SourceError, match="no word of where"):
        opened(hostile).list_level("")
