"""Tests that count what the kernel has in its page cache, and run again when it dropped pages.

The kernel may take any page back at any moment: because memory is short, or because DAMON, which
some virtual machines turn on, finds it cold. A test marked `counts_pages` calls `assert_kept` for
the files whose pages it counts on. When pages of these files are gone, the test says nothing about
us, and it runs again, up to three times. Nothing else makes a test run again: no other failure of a
marked test, and no failure of any other test.

Where a reader may bring the pages, use `locked_pages` instead: then nothing has to run again.

A plugin for pytest. No state.
"""

import ctypes
import mmap
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from penstock.warm.residency import pages_by_mincore

_MARK = "counts_pages"
_MOST_RUNS = 3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
for _name in ("munmap", "mlock"):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class PagesDropped(AssertionError):
    """The kernel does not have the pages that a test put there."""


def missing_pages(path: Path) -> int:
    """Return how many pages of a file are not in the page cache. Asking brings none in.

    A file of a mount is opened as C does it: Python's `open` would send the server an ioctl.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        held = pages_by_mincore(file, size)
    finally:
        os.close(file)
    assert held is not None, f"{path}: mincore failed"
    return -(-size // mmap.PAGESIZE) - held


def assert_kept(paths: Iterable[Path]) -> None:
    """Call this for pages that are known to have been in the page cache."""
    gone = {str(path): count for path in paths if (count := missing_pages(path))}
    if gone:
        raise PagesDropped(f"pages that the kernel has dropped: {gone}")


@contextmanager
def locked_pages(paths: Iterable[Path]) -> Iterator[None]:
    """Bring these files into the page cache, as a reader would, and let the kernel drop nothing of
    them until the context ends. Where the bytes must be there already, call `assert_kept` first.
    """
    with ExitStack() as stack:
        for path in paths:
            file = os.open(path, os.O_RDONLY)
            try:
                size = os.fstat(file).st_size
                if size:
                    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
                    stack.callback(_libc.munmap, address, size)
                    assert _libc.mlock(address, size) == 0, os.strerror(ctypes.get_errno())
            finally:
                os.close(file)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker(_MARK) is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(_MOST_RUNS):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(getattr(report, "pages_dropped", False) for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(PagesDropped):
        report.pages_dropped = True  # type: ignore[attr-defined]
    return report
