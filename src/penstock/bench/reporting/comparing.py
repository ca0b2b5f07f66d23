"""Two runs side by side: for each arm and setting that both have, is B faster than A? Pure but for
reading them.

Asked of Welch's t test on logarithms of speeds, at 5%, corrected by Holm's way for the number of
questions. Speeds of two machines or of two data sets say nothing about what was changed between
them: such a comparison is refused, and made only `anyway`, with a warning on top of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.bench.reporting import words
from penstock.bench.reporting.intervals import Estimate, holm, ratio, welch
from penstock.bench.reporting.markdown import plain
from penstock.bench.reporting.reading import mapping, read_run, text
from penstock.bench.reporting.results import Result, Run
from penstock.bench.reporting.rows import Row, rows_of
from penstock.bench.reporting.verdict import CHANCE
from penstock.errors import ResultsError

TEST = (
    "Welch's t test on logarithms of speeds, two-sided, at 5%, corrected for the number of rows "
    "by Holm's way. A and B are arithmetic means, B / A is of geometric ones, as those logarithms "
    "are. Intervals are of their own row alone: among many rows one may leave out 1 by chance"
)
_MACHINE = ("cpu", "cores", "memory_bytes")
_WORKLOAD = (
    "kind", "model", "accelerator", "accelerators", "batch", "step_s", "scale", "readers",
)  # fmt: skip
_SOFTWARE = ("penstock", "kernel", "python", "distribution")
NO_DIFFERENCE = "no difference that the repeats can show"


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """`said` is faster, slower, NO_DIFFERENCE, or why nothing can be said."""

    arm: str
    setting: str
    unit: str
    a: float | None
    b: float | None
    a_repeats: int
    b_repeats: int
    ratio: float | None
    low: float | None
    high: float | None
    chance: float | None
    said: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """`warnings` make it no comparison of like with like; `changes` are what else differs."""

    a: str
    b: str
    warnings: tuple[str, ...]
    changes: tuple[str, ...]
    rows: tuple[ComparedRow, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"schema": 1, "test": TEST}

    def to_markdown(self) -> str:
        lines = [f"**{plain(self.b)} against {plain(self.a)}**", ""]
        for warning in self.warnings:
            lines += [f"> **Not like with like:** {plain(warning)}", ""]
        lines += ["| arm | setting | A | B | B / A | 95% interval | B is |",
                  "| --- | --- | ---: | ---: | ---: | ---: | --- |"]  # fmt: skip
        lines += [f"| {' | '.join(plain(cell) for cell in cells(row))} |" for row in self.rows]
        if self.changes:
            lines += ["", *(f"- {plain(change)}" for change in self.changes)]
        return "\n".join([*lines, "", f"{plain(TEST)}.", ""])


def compare(a: Path, b: Path, *, anyway: bool = False) -> Comparison:
    """B against A. Raises ResultsError where data set or machine differ, unless `anyway`."""
    left, right = read_run(a), read_run(b)
    warnings = _warnings(left, right)
    if warnings and not anyway:
        raise ResultsError(
            f"{a} and {b} cannot be compared: {'; '.join(warnings)}",
            hint="--anyway compares them, and says so in the result",
        )
    rows = _compared(rows_of(left), rows_of(right))
    if not rows:
        raise ResultsError(
            f"{a} and {b} have no arm in a common setting",
            hint="both must have been run from plans that share arms, workloads and networks",
        )
    return Comparison(
        left.name, right.name, tuple(warnings), tuple(_changes(left, right)), tuple(rows)
    )


def cells(row: ComparedRow) -> tuple[str, ...]:
    """As both tables show it: arm, setting, A, B, ratio, interval, what is said."""
    interval = "–"
    if row.low is not None and row.high is not None:
        interval = f"{words.times(row.low)} to {words.times(row.high)}"
    return (
        row.arm,
        row.setting,
        _figure(row.a, row.unit),
        _figure(row.b, row.unit),
        "–" if row.ratio is None else words.times(row.ratio),
        interval,
        row.said,
    )


def _figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{words.figure(value)} {unit}"


def _warnings(left: Run, right: Run) -> list[str]:
    """What is not known is not the same: a missing file is said too."""
    return [
        *_differing("data set", ("sha256",), left.dataset, right.dataset, "dataset.json"),
        *_differing("machine", _MACHINE, left.environment, right.environment, "environment.json"),
    ]


def _differing(
    what: str, names: tuple[str, ...], left: Mapping[str, Any], right: Mapping[str, Any], file: str
) -> list[str]:
    missing = [who for who, found in (("A", left), ("B", right))
               if not any(found.get(name) for name in names)]  # fmt: skip
    if missing:
        return [f"{what} of {' and '.join(missing)} unknown ({file})"]
    parts = [
        f"{name} {text(left.get(name))[:48]} and {text(right.get(name))[:48]}"
        for name in names
        if left.get(name) != right.get(name)
    ]
    return [f"{what}s differ ({', '.join(parts)})"] if parts else []


def _changes(left: Run, right: Run) -> list[str]:
    found: list[str] = []
    versions = mapping(left.environment.get("versions")), mapping(right.environment.get("versions"))
    for name in _SOFTWARE:
        found += _change(name, left.environment.get(name), right.environment.get(name))
    for name in dict.fromkeys((*versions[0], *versions[1])):
        found += _change(name, versions[0].get(name), versions[1].get(name))
    for who, run in (("A", left), ("B", right)):
        if run.left_out:
            found.append(f"{who}: {len(run.left_out)} failed or invalid, left out")
        if not run.ended:
            found.append(f"{who} did not end: {len(run.unfinished)} without a result")
    return found


def _change(name: str, left: Any, right: Any) -> list[str]:
    return [] if left == right else [f"{name}: {text(left) or '–'} in A, {text(right) or '–'} in B"]


def _compared(left: list[Row], right: list[Row]) -> list[ComparedRow]:
    others = {(row.arm.name, row.setting.key): row for row in right}
    pairs = [
        (row, others[row.arm.name, row.setting.key])
        for row in left
        if (row.arm.name, row.setting.key) in others
    ]
    unlike = [_unlike(one, other) for one, other in pairs]
    chances = holm([
        None if why else _values(welch, other.speed, one.speed)
        for (one, other), why in zip(pairs, unlike, strict=True)
    ])  # fmt: skip
    return [
        _row(one, other, why, chance)
        for (one, other), why, chance in zip(pairs, unlike, chances, strict=True)
    ]


def _values(
    test: Callable[[tuple[float, ...], tuple[float, ...]], Any],
    ours: Estimate | None, theirs: Estimate | None,
) -> Any:  # fmt: skip
    return test(ours.values, theirs.values) if ours is not None and theirs is not None else None


def _row(one: Row, other: Row, why: str, chance: float | None) -> ComparedRow:
    reads = one.setting.workload.kind == "read"
    unit = 1e6 if reads else 1.0
    found: Estimate | None = None if why else _values(ratio, other.speed, one.speed)
    return ComparedRow(
        arm=one.arm.label,
        setting=one.setting.title,
        unit="MB/s" if reads else "samples/s",
        a=one.speed.mean / unit if one.speed else None,
        b=other.speed.mean / unit if other.speed else None,
        a_repeats=len(one.results),
        b_repeats=len(other.results),
        ratio=found.mean if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        chance=chance,
        said=why or _said(one, other, found, chance),
    )


def _said(one: Row, other: Row, found: Estimate | None, chance: float | None) -> str:
    if found is None:
        missing = [who for who, row in (("A", one), ("B", other)) if row.speed is None]
        return f"cannot be told: no valid run in {' and '.join(missing)}"
    if chance is None:
        return "cannot be told from one repeat"
    if chance >= CHANCE:
        return NO_DIFFERENCE
    return "faster" if found.mean > 1 else "slower"


def _counts(result: Result) -> str:
    return ", ".join(str(count) for count, _ in result.accelerator_runs) or "none"


def _unlike(one: Row, other: Row) -> str:
    """Rows of one name that are not the same question."""
    pairs = [
        ("latency_s", one.setting.shape.latency_s, other.setting.shape.latency_s),
        ("bytes_per_s", one.setting.shape.bytes_per_s, other.setting.shape.bytes_per_s),
        ("state", one.arm.state, other.arm.state),
        ("cache", one.arm.cache_share, other.arm.cache_share),
        *(
            (name, getattr(one.setting.workload, name), getattr(other.setting.workload, name))
            for name in _WORKLOAD
        ),
    ]
    if one.results and other.results:  # how long and on how many it was measured
        first, second = one.results[0], other.results[0]
        pairs += [
            ("epochs", len(first.epochs), len(second.epochs)),
            ("counts of accelerators", _counts(first), _counts(second)),
        ]
    parts = [f"{name} {left} and {right}" for name, left, right in pairs if left != right]
    return f"not the same: {', '.join(parts)}" if parts else ""
