"""Listings that only seem to be over, that never are, or that list something else."""

from datetime import UTC, datetime

import pytest

from penstock.errors import SourceError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.reliable import open_reliable_store
from penstock.store.source import parse_source
from tests.support.hostile_s3 import Hostile, Query, entry, page

WEB_PAGE = "<html><body><p>The network wants you to log in.</p></body></html>"


def opened(hostile: Hostile, source: str = "s3://b/p") -> Store:
    return open_store(parse_source(source), StoreOptions(endpoint=hostile.endpoint), Counters())


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


# -- what the check of the end costs, and what it lets pass ---------------------------------------


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
    hostile.answer = lambda _: page(below_p(0)).replace("<IsTruncated>false", "<IsTruncated>true")
    with pytest.raises(SourceError, match="no word of where"):
        opened(hostile).list_level("")
