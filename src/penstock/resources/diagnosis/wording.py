"""A report as people read it, and as programs do. Pure."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from penstock.resources.diagnosis.examination import Report
from penstock.resources.diagnosis.finding import Finding, exit_code, worst_first

_WORDS = {"bad": "wrong", "slow": "slow", "note": "note", "ok": "ok"}


def as_text(report: Report, *, verbose: bool = False) -> Iterator[str]:
    for subject in report.subjects:
        about = [one for one in report.findings if one.subject == subject]
        if not about:
            continue
        told = [one for one in worst_first(about) if verbose or one.severity != "ok"]
        if not any(one.severity in ("bad", "slow") for one in about):
            yield f"{subject}: nothing is wrong"
        for one in told:
            yield from _lines(one)


def as_json(report: Report) -> dict[str, Any]:
    return {
        **report.hidden,
        "exit_code": exit_code(report.findings),
        "findings": [asdict(one) for one in report.findings],
    }


def hidden_lines(told: dict[str, Any], limit: int) -> Iterator[str]:
    """What a mount cannot show as files."""
    total = sum(told.get("hidden_counts", {}).values())
    if not total:
        return
    yield f"{total:,} objects cannot be shown as files:"
    for reason, count in sorted(told["hidden_counts"].items()):
        yield f"  {count:,}  {reason}"
    for key, reason in told["hidden"]:
        yield f"{key!r}: {reason}"
    if more := total - len(told["hidden"]):
        # Of very many the catalog itself keeps only the first by name.
        why = "--limit" if len(told["hidden"]) >= limit else "counted, not listed"
        yield f"… and {more:,} more ({why})"


def _lines(one: Finding) -> Iterator[str]:
    yield f"{_WORDS[one.severity]:<5} {one.subject}: {one.what}"
    if one.why:
        yield f"      why: {one.why}"
    if one.remedy:
        yield f"      do:  {one.remedy}"
