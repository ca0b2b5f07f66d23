"""Listings that only seem to be over, of which one level alone never is, or of something else."""

import itertools
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import SourceError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.reliable import open_reliable_store
from penstock.store.source import parse_source
from tests.cli.conftest import one_refusal
from tests.conftest import Mounter, penstock
from tests.security.hostile import Hostile, Query, entry, keys, page, third

WEB_PAGE = "<html><body><p>The network wants you to log in.</p></body></html>"


UNTOLD = page(keys(2000)).replace("<IsTruncated>false", "<IsTruncated>true")  # and no token


@pytest.mark.parametrize(
    ("last", "after"), [(WEB_PAGE, WEB_PAGE), (UNTOLD, page(keys(3000)))],
    ids=["a web page", "more, and no word of where"],
)  # fmt: skip
def test_a_listing_that_ends_without_its_end_does_not_remove_files(
    hostile: Hostile, mounter: Mounter, last: str, after: str
) -> None:
    hostile.answer = third(page(keys(2000)))
    mount = mounter("s3://b", "--endpoint", hostile.endpoint, "--refresh", "never")
    assert len(os.listdir(mount.path)) == 3000
    hostile.answer, hostile.after = third(last), lambda _: after
    result = penstock("refresh", mount.path)
    assert len(os.listdir(mount.path)) == 3000
    assert result.returncode in (2, 3)


def test_an_endpoint_that_lists_what_was_not_asked_for_is_refused(
    hostile: Hostile, tmp_path: Path
) -> None:
    """It passes over the prefix. Names from elsewhere would stand for other objects' bytes."""
    hostile.answer = lambda _: page([entry("p/x"), entry("other/y"), entry("pq/z")])
    (tmp_path / "mnt").mkdir()
    one_refusal(
        ["mount", "s3://b/p", str(tmp_path / "mnt"), "--endpoint", hostile.endpoint, "--no-cache"],
        says="other/y|pq/z|prefix",
    )


def test_a_level_without_an_end_is_given_up(hostile: Hostile) -> None:
    """A level is listed as a whole, in memory; of one that goes on and on, a part must do."""
    numbers = itertools.count()
    most = 200
    asked = threading.Semaphore(most)

    def answer(_query: Query) -> str:
        goes_on = asked.acquire(blocking=False)  # so that this test ends in any case
        names = range(1000 * next(numbers), 1000 * next(numbers))
        return page([entry(f"{n}-x") for n in names], "more" if goes_on else None)

    hostile.answer = answer
    options = StoreOptions(endpoint=hostile.endpoint)
    store = open_store(parse_source("s3://b"), options, Counters())
    store.list_level("")
    assert len(hostile.asked) <= most // 2


# -- what the check of the end costs, and what it lets pass ---------------------------------------


def opened(hostile: Hostile, source: str = "s3://b/p") -> Store:
    return open_store(parse_source(source), StoreOptions(endpoint=hostile.endpoint), Counters())


def listed(store: Store) -> list[str]:
    return [info.key for page in store.list_all("") for info in page]


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


def test_a_server_that_passes_over_start_after_is_believed(hostile: Hostile) -> None:
    hostile.answer, hostile.after = two_pages, lambda _: page(below_p(0), "second")
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


def test_a_web_page_in_the_place_of_a_listing_does_not_empty_the_mount(
    hostile: Hostile, mounter: Mounter
) -> None:
    hostile.answer = lambda _: page([entry("p/x")])
    mount = mounter("s3://b/p", "--endpoint", hostile.endpoint, "--refresh", "never")
    hostile.answer = lambda _: WEB_PAGE
    assert penstock("refresh", mount.path).returncode == 2
    assert os.listdir(mount.path) == ["x"]


@pytest.mark.parametrize("prefix", ["sp ace+plus%41", "a~b*c#?", "é", "p.q"])
def test_a_prefix_of_odd_characters_is_found_again_in_its_keys(
    hostile: Hostile, prefix: str
) -> None:
    hostile.answer = lambda _: page([entry(f"{prefix}/x"), entry(f"{prefix}/", 0)])
    hostile.after = hostile.answer
    store = opened(hostile, f"s3://b/{prefix}")
    assert listed(store)[0] == "x"
    level = store.list_level("")
    assert level is not None
    assert [info.key for info in level.objects] == ["x"]


def test_a_level_of_something_else_is_refused(hostile: Hostile) -> None:
    hostile.answer = lambda _: page([entry("other/y")])
    with pytest.raises(SourceError, match="other/y"):
        opened(hostile).list_level("")


def test_a_level_that_ends_without_its_end_is_refused(hostile: Hostile) -> None:
    hostile.answer = lambda query: WEB_PAGE if "continuation-token" in query else two_pages(query)
    with pytest.raises(SourceError, match="does not answer as an object store"):
        opened(hostile).list_level("")
    hostile.answer = lambda _: page(below_p(0)).replace("<IsTruncated>false", "<IsTruncated>true")
    with pytest.raises(SourceError, match="no word of where"):
        opened(hostile).list_level("")
