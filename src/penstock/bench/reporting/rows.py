"""Repeats put together: a Setting is a workload over a network, a Row is one arm in it. Pure.

A StateRow is one arm in one state of the workload `states`. It has medians over all samples of all
repeats that count. Ratios are medians of the ratios to neighbours, which were measured at the same
time, and no quotients of other columns.

Only results that count are in a figure; the others stay beside it, with their reason.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.bench.reporting.estimates import (
    Estimate,
    FedEstimate,
    estimate,
    figure,
    interval,
    rate,
    times,
)
from penstock.bench.reporting.results import Arm, Epoch, Result, Run, Sample, Shape, Workload

TRAINING_EPOCHS = 90  # what ResNet-50 on ImageNet is usually trained for
GOAL = 0.90
METHOD = (
    "Accelerators fed at 90% or more busy: the largest number of accelerators that was 90% busy, "
    "or, where a larger number was measured too and waited for data, that number times its busy "
    "share over 0.9. Accelerators emulated at a scale below 1 count by that scale."
)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of 1,000 GETs, and its source. Traffic and storage cost extra."""

    dollars: float
    source: str

    def of(self, gets: float) -> float:
        return gets / 1000 * self.dollars


# A list price, not an offer: it is an option because clouds, classes and years differ.
DEFAULT_PRICE = Price(0.0004, "list price of Amazon S3 Standard in us-east-1, 2025")


def stated_price(dollars: float | None) -> Price:
    return DEFAULT_PRICE if dollars is None else Price(dollars, "as given")


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


