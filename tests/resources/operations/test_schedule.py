"""When an operation begins, and when it goes."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.resources.operations.schedule import Action, Decision, decide
from penstock.specs.load import model_of
from penstock.specs.resource import Resource

NOON_S = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def _clock_in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def load(**spec: Any) -> Resource:
    return model_of({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "DataLoad", "metadata": {"name": "one"},
        "spec": {"dataset": {"name": "set"}, **spec},
    })  # fmt: skip


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ended(seconds: float, phase: str = "Complete", **more: Any) -> dict[str, Any]:
    condition = {"type": phase, "status": "True", "lastTransitionTime": stamp(seconds)}
    return {"phase": phase, "conditions": [condition], **more}


def ask(
    operation: Resource, status: dict[str, Any] | None = None, now_s: float = NOON_S, **more: Any
) -> Decision:
    asked = {"preceding_done": None, "last_change": None, "created_s": None, **more}
    return decide(operation, status or {}, now_s, **asked)


def test_once_is_now_and_never_again() -> None:
    assert ask(load()).action is Action.START
    assert ask(load(), {"phase": "Pending"}).action is Action.START
    assert ask(load(), ended(NOON_S)).action is Action.NOTHING
    assert ask(load(), ended(NOON_S, "Failed")).action is Action.NOTHING


def test_what_comes_after_another_waits_for_it_and_says_for_which() -> None:
    operation = load(runAfter={"kind": "DataMigrate", "name": "copy"})
    waiting = ask(operation, preceding_done=False)
    assert (waiting.action, waiting.until_s) == (Action.WAIT, None)
    assert "datamigrate/copy" in waiting.why
    assert ask(operation, preceding_done=True).action is Action.START


def test_what_has_ended_is_kept_for_its_time_and_then_goes() -> None:
    operation = load(ttlSecondsAfterFinished=100)
    kept = ask(operation, ended(NOON_S - 99))
    assert (kept.action, kept.until_s) == (Action.WAIT, NOON_S + 1)
    assert ask(operation, ended(NOON_S - 100)).action is Action.EXPIRE
    assert ask(operation, ended(NOON_S - 100, "Failed")).action is Action.EXPIRE


def test_a_schedule_begins_at_its_next_time_and_not_before() -> None:
    operation = load(policy="Cron", schedule="*/10 * * * *")
    early = ask(operation, now_s=NOON_S + 599, created_s=NOON_S)
    assert (early.action, early.until_s) == (Action.WAIT, NOON_S + 600)
    assert ask(operation, now_s=NOON_S + 600, created_s=NOON_S).action is Action.START


def test_times_that_were_missed_are_made_up_for_once() -> None:
    operation = load(policy="Cron", schedule="*/10 * * * *")
    status = ended(NOON_S, lastScheduleTime=stamp(NOON_S))
    late_s = NOON_S + 7200 + 5
    assert ask(operation, status, late_s).action is Action.START
    after = ask(operation, ended(late_s, lastScheduleTime=stamp(late_s)), late_s)
    assert (after.action, after.until_s) == (Action.WAIT, NOON_S + 7800)


def test_a_schedule_without_a_known_beginning_still_comes() -> None:
    operation = load(policy="Cron", schedule="0 * * * *")
    assert ask(operation, now_s=NOON_S - 5).action is Action.WAIT
    assert ask(operation, now_s=NOON_S + 5).action is Action.START


def test_a_schedule_is_never_removed_by_its_age() -> None:
    operation = load(policy="Cron", schedule="@hourly", ttlSecondsAfterFinished=1)
    status = ended(NOON_S - 1000, lastScheduleTime=stamp(NOON_S - 1000))
    assert ask(operation, status, NOON_S - 500).action is Action.WAIT


@pytest.mark.parametrize("schedule", ["", "often", "61 * * * *", "0 0 31 2 *"])
def test_what_is_no_schedule_waits_and_says_why(schedule: str) -> None:
    waiting = ask(load(policy="Cron", schedule=schedule))
    assert (waiting.action, waiting.until_s) == (Action.WAIT, None)
    assert "spec.schedule" in waiting.why


def test_on_event_runs_once_and_then_for_each_change() -> None:
    operation = load(policy="OnEvent")
    first = ask(operation, last_change=7)
    assert (first.action, first.change) == (Action.START, 7)
    assert ask(operation, ended(NOON_S, lastChange=7), last_change=7).action is Action.WAIT
    again = ask(operation, ended(NOON_S, lastChange=7), last_change=9)
    assert (again.action, again.change) == (Action.START, 9)
    # The changes of a mount that was made anew are counted from 0 again.
    for last_change in (None, 0):
        waits = ask(operation, ended(NOON_S, lastChange=7), last_change=last_change)
        assert waits.action is Action.WAIT
