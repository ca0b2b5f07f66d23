"""A server that lies about what it holds: a mount is refused in seconds, or goes on as it was.
Listings that only seem to be over, that never are, or that list something else."""

import itertools
import os
import threading
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
from penstock.store.retry import open_reliable_store
from penstock.store.source import parse_source
from tests.support.liar import BODY, Liar, Page, Query, entry, page, serve_liar
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


def third(bad: str | bytes) -> Page:
    """Two good pages of a thousand, then this."""

    def answer(query: Query) -> str | bytes:
        token = query.get("continuation-token")
        if token is None:
            return page(keys(0), "second")
        return page(keys(1000), "third") if token == "second" else bad

    return answer


NO_STORE = "does not answer as an object"
REPEATS = "its listing repeats itself"
UNCLEAR = "the listing cannot be parsed"
# Each ends with exit 2: the endpoint is no object store. The first needs most: 15 pages.
REFUSED: dict[str, tuple[Page, str]] = {
    "the same page for ever": (lambda _: page(keys(0), "again"), REPEATS),
    "pages in a circle": (circle, REPEATS),
    "the same odd key for ever": (lambda _: page([entry("../x")] * 200, "again"), REPEATS),
    "a web page": (lambda _: WEB_PAGE, NO_STORE),
    "a third page that is a web page": (third(WEB_PAGE), NO_STORE),
    "more, and no word of where": (third(endless(page(keys(2000)))), UNCLEAR),
    "an end that is none": (third(page(keys(2000))), "more lies behind"),
    "a third page that is no XML": (third(b"\x00\xff\xfe" * 100), NO_STORE),
    "a size that is no number": (third(page([entry("x", "much")])), NO_STORE),
    "a time that is none": (third(page([entry("x", when="yesterday")])), NO_STORE),
    "a time in the year 20000": (
        third(page([entry("x", when="+20000-01-01T00:00:00Z")])),
        NO_STORE,
    ),
    "no size": (third(page(["<Contents><Key>x</Key></Contents>"])), NO_STORE),
    "the same token, and new keys for ever": (
        lambda query: page(keys(0 if "continuation-token" not in query else 1000), "again"),
        REPEATS,
    ),
    "a billion laughs": (third(page([entry("&k;")], doctype=BOMB)), NO_STORE),
    "a file of this machine": (third(page([entry("&x;")], doctype=OUTSIDE)), NO_STORE),
}

# What these answer when they are asked what comes behind their last key.
AFTER = {"a third page that is a web page": WEB_PAGE, "an end that is none": page(keys(3000))}


def opened(liar: Liar, source: str = "s3://b/p") -> Store:
    return open_store(parse_source(source), StoreOptions(endpoint=liar.endpoint), Counters())


@pytest.fixture
def store(liar: Liar) -> Store:
    return opened(liar, "s3://b")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "catalog.sqlite")
    yield tree
    tree.close()


def list_anew(tree: Tree, store: Store, **limits: int) -> None:
    refresh(tree, [Mounted("", store)], lambda *_: None, **limits)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refresh_of_a_hostile_listing_fails_and_leaves_the_tree_unchanged(
    liar: Liar, store: Store, tree: Tree, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("penstock.catalog.staging._REPEATS_ALLOWED", 1000)
    liar.answer = lambda _: GOOD
    list_anew(tree, store)
    listed_at, files = tree.listed_at(), list(tree.files())
    assert len(files) == 2
    liar.asked.clear()
    liar.answer, says = REFUSED[name]
    liar.after = lambda _: AFTER.get(name, page([]))
    with pytest.raises(SourceError, match=says):
        list_anew(tree, store)
    assert (tree.listed_at(), list(tree.files())) == (listed_at, files)
    assert 0 < len(liar.asked) < 60


@pytest.fixture(scope="module")
def _mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Liar, Shared]]:
    folder = tmp_path_factory.mktemp("mounted")
    with serve_liar() as liar, sharing(folder, KEYS) as mounter:
        liar.answer = lambda _: GOOD
        options = ("--endpoint", liar.endpoint, "--refresh", "never", "--deadline", "8s")
        yield liar, Shared(mounter("s3://b", *options), folder / "state")


@pytest.fixture
def mounted(_mounted: tuple[Liar, Shared], monkeypatch: pytest.MonkeyPatch) -> tuple[Liar, Mount]:
    """A server and its mount, which shows `good/file` and `other`."""
    liar, shared = _mounted
    mount = shared.enter(monkeypatch)
    liar.answer, liar.cut = lambda _: GOOD, False
    mount.refresh()
    return liar, mount


def test_a_compression_bomb_or_a_truncated_answer_does_not_affect_a_mount(
    mounted: tuple[Liar, Mount],
) -> None:
    liar, mount = mounted
    liar.cut = True  # it fails as storage does
    assert "Traceback" not in fail("refresh", mount.path, code=3)
    assert sorted(os.listdir(mount.path)) == ["good", "other"]
    liar.cut = False
    liar.answer, says = REFUSED["a billion laughs"]
    assert says in fail("refresh", mount.path)
    assert sorted(os.listdir(mount.path)) == ["good", "other"]
    assert (mount.path / "good/file").read_bytes() == BODY
    endless = b"<ListBucketResult>", *itertools.repeat(b"<Name>" + b"x" * 10**4 + b"</Name>", 10**6)
    liar.lie = lambda _liar, _request, _truth: (b"HTTP/1.1 200 OK\r\n\r\n", *endless)
    assert "is too long" in fail("refresh", mount.path)
    liar.lie = None
    # Each of them would be ten gigabytes.
    status = Path(f"/proc/{mount.stats()['pid']}/status").read_text().splitlines()
    most_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    assert most_kib < 256 * 1024
    liar.answer = lambda _: page([entry("new")])
    mount.refresh()
    assert os.listdir(mount.path) == ["new"]


