"""What the doctor says: one finding for each thing that was looked at. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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
