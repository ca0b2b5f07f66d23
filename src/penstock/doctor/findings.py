"""Findings, one for each check, and checks with a deadline."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

Severity = Literal["bad", "slow", "note", "ok"]

_NOTHING_WRONG, _FIXABLE, _UNREACHABLE = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    subject: str  # what it is about, as people call it: imagenet, /mnt/imagenet, this machine
    what: str
    why: str = ""  # what was measured, or who reported it
    remedy: str = ""  # a command where there is one
    unreachable: bool = False  # storage cannot be reached, which nothing on this machine can fix


bad = partial(Finding, "bad")
slow = partial(Finding, "slow")
note = partial(Finding, "note")
ok = partial(Finding, "ok")


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = ("bad", "slow", "note", "ok")
    return sorted(findings, key=lambda one: order.index(one.severity))


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code. What is slow or worth a note must not fail a script."""
    wrong = [finding for finding in findings if finding.severity == "bad"]
    if any(finding.unreachable for finding in wrong):
        return _UNREACHABLE
    return _FIXABLE if wrong else _NOTHING_WRONG


# -- checks that may never return --------------------------------------------------------------
#
# Each runs in a daemon thread of its own, and is abandoned at its deadline: the process does not
# wait for it when it exits.

Answer = TypeVar("Answer")
Key = TypeVar("Key")


class TooSlow(Exception):
    """A check did not return before its deadline."""


def within(seconds: float, look: Callable[[], Answer]) -> Answer:
    """Return or raise what `look` does; raise TooSlow if that takes longer."""
    return _answer(_begin(look), seconds)


def each_within(
    seconds: float, looks: Mapping[Key, Callable[[], Answer]], *, at_once: int = 16
) -> dict[Key, Answer | None]:
    """Run all checks, `at_once` at a time; None for each that was too slow. They must not raise."""
    found: dict[Key, Answer | None] = {}
    keys = list(looks)
    for first in range(0, len(keys), at_once):
        running = [(key, _begin(looks[key])) for key in keys[first : first + at_once]]
        for key, check in running:
            try:
                found[key] = _answer(check, seconds)
            except TooSlow:
                found[key] = None
    return found


def _begin(look: Callable[[], Answer]) -> Future[Answer]:
    check: Future[Answer] = Future()

    def run() -> None:
        try:
            check.set_result(look())
        except BaseException as error:  # noqa: BLE001 - raised again by _answer()
            check.set_exception(error)

    threading.Thread(target=run, name="look", daemon=True).start()
    return check


def _answer(check: Future[Answer], seconds: float) -> Answer:
    if not wait([check], seconds).done:
        raise TooSlow
    return check.result()
