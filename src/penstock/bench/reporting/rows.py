"""Repeats put together: a Setting is a workload over a network, a Row one arm in one state of it.

Whatever the workload, a Row has the epochs of one arm in one state by one number of readers or
accelerators, of all repeats that count. What a table shows of a row, what summary.json has of it
and what a goal asks of it is one of MEASURES. A figure is the mean over repeats of the median over
the epochs of a repeat. Shares of native files and of the bare client are those of neighbours,
measured at the same time, and no quotients of other columns. Pure.

Only results that count are in a row; the others are listed with their reason.

How many accelerators storage feeds is the largest number that stays busy 90% of the time. It is
computed from one number of accelerators, or from several:
- the largest number that was 90% busy is fed for certain;
- the next larger number waited for data, so what it was fed is what storage gives: number times
  busy share; divided by 90% that is how many it could keep at 90%. More readers took part in that
  measurement than the answer has, so it does not flatter;
- if every number was 90% busy, storage was never the limit: `at_least`.
A workload at a scale below 1 emulates accelerators that need so much less data; the answer is in
whole accelerators.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.bench.reporting import estimates
from penstock.bench.reporting.estimates import Estimate, FedEstimate, estimate
from penstock.bench.reporting.results import BARE, Arm, Epoch, Result, Run, Shape, Workload
from penstock.bench.reporting.tables import Table

GOAL = 0.90
FED_METHOD = (
    "Accelerators fed at 90% or more busy: the largest number of accelerators that was 90% busy, "
    "or, where a larger number was measured too and waited for data, that number times its busy "
    "share over 0.9. Accelerators emulated at a scale below 1 count by that scale."
)
FIRST_STATES = ("cold", "planned", "loaded")  # of an epoch that begins with empty caches
_STATES = (*FIRST_STATES, "partial", "cached", "warm")


@dataclass(frozen=True, slots=True)
class Setting:
    workload: Workload
    shape: Shape
    dataset: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """A result that failed early has only the name and the kind of its workload."""
        return self.workload.name, self.workload.kind, self.shape.name, self.dataset

    @property
    def title(self) -> str:
        """Name workload and network, and a data set that is not the only one."""
        dataset = f" · {self.dataset}" if self.dataset not in ("", "data") else ""
        return f"{self.workload.name} · {self.shape.name}{dataset}"

    @property
    def details(self) -> str:
        return f"{self.workload.details}; {self.shape.details}"

    @property
    def order(self) -> tuple[bool, str, float, float, str, str]:
        """What trains comes first; each workload from the nearest store to the farthest."""
        shape = self.shape
        slowness = 1 / shape.bytes_per_s if shape.bytes_per_s else 0.0
        name = self.workload.name
        return self.workload.reads, name, shape.latency_s, slowness, shape.name, self.dataset


@dataclass(frozen=True, slots=True)
class Row:
    """`is_first`: of training, whether these are first epochs, which start a loader's workers, or
    later ones; None for plain reading. `left_out`: the arm's results that do not count."""

    arm: Arm
    setting: Setting
    state: str
    readers: int
    is_first: bool | None
    measured: tuple[tuple[Result, Epoch], ...]
    left_out: tuple[Result, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        return self.arm.name, self.setting.key, self.state, self.is_first, self.readers

    @property
    def counted(self) -> bool:
        return bool(self.measured)

    @property
    def begins_empty(self) -> bool:
        return self.is_first is not False and self.state in FIRST_STATES

    @property
    def results(self) -> list[Result]:
        return list({result.id: result for result, _ in self.measured}.values())

    @property
    def repeats(self) -> int:
        return len(self.results)

    def repeat_values(self, of: Callable[[Epoch], float | None]) -> list[float]:
        """Return one value for each repeat: the median over its epochs."""
        found: dict[str, list[float]] = {}
        for result, epoch in self.measured:
            if (value := of(epoch)) is not None:
                found.setdefault(result.id, []).append(value)
        return [statistics.median(values) for values in found.values()]

    def figure(self, name: str) -> Estimate | None:
        """Return the estimate of one of MEASURES."""
        return MEASURES[name].estimate(self)

    @property
    def speed(self) -> Estimate | None:
        """What arms are compared by: samples/s of training, bytes/s of plain reading."""
        return self.figure("mb_per_s" if self.setting.workload.reads else "samples_per_s")

    @property
    def unit(self) -> str:
        return "MB/s" if self.setting.workload.reads else "samples/s"

    @property
    def spoken(self) -> str:
        """The arm within a sentence; a warm epoch of plain reading needs no state."""
        warm = self.setting.workload.reads and not self.begins_empty
        return self.arm.title.split(", ")[0] if warm else self.arm.spoken

    @property
    def label(self) -> str:
        return self.arm.released if self.setting.workload.reads else self.arm.label

    @property
    def state_label(self) -> str:
        if self.is_first is None:
            return self.state
        return f"{'first' if self.is_first else 'later'}, {self.state}"

    @property
    def typical(self) -> tuple[Result, Epoch] | None:
        """The epoch of median duration; time series show this one."""
        timed = sorted(self.measured, key=lambda pair: (pair[1].seconds, pair[0].id))
        return timed[(len(timed) - 1) // 2] if timed else None

    @property
    def modes(self) -> frozenset[str]:
        return frozenset(epoch.mode for _, epoch in self.measured if epoch.mode)


def rows_of(run: Run) -> list[Row]:
    """Return all rows, by setting, arm, and state; one without a figure for an arm that has no
    result that counts."""
    settings: dict[tuple[str, ...], Setting] = {}
    # Counted results first: one that failed early has no details of its workload.
    for result in sorted(run.results, key=lambda one: not one.counted):
        if not result.figures and result.workload.kind not in ("catalog", "resources", "random"):
            setting = Setting(result.workload, result.shape, result.dataset)
            settings.setdefault(setting.key, setting)
    rows: dict[tuple[object, ...], Row] = {}
    bad: dict[tuple[object, ...], list[Result]] = {}
    for result in run.results:
        setting = settings.get(Setting(result.workload, result.shape, result.dataset).key)
        if setting is None:
            continue
        if not result.counted:
            bad.setdefault((result.arm.name, setting.key), []).append(result)
            continue
        for epoch in result.epochs:
            row = _row(result, epoch, setting)
            had = rows.get(row.key, row)
            rows[row.key] = replace(had, measured=(*had.measured, (result, epoch)))
    found = [
        replace(row, left_out=tuple(bad.get((row.arm.name, row.setting.key), ())))
        for row in rows.values()
    ]
    have = {(row.arm.name, row.setting.key) for row in found}
    for key, results in bad.items():
        if key not in have:
            first = results[0]
            setting = settings[Setting(first.workload, first.shape, first.dataset).key]
            found.append(Row(first.arm, setting, "", 0, None, (), tuple(results)))
    return sorted(found, key=_order)


def _row(result: Result, epoch: Epoch, setting: Setting) -> Row:
    is_bare = epoch.arm == BARE
    arm = Arm(name=BARE, title=BARE, system=BARE) if is_bare else result.arm
    is_first = None if setting.workload.reads or epoch.number is None else epoch.number == 0
    return Row(arm, setting, epoch.state, epoch.readers, is_first, ())


def _order(row: Row) -> tuple[object, ...]:
    state = _STATES.index(row.state) if row.state in _STATES else len(_STATES)
    return (
        *row.setting.order,
        row.arm.system == BARE,
        row.arm.rank,
        row.is_first is False,
        state,
        row.readers,
    )


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a row: a column of every table. `training_head` is its name there, if another.
    `has_interval`: a table shows its 95% interval, where there is one."""

    head: str
    text: Callable[[float], str]
    of: Callable[[Epoch], float | None]
    training_head: str = ""
    has_interval: bool = False
    of_pairs: bool = False  # every epoch has a neighbour of its own, so each one is a value
    is_most: bool = False
    may_be_zero: bool = True  # else no column where all rows have nothing
    is_share: bool = False

    def estimate(self, row: Row) -> Estimate | None:
        if self.of_pairs:
            pairs = [value for _, e in row.measured if (value := self.of(e)) is not None]
            found = estimate(pairs)
            return None if found is None else replace(found, mean=statistics.median(pairs))
        values = row.repeat_values(self.of)
        if self.is_most:
            return Estimate(max(values), tuple(values)) if values else None
        found = estimate(values)
        return found.within(0, 1) if found is not None and self.is_share else found


def _per_gb(epoch: Epoch) -> float | None:
    used = epoch.cpu_s.get("system")
    return used / epoch.size_bytes * 1e9 if used is not None and epoch.size_bytes else None


def _millions(value: float | None) -> float | None:
    return None if value is None else value / 1e6


# The place for one more kind of figure: an epoch's field in results.py, and a line here.
MEASURES = {
    "busy": Measure(
        "busy", estimates.share, lambda e: e.busy_with_first_batch, has_interval=True, is_share=True
    ),
    "busy_after_first": Measure(
        "once begun", estimates.share, lambda e: e.busy_share, is_share=True
    ),
    "samples_per_s": Measure(
        "files/s", estimates.count, lambda e: e.samples_per_s, "samples/s", has_interval=True
    ),
    "mb_per_s": Measure("MB/s", estimates.count, lambda e: _millions(e.bytes_per_s)),
    "native_ratio": Measure(
        "of native", estimates.quotient, lambda e: e.native_ratio, has_interval=True, of_pairs=True
    ),
    "bare_ratio": Measure("of client", estimates.quotient, lambda e: e.bare_ratio, of_pairs=True),
    "first_batch_s": Measure("1st batch", estimates.seconds, lambda e: e.first_batch_s),
    "gets": Measure(
        "GETs",
        estimates.count,
        lambda e: None if e.gets is None else e.gets / e.passes,
        may_be_zero=False,
    ),
    "fetched": Measure(
        "fetched", lambda value: f"{value:.3f}", lambda e: e.fetched_share, may_be_zero=False
    ),
    "hits": Measure("hits", estimates.share, lambda e: e.hit_share, may_be_zero=False),
    "cpu_s_per_gb": Measure("CPU s/GB", lambda value: f"{value:.2f}", _per_gb),
    "memory_mb": Measure(
        "memory MB", estimates.count, lambda e: _millions(e.memory_bytes or None), is_most=True
    ),
    "messages": Measure(
        "messages",
        estimates.count,
        lambda e: None if e.messages is None else e.messages / e.passes,
    ),
}


def table_of(setting: Setting, rows: Sequence[Row], title: str) -> Table:
    """Return the table of a setting: a line for each row, a column for each measure that any row
    has. Of native files, and of a bare client, the costs are none."""
    shown = [row for row in rows if row.counted]
    names = [name for name in MEASURES if _is_column(name, shown)]
    if not setting.workload.reads:
        names = [
            name for name in names if name != "mb_per_s"
        ]  # as samples/s are, by another number
    at_once = "readers" if setting.workload.reads else "at once"
    head, lines = ["read through", "state", at_once], list[list[str]]()
    for row in shown:
        lines.append([row.label, row.state_label, str(row.readers)])
    for name in names:
        measure = MEASURES[name]
        figures = [_shown(row, name) for row in shown]
        head.append(measure.training_head if not setting.workload.reads else "")
        head[-1] = head[-1] or measure.head
        for line, found in zip(lines, figures, strict=True):
            line.append("–" if found is None else measure.text(found.mean))
        if measure.has_interval and any(one and one.low is not None for one in figures):
            head.append("95% interval")
            for line, found in zip(lines, figures, strict=True):
                line.append(estimates.interval(found, measure.text))
    ours = [place for place, row in enumerate(shown) if row.arm.system == "penstock"]
    return Table(head, lines, title=title, ours=ours)


def _is_column(name: str, rows: Sequence[Row]) -> bool:
    found = [one.mean for row in rows if (one := _shown(row, name)) is not None]
    return any(found) or (bool(found) and MEASURES[name].may_be_zero)


def _shown(row: Row, name: str) -> Estimate | None:
    without_process = row.arm.system in ("native", "ceiling", BARE)
    return None if without_process and name in ("cpu_s_per_gb", "memory_mb") else row.figure(name)


@dataclass(frozen=True, slots=True)
class Fed:
    count: float
    at_least: bool = False


def busy_by_count(result: Result) -> dict[int, float]:
    """Return the busy share of each number of accelerators: of a warm arm's epochs all, else of
    the first one."""
    found: dict[int, list[float]] = {}
    for epoch in result.epochs:
        if epoch.busy_share is not None and (result.arm.state == "warm" or not epoch.number):
            found.setdefault(epoch.readers, []).append(epoch.busy_share)
    return {count: statistics.fmean(shares) for count, shares in sorted(found.items())}


def fed(result: Result) -> Fed | None:
    points = busy_by_count(result)
    if result.workload.accelerator is None or not points:
        return None
    sure, scale = 0, result.workload.scale
    for count, share in points.items():
        if share < GOAL:
            return Fed(max(float(sure), count * share / GOAL) * scale)
        sure = count
    return Fed(sure * scale, at_least=True)


def fed_of(row: Row) -> FedEstimate | None:
    """Return how many accelerators the arm of a row feeds, over its repeats."""
    found = [one for one in map(fed, row.results) if one is not None]
    counted = estimate([one.count for one in found])
    if counted is None:
        return None
    return FedEstimate(counted, all(one.at_least for one in found))
