"""Listings that only seem to be over, of which one level alone never is, or of something else."""

import itertools
import os
import threading
from pathlib import Path

import pytest

from penstock.metrics import Counters
from penstock.store.connect import StoreOptions, open_store
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
