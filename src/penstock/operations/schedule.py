"""When a data operation begins, and when it goes. Pure: the clock is handed in.

    Once      as soon as what it comes after is complete
    Cron      at the times of its schedule, by this machine's clock; of times that were missed, once
    OnEvent   once, and then whenever the data set's files have changed since the last run began

What runs is not asked about: an operation never runs twice at a time.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from cronsim import CronSim, CronSimError

from penstock.specs.operations import OperationSpec, ScheduledSpec
from penstock.specs.resource import Resource

_FINISHED = ("Complete", "Failed")
# Of a schedule without a beginning: what was due so long ago is due now.
_JUST_NOW_S = 60.0
_WORDS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}  # fmt: skip


class Action(Enum):
    START = "start"
    WAIT = "wait"
    EXPIRE = "expire"  # it has been kept long enough after its end
    NOTHING = "nothing"  # it has ended, and stays


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    why: str = ""
    until_s: float | None = None  # None: until something happens
    # With START: the data set's change that this run knows of, to be kept as status.lastChange.
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
    """For an operation that does not run. `preceding_done`: None if it comes after nothing.
    `last_change`: the number of the last change of the data set's catalog, None if not known.
    Of `status` phase, conditions, lastScheduleTime and lastChange are read."""
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
        what = str(error) or "it never comes"
        return Decision(Action.WAIT, f"spec.schedule {schedule!r}: {what.lower()}")
    if due_s <= now_s:
        return Decision(Action.START, f"it was due at {_clock(due_s)}")
    return Decision(Action.WAIT, f"it runs next at {_clock(due_s)}", due_s)


def next_time(schedule: str, since_s: float) -> float:
    """When it is due first after that moment, by this machine's clock and time zone."""
    text = " ".join(schedule.split())
    times = CronSim(_WORDS.get(text, text), datetime.fromtimestamp(since_s))
    return next(times).timestamp()


def _by_change(status: dict[str, Any], last_change: int | None, *, finished: bool) -> Decision:
    if not finished:
        return Decision(Action.START, change=last_change)
    seen = status.get("lastChange")
    # A number below the one that was seen is that of a catalog that was opened anew, and that
    # counts on from where it was.
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
