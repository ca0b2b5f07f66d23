"""Results put together: a Setting is a workload over a network, a Row is one arm in it, over its
repeats. Pure. Only counted results are in a figure; the others stay beside it, with their reason.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.bench.reporting.fed import FedEstimate, fed_estimate
from penstock.bench.reporting.intervals import Estimate, estimate
from penstock.bench.reporting.results import Arm, Epoch, Result, Run, Shape, Workload

TRAINING_EPOCHS = 90  # what ResNet-50 on ImageNet is usually trained for


@dataclass(frozen=True, slots=True)
class Setting:
    workload: Workload
    shape: Shape

    @property
    def key(self) -> tuple[str, ...]:
        """One that failed early knows no more of its workload than name and kind."""
        return self.workload.name, self.workload.kind, self.shape.name

    @property
    def title(self) -> str:
        return f"{self.workload.name} · {self.shape.name}"

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
    gets: Estimate | None  # in an epoch that the arm's name speaks of
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
        """By which arms are compared: samples a second of what trains, bytes of what only reads."""
        return self.bytes_per_s if self.setting.workload.kind == "read" else self.samples_per_s

    @property
    def typical(self) -> Result | None:
        """The repeat in the middle, of which time series are drawn."""
        timed = sorted(self.results, key=lambda one: (sum(e.seconds for e in one.epochs), one.id))
        return timed[(len(timed) - 1) // 2] if timed else None


def settings_of(run: Run) -> list[Setting]:
    """In the order of the workloads' names, each from the nearest store to the farthest."""
    found: dict[tuple[str, ...], Setting] = {}
    # Counted ones first: they know their workload whole.
    for result in sorted(run.results, key=lambda one: not one.counted):
        setting = Setting(result.workload, result.shape)
        found.setdefault(setting.key, setting)
    return sorted(
        found.values(),
        key=lambda one: (
            one.workload.kind == "read", one.workload.name, one.shape.latency_s,
            -(one.shape.bytes_per_s or float("inf")), one.shape.name,
        ),
    )  # fmt: skip


def rows_of(run: Run) -> list[Row]:
    """By setting, then by arm, as `Arm.rank` orders them."""
    rows: list[Row] = []
    for setting in settings_of(run):
        groups: dict[str, list[Result]] = {}
        for result in run.results:
            if Setting(result.workload, result.shape).key == setting.key:
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


def _over(results: Iterable[Result], figure: Callable[[Result], float | None]) -> Estimate | None:
    found = [value for value in map(figure, results) if value is not None]
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
    """The first epoch, and then the last one that was measured, again and again. One cold epoch
    alone says nothing of the next ones."""
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
        for who, cpu_s in epoch.cpu_s.items():
            used[who] = used.get(who, 0.0) + cpu_s / size_gb
    return used


def _origins(epochs: Sequence[Epoch]) -> dict[str, float] | None:
    """What the system's tiers gave, then the store; what neither gave, the kernel had."""
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