def test_the_doctor_lists_the_first_of_many_hidden_objects_and_counts_the_rest(
    mounted: tuple[Liar, Mount],
) -> None:
    liar, mount = mounted
    too_long = "x" * 256
    liar.answer = lambda _: page([entry(f"{n:05}{too_long}") for n in range(10_500)])
    mount.refresh()
    assert mount.stats()["hidden"] == 10_500
    lines = penstock("doctor", mount.path, "--limit", "20000").stdout.splitlines()
    _, reason, *listed, rest = lines[lines.index("10,500 objects cannot be shown as files:") :]
    assert reason == "  10,500  a name longer than 255 bytes"
    assert (len(listed), rest) == (10_000, "… and 500 more (counted, not listed)")
    assert penstock("doctor", mount.path, "--limit", "10").stdout.splitlines()[-1] == (
        "… and 10,490 more (--limit)"
    )


def test_empty_pages_end_after_a_limit_or_after_a_silence(
    liar: Liar, store: Store, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar.answer = lambda _query: page([], f"more-{len(liar.asked)}")
    with pytest.raises(SourceError, match="1001 empty pages"):
        list_anew(tree, store)
    assert tree.listed_at() is None
    monkeypatch.setattr("penstock.catalog.listing._JOIN_TIMEOUT_S", 0.1)
    ended = threading.Event()
    liar.answer = lambda _query: page([]) if ended.wait(60) else ""
    with pytest.raises(StoreError, match=r"has made no progress for 0\.2 s"):
        list_anew(tree, store, silence_s=0.2)
    ended.set()  # lets the thread in the store go


# -- the end of a listing ---------------------------------------------------------------


def listed(store: Store) -> list[str]:
    return [info.key for page in store.list_all("") for info in page]


def test_an_endless_level_is_stopped(liar: Liar) -> None:
    """A level is listed as a whole, in memory. One that goes on and on is listed in pages."""
    most = 200  # so that this test ends in any case

    def answer(_query: Query) -> str:
        asked = len(liar.asked)
        names = [entry(f"{asked:04}-{number}") for number in range(10)]
        return page(names, f"more-{asked}" if asked < most else None)

    liar.answer = answer
    assert opened(liar, "s3://b").list_level("") is None
    assert len(liar.asked) <= most // 2


def below_p(first: int, count: int = 1000, when: str = "2024-01-01T00:00:00.000Z") -> list[str]:
    return [entry(f"p/{number:06}", when=when) for number in range(first, first + count)]


def two_pages(query: Query) -> str:
    return page(below_p(1000)) if "continuation-token" in query else page(below_p(0), "second")


def test_a_listing_of_one_page_is_trusted_and_the_end_of_a_longer_one_is_checked(
    liar: Liar,
) -> None:
    liar.answer = lambda _: page(below_p(0, 999))
    assert len(listed(opened(liar))) == 999
    assert len(liar.asked) == 1
    liar.asked.clear()
    liar.answer = two_pages
    assert len(listed(opened(liar))) == 2000
    assert [("start-after" in asked) for asked in liar.asked] == [False, False, True]
    liar.after = lambda _: page(below_p(0), "second")  # it passes over start-after
    assert len(listed(opened(liar))) == 2000


def test_objects_written_during_a_listing_do_not_count_as_a_lost_page(liar: Liar) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    liar.answer, liar.after = two_pages, lambda _: page(below_p(2000, 3, now))
    assert listed(opened(liar))[-1] == "002002"


def test_a_check_that_fails_once_is_repeated(liar: Liar) -> None:
    busy = "<Error><Code>SlowDown</Code><Message>later</Message></Error>"
    answers = [busy, page([]), page([])]  # then behind the last key once more, and its check
    liar.answer, liar.after = two_pages, lambda _: answers.pop(0)
    counters = Counters()
    store = open_reliable_store(
        parse_source("s3://b/p"), StoreOptions(endpoint=liar.endpoint), counters
    )
    assert len(listed(store)) == 2000
    assert counters.by_label("store_retries") == {"slow_down": 1}
    assert answers == []


def test_a_prefix_of_odd_characters_matches_its_keys(liar: Liar) -> None:
    for prefix in ("sp ace+plus%41", "a~b*c#?", "é", "p.q"):
        found = page([entry(f"{prefix}/x"), entry(f"{prefix}/", 0)])
        liar.answer = liar.after = lambda _, found=found: found
        store = opened(liar, f"s3://b/{prefix}")
        assert listed(store)[0] == "x"
        level = store.list_level("")
        assert level is not None
        assert [info.key for info in level.objects] == ["x"]


def test_an_endpoint_that_lists_other_keys_than_requested_is_rejected(liar: Liar) -> None:
    """It ignores the prefix. Names from elsewhere would stand for other objects' bytes."""
    liar.answer = lambda _: page([entry("p/x"), entry("other/y")])
    with pytest.raises(SourceError, match="other/y"):
        listed(opened(liar))
    with pytest.raises(SourceError, match="other/y"):
        opened(liar).list_level("")


def test_a_level_that_ends_early_is_rejected(liar: Liar) -> None:
    liar.answer = lambda query: WEB_PAGE if "continuation-token" in query else two_pages(query)
    with pytest.raises(SourceError, match="does not answer as an object store"):
        opened(liar).list_level("")
    liar.answer = lambda _: endless(page(below_p(0)))
    with pytest.raises(SourceError, match="no continuation token"):
        opened(liar).list_level("")
