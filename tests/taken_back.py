"""Runs a test again that failed while the kernel took pages back, and says so at the end.

What is in the page cache is not asked of a mount any more, and many tests count what it is asked.
But the kernel may take any page back at any moment: for want of memory, because somebody writes to
drop_caches, or because DAMON finds its part of the memory cold, which it is set to look for on some
virtual machines (there pages that were pushed half a second before were seen to go, one here and
four there). /proc/vmstat tells that it was done; a failure meanwhile says nothing of what was
tested.

A plugin for pytest. State: none; one test at a time per process.
"""

import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

_MOST_TRIES = 3
_AGAIN_WITHIN_S = 40  # pytest-timeout gives all of them together one time
_AGAIN = "run again"


# Pages that were wanted again are told by the last alone, if it was DAMON that took them.
_COUNTS = ("drop_pagecache", "pgsteal_file", "workingset_refault_file")


def taken_back() -> int:
    """Grows when the kernel takes back pages of files, whoever made it."""
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(count) for name, count in lines if name in _COUNTS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    until_s = time.monotonic() + _AGAIN_WITHIN_S
    says_nothing, reports = _try(item, nextitem)
    for tries in range(1, _MOST_TRIES):
        if not says_nothing or time.monotonic() > until_s:
            break
        item.user_properties.append((_AGAIN, tries))
        item._initrequest()  # type: ignore[attr-defined] # its fixtures anew
        says_nothing, reports = _try(item, nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _try(item: pytest.Item, nextitem: pytest.Item | None) -> tuple[bool, list[pytest.TestReport]]:
    before = taken_back()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    return any(report.failed for report in reports) and taken_back() != before, reports


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    again = sorted({
        report.nodeid
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and _AGAIN in dict(report.user_properties)
    })  # fmt: skip
    if again:
        terminalreporter.section("run again: the kernel took pages back meanwhile", sep="-")
        for name in again:
            terminalreporter.line(name)
