"""Which failures the page-count plugin runs again."""

import pytest

pytest_plugins = ["pytester"]

RERUN = """
import pytest
from tests.support.page_counts import PagesDropped

runs = {}

def fail(name, error, times):
    runs[name] = runs.get(name, 0) + 1
    if runs[name] <= times:
        raise error("PagesDropped")

@pytest.mark.counts_pages
def test_dropped_once(tmp_path): fail("once", PagesDropped, 1)

@pytest.mark.counts_pages
def test_dropped_always(): fail("always", PagesDropped, 9)

@pytest.mark.counts_pages
def test_failed(): fail("failed", AssertionError, 1)

def test_unmarked(): fail("unmarked", PagesDropped, 1)

def test_counts(): assert runs == {"once": 2, "always": 3, "failed": 1, "unmarked": 1}
"""


def test_only_dropped_pages_of_a_marked_test_run_it_again(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = counts_pages")
    pytester.makepyfile(RERUN)
    result = pytester.runpytest_inprocess("-p", "tests.support.page_counts", "-p", "no:xdist")
    assert result.parseoutcomes() == {"passed": 2, "failed": 3}
