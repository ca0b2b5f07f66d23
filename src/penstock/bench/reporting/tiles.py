"""A few figures beside the verdict, each with a word on what it is. Pure."""

from dataclasses import dataclass

from penstock.bench.reporting import words
from penstock.bench.reporting.rows import Row
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.verdict import difference


@dataclass(frozen=True, slots=True)
class Tile:
    figure: str
    what: str
    note: str = ""


def tiles(summary: Summary) -> list[Tile]:
    found: list[Tile] = []
    verdict = summary.verdict
    ours = verdict.ours
    if ours is not None:
        if ours.fed is not None:
            shown = (ours, *verdict.peers[:1], verdict.native)
            found += [_fed(row) for row in shown if row is not None and row.fed is not None]
        elif ours.speed is not None:
            found.append(_speed(ours))
            # The best of the others: the slowest would flatter.
            found += [one for row in verdict.peers[:1] for one in _against(ours, row, "times")]
            if verdict.native is not None:
                found += _against(ours, verdict.native, "of")
        if ours.gets is not None:
            found.append(Tile(f"{ours.gets.mean:,.0f}", "GETs in an epoch", ours.arm.label))
    run = summary.run
    total = len(run.results) + len(run.unfinished)
    missing = [f"{len(run.left_out)} left out"] if run.left_out else []
    missing += [f"{len(run.unfinished)} without a result"] if run.unfinished else []
    found.append(Tile(f"{len(run.counted)} of {total}", "experiments count",
                      ", ".join(missing) or "all proofs held"))  # fmt: skip
    return found


def _against(ours: Row, theirs: Row, how: str) -> list[Tile]:
    ratio, differs = difference(ours, theirs)
    if ratio is None:
        return []
    figure = f"{words.times(ratio.mean)}×" if how == "times" else words.times(ratio.mean)
    note = _interval(words.interval(ratio))
    if differs is False:
        note += ", no difference shown"
    what = f"as fast as {theirs.arm.label}" if how == "times" else f"of {theirs.arm.label}"
    return [Tile(figure, what, note)]


def _fed(row: Row) -> Tile:
    assert row.fed is not None
    name = row.setting.workload.accelerator_name
    return Tile(words.accelerators(row.fed), f"{name} fed by {row.arm.label}",
                "as many as were tried" if row.fed.at_least
                else _interval(words.interval(row.fed.estimate)))  # fmt: skip


def _speed(row: Row) -> Tile:
    assert row.speed is not None
    if row.setting.workload.kind == "read":
        interval = words.interval(row.speed, 1e6)
        return Tile(words.rate(row.speed.mean), row.arm.label, _interval(interval))
    return Tile(f"{words.figure(row.speed.mean)} samples/s", row.arm.label,
                _interval(words.interval(row.speed)))  # fmt: skip


def _interval(said: str) -> str:
    return "one repeat" if said == "–" else f"95% interval {said}"
