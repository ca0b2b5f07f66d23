"""What the page-count plugin sees of a mount, and which failures it runs again."""

from pathlib import Path

import pytest

from tests.support.kernelcaches import drop_pages
from tests.support.mounts import Mounter
from tests.support.page_counts import PagesDropped, assert_kept, locked_pages, missing_pages
from tests.support.trees import write_tree

pytest_plugins = ["pytester"]

PAGES = 25


def test_pages_of_a_mount_are_counted_without_a_message(mounter: Mounter, tmp_path: Path) -> None:
    write_tree(tmp_path / "set", {"file": bytes(PAGES * 4096 - 5), "empty": b""})
    mount = mounter(f"file://{tmp_path}/set", "--mode", "pagecache")
    path = mount.path / "file"
    path.stat()
    assert missing_pages(mount.path / "empty") == 0
    found: list[int] = []
    sent = mount.messages_while(lambda: found.extend(missing_pages(path) for _ in range(2)))
    assert (found, sent) == ([PAGES, PAGES], {}), "counting brings nothing in"
    with locked_pages([path]):
        drop_pages([path])
        assert_kept([path])
    drop_pages([path])
    with pytest.raises(PagesDropped, match=f"file': {PAGES}"):
        assert_kept([path])


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
