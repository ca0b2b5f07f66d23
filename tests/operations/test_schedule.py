"""When an operation begins, and when it goes."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.operations.schedule import Action, Decision, decide
from penstock.specs.models import model_of
from tests.support.operation_work import operation

NOON_S = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).timestamp()
TTL = {"ttlSecondsAfterFinished": 100}
AFTER = {"runAfter": {"kind": "DataMigrate", "name": "copy"}}
EVERY_10_MIN = {"policy": "Cron", "schedule": "*/10 * * * *"}
HOURLY = {"policy": "Cron", "schedule": "@hourly"}
ON_EVENT = {"policy": "OnEvent"}


@pytest.fixture(autouse=True)
def _clock_in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ended(after_noon_s: float = 0, phase: str = "Complete", **more: Any) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(NOON_S + after_noon_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": phase, "status": "True", "lastTransitionTime": stamp}
    return {"phase": phase, "conditions": [condition], "lastScheduleTime": stamp, **more}


def ask(spec: dict[str, Any], status: dict[str, Any], after_noon_s: float, **more: Any) -> Decision:
    load = model_of(operation("DataLoad", {"dataset": {"name": "set"}, **spec}))
    given = {"preceding_done": None, "last_change": None, "created_s": None, **more}
    return decide(load, status, NOON_S + after_noon_s, **given)


@pytest.mark.parametrize(
    ("spec", "status", "at_s", "action", "until"),
    [({}, {}, 0, Action.START, None),
     ({}, ended(), 0, Action.NOTHING, None),
     ({}, ended(phase="Failed"), 0, Action.NOTHING, None),
     (TTL, ended(), 99, Action.WAIT, 100),
     (TTL, ended(), 100, Action.EXPIRE, None),
     (TTL, ended(phase="Failed"), 100, Action.EXPIRE, None),
     # Of times that were missed, one is made up for.
     (EVERY_10_MIN, ended(), 7205, Action.START, None),
     (EVERY_10_MIN, ended(7205), 7205, Action.WAIT, 7800),
     # Its beginning is not known.
     (HOURLY, {}, -5, Action.WAIT, 0),
     (HOURLY, {}, 5, Action.START, None),
     # Its age does not remove it.
     ({**HOURLY, **TTL}, ended(1), 500, Action.WAIT, 3600)],
)  # fmt: skip
def test_an_operation_starts_waits_or_is_removed(
    spec: dict[str, Any], status: dict[str, Any], at_s: float, action: Action, until: float | None
) -> None:
    found = ask(spec, status, at_s)
    assert (found.action, found.until_s) == (action, None if until is None else NOON_S + until)


def test_a_schedule_starts_at_its_next_time_and_run_after_waits() -> None:
    early = ask(EVERY_10_MIN, {}, 599, created_s=NOON_S)
    assert (early.action, early.until_s) == (Action.WAIT, NOON_S + 600)
    assert ask(EVERY_10_MIN, {}, 600, created_s=NOON_S).action is Action.START
    waiting = ask(AFTER, {}, 0, preceding_done=False)
    assert (waiting.action, waiting.until_s) == (Action.WAIT, None)
    assert "datamigrate/copy" in waiting.why
    assert ask(AFTER, {}, 0, preceding_done=True).action is Action.START


@pytest.mark.parametrize("schedule", ["", "61 * * * *", "0 0 31 2 *"])
def test_an_invalid_schedule_waits_and_reports_why(schedule: str) -> None:
    waiting = ask({"policy": "Cron", "schedule": schedule}, {}, 0)
    assert (waiting.action, waiting.until_s) == (Action.WAIT, None)
    assert "spec.schedule" in waiting.why


def test_on_event_runs_once_and_then_for_each_change() -> None:
    first = ask(ON_EVENT, {}, 0, last_change=7)
    assert (first.action, first.change) == (Action.START, 7)
    again = ask(ON_EVENT, ended(lastChange=7), 0, last_change=9)
    assert (again.action, again.change) == (Action.START, 9)
    # The changes of a mount that was made anew are counted from 0 again.
    for change in (7, None, 0):
        assert ask(ON_EVENT, ended(lastChange=7), 0, last_change=change).action is Action.WAIT
