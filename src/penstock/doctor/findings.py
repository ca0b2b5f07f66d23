"""What the doctor says: one finding for each thing that was looked at. Pure."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Severity = Literal["bad", "slow", "note", "ok"]

_NOTHING_WRONG, _MENDABLE, _UNREACHABLE = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    subject: str  # what it is about, as people call it: imagenet, /mnt/imagenet, this machine
    what: str
    why: str = ""  # what was measured, or who said so
    remedy: str = ""  # a command where there is one
    unreachable: bool = False  # storage cannot be reached: nothing on this machine mends that


def ok(subject: str, what: str, why: str = "") -> Finding:
    return Finding("ok", subject, what, why)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = ("bad", "slow", "note", "ok")
    return sorted(findings, key=lambda one: order.index(one.severity))


def exit_code(findings: Iterable[Finding]) -> int:
    """What is slow or worth a note is advice, and no failure of whoever runs this in a script."""
    bad = [finding for finding in findings if finding.severity == "bad"]
    if any(finding.unreachable for finding in bad):
        return _UNREACHABLE
    return _MENDABLE if bad else _NOTHING_WRONG


# A look that may never return: waited for so long and no longer.
#
# The thread is left to itself then. It ends with the process, which does not wait for it.

Answer = TypeVar("Answer")
Key = TypeVar("Key")


class TooSlow(Exception):
    """It did not come within its time."""


def within(seconds: float, look: Callable[[], Answer]) -> Answer:
    """What `look` returns or raises; TooSlow if that takes longer."""
    waiting = _Waiting(look)
    return waiting.wait(seconds)


def each_within(
    seconds: float, looks: Mapping[Key, Callable[[], Answer]], *, at_once: int = 16
) -> dict[Key, Answer | None]:
    """All of them at the same time, but not more than `at_once`; None for each that was too slow.
    `looks` must not raise."""
    found: dict[Key, Answer | None] = {}
    keys = list(looks)
    for first in range(0, len(keys), at_once):
        some = [(key, _Waiting(looks[key])) for key in keys[first : first + at_once]]
        for key, waiting in some:
            try:
                found[key] = waiting.wait(seconds)
            except TooSlow:
                found[key] = None
    return found


class _Waiting(Generic[Answer]):
    def __init__(self, look: Callable[[], Answer]) -> None:
        self._look = look
        self._answer: list[Answer] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="look", daemon=True).start()

    def wait(self, seconds: float) -> Answer:
        if not self._done.wait(seconds):
            raise TooSlow
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._look())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        self._done.set()
