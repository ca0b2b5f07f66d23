"""Rows of the workload `states`: each system cold, cached and warm, by the number of readers. Pure.

A row has medians over all samples of all repeats that count. Ratios are medians of the ratios to
neighbours, which were measured at the same time, and no quotients of other columns.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.bench.reporting import estimates
from penstock.bench.reporting.results import Arm, Result, Run, Sample
from penstock.bench.reporting.rows import Setting

BARE = "bare client"
HEAD = (
    *("read through", "state", "readers", "files/s", "MB/s", "of native", "of client"),
    *("CPU s/GB", "memory MB", "messages"),
)
_STATES = ("cold", "cached", "warm")


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
    rows = [_row(group) for group in groups.values()]
    return sorted(
        rows,
        key=lambda row: (
            row.setting.key,
            _is_bare(row.arm),
            row.arm.rank,
            _STATES.index(row.state) if row.state in _STATES else len(_STATES),
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
    times = ours.files_per_s / best.files_per_s
    return f"{text}; that is {estimates.times(times)} times as fast as {_spoken(best)}."


def count(value: float) -> str:
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _row(group: Sequence[tuple[Result, Sample]]) -> StateRow:
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