@dataclass(frozen=True, slots=True)
class Row:
    """One arm in one setting. Figures are means over the counted repeats."""

    arm: Arm
    setting: Setting
    results: tuple[Result, ...]
    left_out: tuple[Result, ...]
    bytes_per_s: Estimate | None
    samples_per_s: Estimate | None
    busy_share: Estimate | None
    first_batch_s: Estimate | None
    later_bytes_per_s: Estimate | None
    later_busy_share: Estimate | None
    fed: FedEstimate | None
    gets: Estimate | None  # in a measured epoch
    training_gets: float | None  # in 90 epochs
    cpu_s_per_gb: dict[str, float]  # by who used it
    memory_bytes: float | None  # the most of any epoch
    origins: dict[str, float] | None  # share of the bytes read, by where they came from
    later_origins: dict[str, float] | None

    @property
    def counted(self) -> bool:
        return bool(self.results)

    @property
    def speed(self) -> Estimate | None:
        """What arms are compared by: samples/s of training, bytes/s of plain reading."""
        return self.bytes_per_s if self.setting.workload.kind == "read" else self.samples_per_s

    @property
    def shown_speed(self) -> tuple[str, str]:
        """Return the speed and its interval as people read them."""
        assert self.speed is not None
        if self.setting.workload.kind == "read":
            return rate(self.speed.mean), interval(self.speed, 1e6)
        return f"{figure(self.speed.mean)} samples/s", interval(self.speed)

    @property
    def typical(self) -> Result | None:
        """The repeat of median duration; time series show this one."""
        timed = sorted(self.results, key=lambda one: (sum(e.seconds for e in one.epochs), one.id))
        return timed[(len(timed) - 1) // 2] if timed else None


def settings_of(run: Run) -> list[Setting]:
    """Return the settings of all workloads that have epochs, by workload name, each from the
    nearest store to the farthest."""
    found: dict[tuple[str, ...], Setting] = {}
    # Counted results first: one that failed early has no details of its workload.
    for result in sorted(run.results, key=lambda one: not one.counted):
        if not result.workload.has_epochs:
            continue
        setting = Setting(result.workload, result.shape, result.dataset)
        found.setdefault(setting.key, setting)
    return sorted(
        found.values(),
        key=lambda one: (
            one.workload.kind == "read",
            one.workload.name,
            one.shape.latency_s,
            -(one.shape.bytes_per_s or float("inf")),
            one.shape.name,
            one.dataset,
        ),
    )


def rows_of(run: Run) -> list[Row]:
    """Return rows by setting, then by `Arm.rank`."""
    rows: list[Row] = []
    for setting in settings_of(run):
        groups: dict[str, list[Result]] = {}
        for result in run.results:
            if Setting(result.workload, result.shape, result.dataset).key == setting.key:
                groups.setdefault(result.arm.name, []).append(result)
        for group in sorted(groups.values(), key=lambda group: group[0].arm.rank):
            rows.append(_row(setting, group))
    return rows


def _row(setting: Setting, group: Sequence[Result]) -> Row:
    counted = [result for result in group if result.counted]
    busy = _over(counted, lambda one: _busy_share(one.measured))
    later_busy = _over(counted, lambda one: _busy_share(one.later))
    return Row(
        arm=group[0].arm,
        setting=setting,
        results=tuple(counted),
        left_out=tuple(result for result in group if not result.counted),
        bytes_per_s=_over(counted, lambda one: _rate(one.measured, lambda e: e.size_bytes)),
        samples_per_s=_over(counted, lambda one: _rate(one.measured, lambda e: e.samples)),
        busy_share=busy.within(0, 1) if busy else None,
        first_batch_s=_over(
            counted, lambda one: one.measured[0].first_batch_s if one.measured else None
        ),
        later_bytes_per_s=_over(counted, lambda one: _rate(one.later, lambda e: e.size_bytes)),
        later_busy_share=later_busy.within(0, 1) if later_busy else None,
        fed=fed_estimate(counted),
        gets=_over(counted, lambda one: _mean(e.gets for e in one.measured)),
        training_gets=_mean(map(_training_gets, counted)),
        cpu_s_per_gb=_cpu(counted),
        memory_bytes=max(
            (e.memory_bytes for one in counted for e in one.epochs if e.memory_bytes is not None),
            default=None,
        ),
        origins=_origins([epoch for one in counted for epoch in one.measured]),
        later_origins=_origins([epoch for one in counted for epoch in one.later]),
    )


def _over(results: Iterable[Result], of: Callable[[Result], float | None]) -> Estimate | None:
    found = [value for value in map(of, results) if value is not None]
    return estimate(found)


def _rate(epochs: Sequence[Epoch], of: Callable[[Epoch], float]) -> float | None:
    seconds, total = sum(e.seconds for e in epochs), sum(of(e) for e in epochs)
    return total / seconds if seconds and total else None


def _busy_share(epochs: Sequence[Epoch]) -> float | None:
    timed = [epoch for epoch in epochs if epoch.busy_share is not None]
    seconds = sum(epoch.seconds for epoch in timed)
    if not seconds:
        return None
    return sum((epoch.busy_share or 0.0) * epoch.seconds for epoch in timed) / seconds


def _training_gets(result: Result) -> float | None:
    """Return GETs of a whole training: the first epoch, then the last measured one repeated.

    None for a single cold epoch: it does not predict later ones.
    """
    gets = [epoch.gets for epoch in result.epochs]
    if not gets or gets[0] is None or gets[-1] is None:
        return None
    if len(gets) == 1 and result.arm.state != "warm":
        return None
    return gets[0] + (TRAINING_EPOCHS - 1) * gets[-1]


def _cpu(results: Sequence[Result]) -> dict[str, float]:
    """CPU seconds for each 10^9 bytes read, by who used them."""
    epochs = [epoch for one in results for epoch in one.measured if epoch.cpu_s]
    size_gb = sum(epoch.size_bytes for epoch in epochs) / 1e9
    if not size_gb:
        return {}
    used: dict[str, float] = {}
    for epoch in epochs:
        for user, cpu_s in epoch.cpu_s.items():
            used[user] = used.get(user, 0.0) + cpu_s / size_gb
    return used


def _origins(epochs: Sequence[Epoch]) -> dict[str, float] | None:
    """Return shares of bytes by origin: tiers, store; the rest came from the page cache."""
    known = [epoch for epoch in epochs if epoch.size_bytes and epoch.get_bytes is not None]
    total = sum(epoch.size_bytes for epoch in known)
    if not total:
        return None
    found: dict[str, float] = {}
    split = all(epoch.hit_bytes is not None for epoch in known)
    for epoch in known:
        left = epoch.size_bytes
        for tier, size in sorted((epoch.hit_bytes or {}).items(), key=_tier_order):
            taken = min(left, size)
            found[tier] = found.get(tier, 0.0) + taken / total
            left -= taken
        fetched = min(left, epoch.get_bytes or 0.0)
        found["store"] = found.get("store", 0.0) + fetched / total
        rest = "pages" if split else "cache"
        found[rest] = found.get(rest, 0.0) + (left - fetched) / total
    return found


def _tier_order(item: tuple[str, float]) -> tuple[int, str]:
    known = ("MEM", "SSD", "HDD")
    return (known.index(item[0]) if item[0] in known else len(known), item[0])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Fed:
    count: float
    at_least: bool = False


def fed(result: Result) -> Fed | None:
    if result.workload.accelerator is None:
        return None
    points = result.accelerator_runs or _own_point(result)
    if not points:
        return None
    found = _fed(points)
    return Fed(found.count * result.workload.scale, found.at_least)


def fed_estimate(results: list[Result]) -> FedEstimate | None:
    found = [one for one in map(fed, results) if one is not None]
    counted = estimate([one.count for one in found])
    if counted is None:
        return None
    return FedEstimate(counted, all(one.at_least for one in found))


def _fed(points: tuple[tuple[int, float], ...]) -> Fed:
    sure = 0
    for count, share in points:
        if share < GOAL:
            return Fed(max(float(sure), count * share / GOAL))
        sure = count
    return Fed(float(sure), at_least=True)


def _own_point(result: Result) -> tuple[tuple[int, float], ...]:
    """Return the only point of a workload with one number of accelerators."""
    epochs = [one for one in result.measured if one.busy_share is not None]
    if not epochs:
        return ()
    seconds = sum(one.seconds for one in epochs)
    busy_s = sum((one.busy_share or 0.0) * one.seconds for one in epochs)
    return ((result.workload.accelerators or 1, busy_s / seconds),)


# -- the workload `states`: each system cold, cached and warm, by the number of readers ----------

BARE = "bare client"
HEAD = (
    *("read through", "state", "readers", "files/s", "MB/s", "of native", "of client"),
    *("CPU s/GB", "memory MB", "messages"),
)
_READ_STATES = ("cold", "cached", "warm")


@dataclass(frozen=True, slots=True)
class StateRow:
    """One arm in one state. Costs are of all processes of the system, without readers and store."""

    arm: Arm
    setting: Setting
    state: str
    readers: int
    samples: int
    files_per_s: float
    mb_per_s: float
    native_ratio: float | None
    bare_ratio: float | None
    cpu_s_per_gb: float
    memory_mb: float  # the most; 0 for what has no process of its own
    messages_per_epoch: float | None
    modes: frozenset[str]

    @property
    def cells(self) -> tuple[str, ...]:
        """Return what a table shows below HEAD."""
        cost = (f"{self.cpu_s_per_gb:.2f}", count(self.memory_mb)) if self.memory_mb else ("–", "–")
        messages = self.messages_per_epoch
        return (
            name_of(self.arm),
            self.state,
            str(self.readers),
            count(self.files_per_s),
            count(self.mb_per_s),
            share(self.native_ratio),
            share(self.bare_ratio),
            *cost,
            "–" if messages is None else count(messages),
        )


def state_rows(run: Run) -> list[StateRow]:
    """Return rows by setting, then by arm, state and number of readers."""
    groups: dict[tuple[tuple[str, ...], str, str, int], list[tuple[Result, Sample]]] = {}
    for result in run.counted:
        for sample in result.samples:
            key = (setting_of(result).key, sample.arm, sample.state, sample.readers)
            groups.setdefault(key, []).append((result, sample))
    rows = [_state_row(group) for group in groups.values()]
    return sorted(
        rows,
        key=lambda row: (
            row.setting.key,
            _is_bare(row.arm),
            row.arm.rank,
            _READ_STATES.index(row.state) if row.state in _READ_STATES else len(_READ_STATES),
            row.readers,
        ),
    )


def setting_of(result: Result) -> Setting:
    return Setting(result.workload, result.shape, result.dataset)


def name_of(arm: Arm) -> str:
    """Return the system and its release: `Penstock 0.1.0`, `Penstock 0.1.0, passthrough`."""
    system, *rest = arm.title.split(", ")
    kept = [word for word in rest if word not in ("cold", "warm")]
    release = arm.version.split()[:1]
    return ", ".join([" ".join([system, *release]), *kept])


def sentence(rows: Sequence[StateRow]) -> str:
    """Return a plain sentence about warm epochs of one setting; empty without Penstock's.

    It compares with the same number of readers: the most that was measured.
    """
    warm = [row for row in rows if row.state == "warm"]
    most = max((row.readers for row in warm), default=0)
    warm = [row for row in warm if row.readers == most]
    ours = next((row for row in warm if row.arm.system == "penstock"), None)
    if ours is None:
        return ""
    messages = ours.messages_per_epoch
    speed = f"{ours.mb_per_s:,.0f} MB/s"
    if ours.native_ratio is not None:
        speed = f"{ours.native_ratio:.0%} of the speed of native files"
    text = f"A warm epoch through {_spoken(ours)} reads at {speed}"
    if messages is not None:
        text += f" and sends its daemon {messages:,.0f} messages"
    others = [row for row in warm if row.arm.system not in ("penstock", "native")]
    if not others:
        return f"{text}."
    best = max(others, key=lambda row: row.files_per_s)
    factor = ours.files_per_s / best.files_per_s
    return f"{text}; that is {times(factor)} times as fast as {_spoken(best)}."


def count(value: float) -> str:
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _state_row(group: Sequence[tuple[Result, Sample]]) -> StateRow:
    result, first = group[0]
    samples = [sample for _, sample in group]
    arm = Arm(name=BARE, title=BARE, system=BARE) if first.arm == BARE else result.arm

    def median(of: Callable[[Sample], float]) -> float:
        return statistics.median(map(of, samples))

    return StateRow(
        arm=arm,
        setting=setting_of(result),
        state=first.state,
        readers=first.readers,
        samples=len(samples),
        files_per_s=median(lambda one: one.files / one.seconds),
        mb_per_s=median(lambda one: one.size_bytes / one.seconds / 1e6),
        native_ratio=_median(one.native_ratio for one in samples),
        bare_ratio=_median(one.bare_ratio for one in samples),
        cpu_s_per_gb=median(lambda one: one.cpu_s / one.size_bytes * 1e9),
        memory_mb=max(one.memory_bytes for one in samples) / 1e6,
        messages_per_epoch=_median(
            None if one.messages is None else one.messages / one.epochs for one in samples
        ),
        modes=frozenset(one.mode for one in samples),
    )


def _is_bare(arm: Arm) -> bool:
    return arm.system == BARE


def _spoken(row: StateRow) -> str:
    return row.arm.title.split(", ")[0]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
