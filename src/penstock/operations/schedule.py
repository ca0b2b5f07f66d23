"""Decide when a data operation starts, and when it is removed. Pure: the caller passes the time.

    Once      when the operation of runAfter is complete
    Cron      at the times of its schedule, by this machine's clock; missed times count once
    OnEvent   once, and then whenever files of the data set changed after the last run started

Only for operations that are not running: none runs twice at a time.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from cronsim import CronSim, CronSimError

from penstock.specs.operations import OperationSpec, ScheduledSpec
from penstock.specs.resource import Resource

_FINISHED = ("Complete", "Failed")
# For a schedule without a start: a time that passed this long ago is due now.
_JUST_NOW_S = 60.0
_WORDS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}  # fmt: skip


class Action(Enum):
    START = "start"
    WAIT = "wait"
    EXPIRE = "expire"  # remove it: ttlSecondsAfterFinished has passed
    NOTHING = "nothing"  # it has ended, and is kept


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    why: str = ""
    until_s: float | None = None  # None: until an event
    # With START: the data set's change that this run sees, to be stored as status.lastChange.
    change: int | None = None


def decide(
    operation: Resource,
    status: dict[str, Any],
    now_s: float,
    *,
    preceding_done: bool | None,
    last_change: int | None,
    created_s: float | None = None,
) -> Decision:
    """Decide for an operation that is not running.

    `preceding_done` is None without runAfter. `last_change` is the number of the last change in the
    data set's catalog, None if it is not known. Reads phase, conditions, lastScheduleTime and
    lastChange of `status`.
    """
    spec: Any = operation.__dict__["spec"]
    assert isinstance(spec, OperationSpec)
    finished = status.get("phase") in _FINISHED
    policy = spec.policy if isinstance(spec, ScheduledSpec) else "Once"
    if preceding_done is False and not finished:
        assert spec.run_after is not None
        after = f"{spec.run_after.kind.lower()}/{spec.run_after.name}"
        return Decision(Action.WAIT, f"it runs after {after}, which is not complete")
    if policy == "Cron":
        assert isinstance(spec, ScheduledSpec)
        return _by_schedule(spec.schedule, status, now_s, created_s)
    if policy == "OnEvent":
        return _by_change(status, last_change, finished=finished)
    if not finished:
        return Decision(Action.START)
    return _kept(spec.ttl_seconds_after_finished, status, now_s)


def _by_schedule(
    schedule: str, status: dict[str, Any], now_s: float, created_s: float | None
) -> Decision:
    since_s = _seconds(status.get("lastScheduleTime"))
    if since_s is None:
        since_s = created_s if created_s is not None else now_s - _JUST_NOW_S
    try:
        due_s = next_time(schedule, since_s)
    except (CronSimError, StopIteration) as error:
        what = str(error) or "it has no next time"
        return Decision(Action.WAIT, f"spec.schedule {schedule!r}: {what.lower()}")
    if due_s <= now_s:
        return Decision(Action.START, f"it was due at {_clock(due_s)}")
    return Decision(Action.WAIT, f"it runs next at {_clock(due_s)}", due_s)


def next_time(schedule: str, since_s: float) -> float:
    """Return the first time after `since_s`, by this machine's clock and time zone."""
    text = " ".join(schedule.split())
    times = CronSim(_WORDS.get(text, text), datetime.fromtimestamp(since_s))
    return next(times).timestamp()


def _by_change(status: dict[str, Any], last_change: int | None, *, finished: bool) -> Decision:
    if not finished:
        return Decision(Action.START, change=last_change)
    seen = status.get("lastChange")
    # A lower number comes from a catalog that was reopened, and counts on from where it was.
    if last_change is None or seen is None or last_change <= seen:
        return Decision(Action.WAIT, "it runs when files of the data set change")
    return Decision(Action.START, "files of the data set have changed", change=last_change)


def _kept(ttl_s: int | None, status: dict[str, Any], now_s: float) -> Decision:
    ended_s = max(
        (
            moment
            for condition in status.get("conditions") or ()
            if condition.get("type") in _FINISHED
            and (moment := _seconds(condition.get("lastTransitionTime"))) is not None
        ),
        default=None,
    )
    if ttl_s is None or ended_s is None:
        return Decision(Action.NOTHING)
    if ended_s + ttl_s <= now_s:
        return Decision(Action.EXPIRE)
    until_s = ended_s + ttl_s
    return Decision(Action.WAIT, f"it is removed at {_clock(until_s)}", until_s)


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
