"""The verdict of a run: a sentence for each setting, and of its goals; from counted results. Pure.

Penstock is represented by its plain warm arm where there is one, else by the arm that did best.
Every other system is represented by its best arm, whatever its state. Where the
repeats can show no difference of speeds, none is claimed; numbers of accelerators fed stand side by
side, and nothing is claimed of their difference.

A goal of the plan that the run cannot judge (an arm without a valid result, a machine with other
cores, a passthrough mount that fell back) has no verdict: nothing is guessed.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from penstock.bench.plans.model import GoalPlan
from penstock.bench.reporting import estimates
from penstock.bench.reporting.estimates import SIGNIFICANCE, Estimate, ratio, welch
from penstock.bench.reporting.results import Epoch, Result, Run, number
from penstock.bench.reporting.rows import BARE, METHOD, Row, Setting, StateRow, name_of, sentence

OURS = "penstock"
REFERENCES = ("native", "ceiling")
_PEERS = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """`sentence` is the headline; `others` have a sentence for each further setting."""

    sentence: str
    setting: Setting | None
    ours: Row | None
    peers: tuple[Row, ...]
    native: Row | None
    notes: tuple[str, ...]
    others: tuple[tuple[Setting, str], ...]


@dataclass(frozen=True, slots=True)
class _Finding:
    sentence: str
    setting: Setting
    ours: Row | None = None
    peers: tuple[Row, ...] = ()
    native: Row | None = None
    fed: bool = False
    storage_sufficed: bool = False  # storage limited none of the systems

    @property
    def weight(self) -> tuple[bool, bool, bool, float, float]:
        """Which setting is the headline: ours against others, fed accelerators, a far store."""
        shape = self.setting.shape
        compared = self.ours is not None and bool(self.peers) and not self.storage_sufficed
        slowness = 1 / shape.bytes_per_s if shape.bytes_per_s else 0.0
        return self.ours is not None, compared, self.fed, shape.latency_s, slowness


def judge(run: Run, rows: Sequence[Row], states: Sequence[StateRow] = ()) -> Verdict:
    settings = list({row.setting.key: row.setting for row in rows}.values())
    findings = [_finding(s, [row for row in rows if row.setting == s]) for s in settings]
    further = _states(states)
    if not findings and further:
        (_, first_sentence), *rest = further
        return Verdict(first_sentence, None, None, (), None, (), tuple(rest))
    if not findings and any(one.figures for one in run.counted):
        count = len(run.counted)
        return Verdict(
            f"{count} measured; this run compares nothing.", None, None, (), None, (), ()
        )
    if not findings:
        why = "no experiment has a result yet" if run.unfinished else "it has no results"
        return Verdict(f"This run has no verdict: {why}.", None, None, (), None, (), ())
    first = max(findings, key=lambda one: one.weight)
    others = [(one.setting, one.sentence) for one in findings if one is not first]
    return Verdict(
        sentence=first.sentence,
        setting=first.setting,
        ours=first.ours,
        peers=first.peers,
        native=first.native,
        notes=tuple(_notes(run, rows, first)),
        others=(*others, *further),
    )


def _states(rows: Sequence[StateRow]) -> list[tuple[Setting, str]]:
    """Return a sentence for each setting of the workload `states` that has one."""
    settings = {row.setting.key: row.setting for row in rows}
    found = [
        (setting, sentence([row for row in rows if row.setting.key == key]))
        for key, setting in settings.items()
    ]
    # Many small files first: they are what a mount is slow at.
    return sorted((one for one in found if one[1]), key=lambda one: one[0].dataset == "large")


def difference(ours: Row, theirs: Row) -> tuple[Estimate | None, bool | None]:
    """Return ours over theirs, and whether the repeats show that they differ.

    The second is None for a single repeat, which cannot show it.
    """
    left, right = ours.speed, theirs.speed
    if left is None or right is None:
        return None, None
    chance = welch(left.values, right.values)
    return ratio(left.values, right.values), None if chance is None else chance < SIGNIFICANCE


def _finding(setting: Setting, rows: Sequence[Row]) -> _Finding:
    counted = [row for row in rows if row.counted and row.speed is not None]
    candidates = [row for row in counted if row.arm.system == OURS]
    if not candidates:
        return _Finding(
            f"No valid run of Penstock: there is no figure for it here ({_why(rows)}).", setting
        )
    ours = _subject(candidates)
    native = next((row for row in counted if row.arm.system == "native"), None)
    peers = _best_of_each([r for r in counted if r.arm.system not in (OURS, *REFERENCES)])
    if ours.fed is not None and all(row.fed is not None for row in peers):
        sufficed = bool(peers) and all(row.fed and row.fed.at_least for row in (ours, *peers))
        sentence = _feeds_all_tried(ours, peers) if sufficed else _feeds(ours, peers)
        return _Finding(sentence, setting, ours, peers, native, fed=True, storage_sufficed=sufficed)
    return _Finding(_reads(ours, peers, native, candidates), setting, ours, peers, native)


def _subject(candidates: Sequence[Row]) -> Row:
    plain = [
        row
        for row in candidates
        if row.arm.state == "warm" and row.arm.cache_share >= 1 and not row.arm.hinted
    ]
    return max(plain or candidates, key=_sort_key)


def _best_of_each(rows: Sequence[Row]) -> tuple[Row, ...]:
    best: dict[str, Row] = {}
    for row in rows:
        other = best.get(row.arm.system)
        if other is None or _sort_key(row) > _sort_key(other):
            best[row.arm.system] = row
    return tuple(sorted(best.values(), key=_sort_key, reverse=True)[:_PEERS])


def _sort_key(row: Row) -> tuple[float, float]:
    assert row.speed is not None
    return row.fed.estimate.mean if row.fed else 0.0, row.speed.mean


def _feeds(ours: Row, peers: Sequence[Row]) -> str:
    assert ours.fed is not None
    name = ours.setting.workload.accelerator_name
    parts = [
        f"{ours.arm.spoken} feeds {estimates.accelerators(ours.fed)} {name} at 90% or more busy",
        *(f"{row.arm.spoken} {estimates.accelerators(row.fed)}" for row in peers if row.fed),
    ]
    return _sentence(", ".join(parts), (ours, *peers))


def _feeds_all_tried(ours: Row, peers: Sequence[Row]) -> str:
    assert ours.fed is not None
    names = _listed([row.arm.spoken for row in (ours, *peers)])
    most = estimates.accelerators(ours.fed).removesuffix(" or more")
    name = ours.setting.workload.accelerator_name
    text = f"{names} feed all that was tried ({most} {name}): storage was not the limit"
    return _sentence(text, (ours, *peers))


def _reads(ours: Row, peers: Sequence[Row], native: Row | None, candidates: Sequence[Row]) -> str:
    verb = "reads" if ours.setting.workload.kind == "read" else "trains"
    cold = [row for row in candidates if row is not ours and row.arm.state == "cold"]
    rivals = list(peers) or cold[:1]
    comparisons = [_compared_with(ours, row) for row in rivals]
    of_native = _of_native(ours, native)
    if not comparisons and of_native is None:
        return _sentence(
            f"{ours.arm.spoken} {verb} {_speed(ours)}; no valid run is there to compare it with",
            (ours,),
        )
    text = _listed(comparisons)
    if of_native is not None:
        text = f"{text}, {of_native}" if text else of_native
    used = (ours, *rivals, native) if native is not None else (ours, *rivals)
    return _sentence(f"{ours.arm.spoken} {verb} {text}", used)


def _compared_with(ours: Row, theirs: Row) -> str:
    found, differs = difference(ours, theirs)
    name = theirs.arm.spoken
    assert found is not None  # both have a speed
    if differs is False:
        return f"neither faster nor slower than {name}, as far as the repeats can show"
    if found.mean >= 1.05 or (differs and found.mean > 1):
        return f"{estimates.times(found.mean)} times as fast as {name}"
    if found.mean <= 0.95 or differs:
        return f"at {estimates.times(found.mean)} of the speed of {name}"
    return f"about as fast as {name}"


def _of_native(ours: Row, native: Row | None) -> str | None:
    if native is None:
        return None
    found, differs = difference(ours, native)
    if found is None:
        return None
    text = f"at {estimates.times(found.mean)} of {native.arm.spoken}"
    if differs is False and found.low is not None and found.high is not None:
        text += f" (95% interval {estimates.times(found.low)} to {estimates.times(found.high)})"
    return text


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _speed(row: Row) -> str:
    text, _ = row.shown_speed
    return text if row.setting.workload.kind == "read" else f"at {text}"


def _sentence(text: str, used: Sequence[Row]) -> str:
    least = min(len(row.results) for row in used)
    return f"{text} (one repeat: no interval)." if least == 1 else f"{text}."


def _why(rows: Sequence[Row]) -> str:
    ours = [result for row in rows if row.arm.system == OURS for result in row.left_out]
    if not ours:
        return "none has a result"
    return f"{len(ours)} left out, of which the first {ours[0].why_not}"


def _notes(run: Run, rows: Sequence[Row], finding: _Finding) -> list[str]:
    notes = [f"Measured in {finding.setting.title}: {finding.setting.details}."]
    if finding.fed:
        notes.append(METHOD)
    elif finding.ours is not None:
        notes.append(
            "Ratios are of geometric means over repeats; whether two differ is asked of "
            "Welch's t test on logarithms, at 5%."
        )
    if any(row.arm.hinted for row in (finding.ours, *finding.peers) if row is not None):
        notes.append("Hinted: storage was given the order of the epoch beforehand.")
    if finding.setting.workload.emulated:
        notes.append("Emulated: an accelerator is a wait of the published step time on each batch.")
    if left_out := len(run.left_out):
        who = "1 experiment" if left_out == 1 else f"{left_out} experiments"
        here = [row for row in rows if row.setting == finding.setting]
        gone = [row.arm.spoken for row in here if not row.counted]
        named = f" There is no figure here for {_listed(gone)}." if gone else ""
        notes.append(f"Left out: {who} that failed or did not prove what was claimed.{named}")
    return notes


# -- what the plan asks of its figures -----------------------------------------------------------

_MEANINGS = {
    "busy": "busy share of the",
    "fetched": "bytes fetched over bytes read,",
    "first-batch-round-trips": "round trips to the first batch, beyond native's and its transfer,",
    "hits": "share from the local cache,",
    "files-per-s": "samples/s,",
    "ready-s": "seconds until ready",
    "memory-mb": "MB of memory",
}
_NO_PEERS = ("native", BARE, "penstock")


@dataclass(frozen=True, slots=True)
class Judged:
    """One goal at one figure."""

    what: str
    goal: str
    figure: str
    met: bool


def _judged(goal: GoalPlan, what: str, figure: float, unit: str = "") -> Judged:
    unit = f" {unit}" if unit else ""
    if goal.at_least is not None:
        asked, met = f"{goal.at_least:,g}{unit} or more", figure >= goal.at_least
    else:
        assert goal.at_most is not None
        asked, met = f"{goal.at_most:,g}{unit} or less", figure <= goal.at_most
    return Judged(what, asked, _figure(figure), met)


def _is_about(goal: GoalPlan, setting: Setting) -> bool:
    workload, dataset = setting.workload.name, setting.dataset
    return goal.workload in (None, workload) and goal.dataset in (None, dataset)


def judge_goals(run: Run, rows: Sequence[Row], states: Sequence[StateRow]) -> list[Judged]:
    """Return a verdict for each goal of the plan that the results can show."""
    cores = number(run.environment.get("cores")) or 0
    found: list[Judged] = []
    for goal in filter(None, map(_goal, run.goals)):
        if cores < goal.least_cores or (goal.most_cores is not None and cores > goal.most_cores):
            continue
        found += _of_states(goal, states)
        found += _of_training(goal, rows)
        found += _of_figures(goal, run)
    return found


def _goal(found: Mapping[str, Any]) -> GoalPlan | None:
    try:
        return GoalPlan.model_validate(found)
    except ValidationError:
        return None


def _of_states(goal: GoalPlan, rows: Sequence[StateRow]) -> Iterable[Judged]:
    if goal.measure != "files-per-s":
        return
    for row in rows:
        if row.arm.name != goal.arm or not _is_about(goal, row.setting):
            continue
        here = [one for one in rows if one.setting.key == row.setting.key]
        most = max(one.readers for one in here)
        wanted = most if goal.readers == "most" else goal.readers
        if goal.state not in (None, row.state) or wanted not in (None, row.readers):
            continue
        if "mode=passthrough" in row.arm.options and row.modes != frozenset(["passthrough"]):
            continue  # it fell back: this machine cannot show the row
        beside = [one for one in here if (one.state, one.readers) == (row.state, row.readers)]
        yield from _compared(goal, row, beside)


def _compared(goal: GoalPlan, row: StateRow, beside: Sequence[StateRow]) -> Iterable[Judged]:
    readers = "1 reader" if row.readers == 1 else f"{row.readers} readers"
    dataset = f" {row.setting.dataset}" if row.setting.dataset else ""
    what = f"{name_of(row.arm)}: {row.state}{dataset} files, {readers}"
    if goal.of is None:
        yield _judged(goal, what, row.files_per_s, "files/s")
    elif goal.of in ("native", "client"):
        ratio = row.native_ratio if goal.of == "native" else row.bare_ratio
        if ratio is not None:
            unit = "of native" if goal.of == "native" else "of the bare client"
            yield _judged(goal, what, ratio, unit)
    else:
        others = [one for one in beside if one.arm.name == goal.of]
        if goal.of == "peers":
            others = [one for one in beside if one.arm.system not in _NO_PEERS]
        if others:
            best = max(others, key=lambda one: one.files_per_s)
            unit = f"times {name_of(best.arm)}"
            yield _judged(goal, what, row.files_per_s / best.files_per_s, unit)


def _of_training(goal: GoalPlan, rows: Sequence[Row]) -> Iterable[Judged]:
    for row in rows:
        if row.arm.name != goal.arm or not row.counted or not _is_about(goal, row.setting):
            continue
        epochs = _epochs_of(row, goal.epoch)
        epoch = "later epochs" if goal.epoch == "later" else "first epoch"
        title = f"{row.arm.spoken}: {_MEANINGS[goal.measure]} {epoch}"
        if goal.measure == "files-per-s":
            beside = [one for one in rows if one.setting.key == row.setting.key]
            yield from _training_speed(goal, title, epochs, beside)
        elif (figure := _training_figure(goal, row, epochs, rows)) is not None:
            yield _judged(goal, title, figure)


def _training_speed(
    goal: GoalPlan, title: str, epochs: Sequence[Epoch], beside: Sequence[Row]
) -> Iterable[Judged]:
    ours = _mean(epochs, lambda one: one.samples / one.seconds)
    if ours is None:
        return
    if goal.of is None:
        yield _judged(goal, title, ours, "samples/s")
        return
    for row in beside:
        if goal.of not in (row.arm.name, row.arm.system):
            continue
        theirs = _mean(_epochs_of(row, goal.epoch), lambda one: one.samples / one.seconds)
        if theirs:
            yield _judged(goal, title, ours / theirs, f"of {row.arm.spoken}")
            return


def _training_figure(
    goal: GoalPlan, row: Row, epochs: Sequence[Epoch], rows: Sequence[Row]
) -> float | None:
    if goal.measure == "busy":
        return _mean(epochs, lambda one: one.busy_with_first_batch)
    if goal.measure == "fetched":
        return _mean(epochs, lambda one: one.fetched_share)
    if goal.measure == "hits":
        return _mean(epochs, lambda one: one.hit_share)
    if goal.measure == "first-batch-round-trips":
        return _round_trips(row, epochs, rows)
    return None


def _round_trips(row: Row, epochs: Sequence[Epoch], rows: Sequence[Row]) -> float | None:
    """Starting the loader's workers is in the time of native files too; no storage helps."""
    shape, workload = row.setting.shape, row.setting.workload
    native = next(
        (
            one
            for one in rows
            if one.setting.key == row.setting.key and one.arm.system == "native" and one.counted
        ),
        None,
    )
    ours = _mean(epochs, lambda one: one.first_batch_s)
    if native is None or ours is None or not shape.latency_s:
        return None
    theirs = _mean(_epochs_of(native, "first"), lambda one: one.first_batch_s)
    if theirs is None:
        return None
    transfer_s = 0.0
    if shape.bytes_per_s and workload.batch and workload.sample_bytes:
        transfer_s = workload.batch * workload.sample_bytes / shape.bytes_per_s
    return max(0.0, (ours - theirs - transfer_s) / shape.latency_s)


def _of_figures(goal: GoalPlan, run: Run) -> Iterable[Judged]:
    name = {"ready-s": "ready_s", "memory-mb": "memory_mb"}.get(goal.measure)
    if name is None:
        return
    groups: dict[str, list[Result]] = {}
    for one in run.counted:
        if one.arm.name == goal.arm and goal.workload in (None, one.workload.name):
            groups.setdefault(one.workload.name, []).append(one)
    for workload, results in groups.items():
        values = [one.figures[name] for one in results if name in one.figures]
        if values:
            figure = statistics.median(values)
            yield _judged(goal, f"{workload}: {_MEANINGS[goal.measure]}", figure)


def _epochs_of(row: Row, which: str) -> list[Epoch]:
    if which == "later":
        return [epoch for one in row.results for epoch in one.epochs[1:]]
    return [epoch for one in row.results for epoch in one.epochs[:1]]


def _mean(epochs: Sequence[Epoch], of: Callable[[Epoch], float | None]) -> float | None:
    values = [value for value in map(of, epochs) if value is not None]
    return statistics.fmean(values) if values else None


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"
