"""Two runs side by side: for each arm in a state and a setting that both have, is B faster than A?

Welch's t test on logarithms of speeds decides, at 5%, corrected by Holm's method for the number of
rows. Runs of two machines or of two data sets cannot show what a change between them did: such a
comparison is rejected, and made only with `anyway` and a warning at its top. Pure, but for reading
the runs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.bench.reporting import estimates
from penstock.bench.reporting.estimates import SIGNIFICANCE, Estimate, holm, ratio, welch
from penstock.bench.reporting.results import Run, text
from penstock.bench.reporting.results_tree import read_run
from penstock.bench.reporting.rows import Row, rows_of
from penstock.bench.reporting.tables import Table, markdown, plain
from penstock.errors import ResultsError

TEST = (
    "Welch's t test on logarithms of speeds, two-sided, at 5%, corrected for the number of rows "
    "by Holm's method. A and B are arithmetic means, B / A is a ratio of geometric means. "
    "Intervals are of their own row alone: among many rows one may leave out 1 by chance"
)
_MACHINE = ("cpu", "cores", "memory_bytes")
_WORKLOAD = (
    "kind",
    "model",
    "accelerator",
    "accelerators",
    "batch",
    "step_s",
    "scale",
    "readers",
)
_SOFTWARE = ("penstock", "kernel", "python", "distribution")
NO_DIFFERENCE = "no difference that the repeats can show"


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """`finding` is faster, slower, NO_DIFFERENCE, or why there is none."""

    arm: str
    setting: str
    state: str
    readers: int
    unit: str
    a: float | None
    b: float | None
    a_repeats: int
    b_repeats: int
    ratio: float | None
    low: float | None
    high: float | None
    chance: float | None
    finding: str


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
        lines.append(markdown(self.table))
        if self.changes:
            lines += ["", *(f"- {plain(change)}" for change in self.changes)]
        return "\n".join([*lines, "", f"{plain(TEST)}.", ""])

    @property
    def table(self) -> Table:
        head = ("arm", "state", "setting", "readers", "A", "B", "B / A", "95% interval", "B is")
        return Table(head, list(map(_cells, self.rows)), (0, 1, 2, 8))


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


def _cells(row: ComparedRow) -> tuple[str, ...]:
    interval = "–"
    if row.low is not None and row.high is not None:
        interval = f"{estimates.times(row.low)} to {estimates.times(row.high)}"
    return (
        row.arm,
        row.state,
        row.setting,
        str(row.readers),
        _figure(row.a, row.unit),
        _figure(row.b, row.unit),
        "–" if row.ratio is None else estimates.times(row.ratio),
        interval,
        row.finding,
    )


def _figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{estimates.figure(value)} {unit}"


def _warnings(left: Run, right: Run) -> list[str]:
    """Return what makes the runs unlike; what is unknown counts as unlike."""
    return [
        *_differing("data set", ("sha256",), _together(left), _together(right), "datasets/*.json"),
        *_differing("machine", _MACHINE, left.environment, right.environment, "environment.json"),
    ]


def _together(run: Run) -> dict[str, Any]:
    """Return the hashes of all data sets of a run as one value."""
    hashes = {name: text(one.get("sha256")) for name, one in run.datasets.items()}
    if len(hashes) < 2:
        return {"sha256": "".join(hashes.values())}
    return {"sha256": ", ".join(f"{name} {value}" for name, value in hashes.items())}


def _differing(
    what: str, names: tuple[str, ...], left: Mapping[str, Any], right: Mapping[str, Any], file: str
) -> list[str]:
    missing = [
        side
        for side, found in (("A", left), ("B", right))
        if not any(found.get(name) for name in names)
    ]
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
    versions = left.versions, right.versions
    for name in _SOFTWARE:
        found += _change(name, left.environment.get(name), right.environment.get(name))
    for name in dict.fromkeys((*versions[0], *versions[1])):
        found += _change(name, versions[0].get(name), versions[1].get(name))
    for side, run in (("A", left), ("B", right)):
        if run.left_out:
            found.append(f"{side}: {len(run.left_out)} failed or invalid, left out")
        if not run.ended:
            found.append(f"{side} did not end: {len(run.unfinished)} without a result")
    return found


def _change(name: str, left: Any, right: Any) -> list[str]:
    return [] if left == right else [f"{name}: {text(left) or '–'} in A, {text(right) or '–'} in B"]


def _compared(left: list[Row], right: list[Row]) -> list[ComparedRow]:
    pairs = list(_pairs(left, right))
    unlike = [_unlike(one, other) for one, other in pairs]
    chances = holm(
        [
            None if why else _values(welch, other.speed, one.speed)
            for (one, other), why in zip(pairs, unlike, strict=True)
        ]
    )
    return [
        _row(one, other, why, chance)
        for (one, other), why, chance in zip(pairs, unlike, chances, strict=True)
    ]


def _pairs(left: list[Row], right: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield the rows that both runs have. An arm without a valid result has one row, without a
    state, which stands beside whatever the other run has."""
    by_key = {row.key: row for row in right}
    by_arm = {(row.arm.name, row.setting.key): row for row in reversed(right)}
    for row in left:
        other = by_arm.get((row.arm.name, row.setting.key))
        if other is not None and row.counted and other.counted:
            other = by_key.get(row.key)
        if other is not None:
            yield row, other


def _values(
    test: Callable[[tuple[float, ...], tuple[float, ...]], Any],
    ours: Estimate | None,
    theirs: Estimate | None,
) -> Any:
    return test(ours.values, theirs.values) if ours is not None and theirs is not None else None


def _row(one: Row, other: Row, why: str, chance: float | None) -> ComparedRow:
    found: Estimate | None = None if why else _values(ratio, other.speed, one.speed)
    return ComparedRow(
        arm=one.arm.label,
        setting=one.setting.title,
        state=one.state_label,
        readers=one.readers,
        unit=one.unit,
        a=one.speed.mean if one.speed else None,
        b=other.speed.mean if other.speed else None,
        a_repeats=one.repeats,
        b_repeats=other.repeats,
        ratio=found.mean if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        chance=chance,
        finding=why or _finding(one, other, found, chance),
    )


def _finding(one: Row, other: Row, found: Estimate | None, chance: float | None) -> str:
    if found is None:
        missing = [side for side, row in (("A", one), ("B", other)) if row.speed is None]
        return f"unknown: no valid run in {' and '.join(missing)}"
    if chance is None:
        return "unknown: one repeat shows no difference"
    if chance >= SIGNIFICANCE:
        return NO_DIFFERENCE
    return "faster" if found.mean > 1 else "slower"


def _epochs(row: Row) -> int:
    return sum(epoch.readers == row.readers for epoch in row.results[0].epochs)


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
    if one.counted and other.counted and one.is_first is not None:  # how long it was measured
        pairs.append(("epochs", _epochs(one), _epochs(other)))
    parts = [f"{name} {left} and {right}" for name, left, right in pairs if left != right]
    return f"not the same: {', '.join(parts)}" if parts else ""
