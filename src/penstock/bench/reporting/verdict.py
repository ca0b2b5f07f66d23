"""The verdict of a run: what the first epoch from empty caches is like, and what warm ones are.

Both are said of each setting that shows them, from counted results; the headline is the most
telling of each. In first epochs Penstock is represented by its best arm, with the order of the
epoch or without, and says so; every other system by its best arm. Where the repeats can show no
difference of speeds, none is claimed, and a share that is not known is not named. Numbers of
accelerators fed stand side by side, and nothing is claimed of their difference. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.bench.reporting import estimates
from penstock.bench.reporting.estimates import SIGNIFICANCE, Estimate, ratio, welch
from penstock.bench.reporting.results import BARE, Run
from penstock.bench.reporting.rows import FED_METHOD, Row, Setting, busy_by_count, fed_of

OURS = "penstock"
REFERENCES = ("native", "ceiling", BARE)
_PEERS = 3
# Beyond this, an interval says more about the machine than about the systems.
_WIDEST = 1.5
# Processes that start together need some milliseconds for it on few cores.
_SHORTEST_S = 0.1


@dataclass(frozen=True, slots=True)
class Finding:
    """What one setting shows, in a sentence; `rows` are those that it names, ours first.
    `is_shown`: the systems differ, or could."""

    sentence: str
    setting: Setting
    rows: tuple[Row, ...] = ()
    fed: bool = False
    is_shown: bool = True
    is_warm: bool = False

    @property
    def weight(self) -> tuple[bool, bool, bool, float, float]:
        """Which one is the headline: ours against others, busy accelerators, a far store."""
        shape = self.setting.shape
        compared = len(self.rows) > 1 and self.is_shown
        slowness = 1 / shape.bytes_per_s if shape.bytes_per_s else 0.0
        trains = not self.setting.workload.reads
        return bool(self.rows), compared, trains, shape.latency_s, slowness


@dataclass(frozen=True, slots=True)
class Verdict:
    """`sentence` is the headline, made of `headline`; `others` have a sentence for each further
    finding. `warnings`: why a figure is not to be trusted."""

    sentence: str
    headline: tuple[Finding, ...] = ()
    others: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge(run: Run, rows: Sequence[Row]) -> Verdict:
    settings = list({row.setting.key: row.setting for row in rows}.values())
    found: list[Finding] = []
    for setting in settings:
        found += _findings([row for row in rows if row.setting == setting])
    if not found:
        return Verdict(_nothing(run))
    first = [one for one in found if not one.is_warm]
    warm = [one for one in found if one.is_warm]
    headline: list[Finding] = []
    if first:
        headline.append(max(first, key=lambda one: one.weight))
    if warm:  # many small files: they are what a mount is slow at
        headline.append(min(warm, key=lambda one: one.setting.dataset == "large"))
    if any(one.rows for one in headline):
        headline = [one for one in headline if one.rows]
    return Verdict(
        sentence=" ".join(one.sentence for one in headline),
        headline=tuple(headline),
        others=tuple(one for one in found if one not in headline),
        notes=tuple(_notes(run, rows, headline)),
        warnings=tuple(_warnings(headline)),
    )


def difference(ours: Row, theirs: Row) -> tuple[Estimate | None, bool | None]:
    """Return ours over theirs, and whether the repeats show that they differ.

    The second is None for a single repeat, which cannot show it.
    """
    left, right = ours.speed, theirs.speed
    if left is None or right is None:
        return None, None
    chance = welch(left.values, right.values)
    return ratio(left.values, right.values), None if chance is None else chance < SIGNIFICANCE


def _nothing(run: Run) -> str:
    if any(one.figures for one in run.counted):
        return f"{len(run.counted)} measured; this run compares nothing."
    why = "no experiment has a result yet" if run.unfinished else "it has no results"
    return f"This run has no verdict: {why}."


def _findings(rows: Sequence[Row]) -> list[Finding]:
    """Return what one setting shows: of first epochs, of warm ones."""
    setting = rows[0].setting
    counted = [row for row in rows if row.counted and row.speed is not None]
    if not any(row.arm.system == OURS for row in counted):
        if not any(row.arm.system == OURS or row.counted for row in rows):
            return []
        what = f"No valid run of Penstock: there is no figure for it here ({_why(rows)})."
        return [Finding(what, setting)]
    if any(len(busy_by_count(result)) > 1 for row in counted for result in row.results):
        return [_feeds(counted)]
    most = max(row.readers for row in counted)
    here = [row for row in counted if row.readers == most]
    first = [row for row in here if row.begins_empty]
    warm = [row for row in here if row.state == "warm"]
    later = [row for row in warm if not row.is_first] or warm
    busy = not setting.workload.reads and any(row.figure("busy") for row in first)
    native = next((row for row in here if row.arm.system == "native" and row.is_first), None)
    found = [_keeps_busy(first, native) if busy else _reads_first(first)]
    if setting.workload.kind in ("read", "job") or found == [None]:
        found.append(_reads_warm(later, here))
    return [one for one in found if one is not None]


def _subject(rows: Sequence[Row]) -> Row | None:
    return max((row for row in rows if row.arm.system == OURS), key=_best, default=None)


def _best(row: Row) -> tuple[float, float]:
    busy = row.figure("busy")
    assert row.speed is not None
    return busy.mean if busy else 0.0, row.speed.mean


def _best_of_each(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the best row of every system but our own and the references."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=_best):
        if row.arm.system not in (OURS, *REFERENCES):
            best[row.arm.system] = row
    return tuple(sorted(best.values(), key=_best, reverse=True)[:_PEERS])


def _unplanned(ours: Row, rows: Iterable[Row]) -> list[Row]:
    """Return our own arm without a hint, where the subject has one."""
    plain = [row for row in rows if row.arm.system == OURS and not row.arm.hinted]
    return [max(plain, key=_best)] if ours.arm.hinted and plain else []


# -- first epochs --------------------------------------------------------------------------------


def _keeps_busy(rows: Sequence[Row], native: Row | None) -> Finding | None:
    if (ours := _subject(rows)) is None:
        return None
    others = (*_unplanned(ours, rows), *_best_of_each(rows))
    name = ours.setting.workload.accelerator_name
    what = "the accelerator" if name is None else f"an {name}" if "emu" in name else f"the {name}"
    if ours.setting.workload.scaled:
        what += f" (scale {ours.setting.workload.scale:.3g})"
    parts = [f"{ours.spoken} keeps {what} {_busy(ours)} busy"]
    parts += [f"{row.spoken} {_busy(row)}" for row in others]
    if native is not None:
        parts.append(f"native files {_busy(native)}")
    text = f"In the first epoch, from empty caches, {', '.join(parts)}"
    return Finding(_sentence(text, (ours, *others)), ours.setting, (ours, *others))


def _busy(row: Row) -> str:
    found = row.figure("busy")
    return "–" if found is None else estimates.share(found.mean)


def _reads_first(rows: Sequence[Row]) -> Finding | None:
    if (ours := _subject(rows)) is None:
        return None
    verb = "reads" if ours.setting.workload.reads else "trains"
    rivals = (*_best_of_each(rows), *_unplanned(ours, rows))
    comparisons = [_compared_with(ours, row) for row in rivals]
    if not comparisons:
        assert ours.speed is not None
        speed = f"{estimates.figure(ours.speed.mean)} {ours.unit}"
        comparisons = [f"at {speed}; no valid run is there to compare it with"]
    text = f"From empty caches {ours.spoken} {verb} {_listed(comparisons)}"
    return Finding(_sentence(text, (ours, *rivals)), ours.setting, (ours, *rivals))


def _compared_with(ours: Row, theirs: Row) -> str:
    found, differs = difference(ours, theirs)
    name = theirs.spoken
    assert found is not None  # both have a speed
    if differs is False:
        return f"neither faster nor slower than {name}, as far as the repeats can show"
    if found.mean >= 1.05 or (differs and found.mean > 1):
        return f"{estimates.times(found.mean)} times as fast as {name}"
    if found.mean <= 0.95 or differs:
        return f"at {estimates.times(found.mean)} of the speed of {name}"
    return f"about as fast as {name}"


def _feeds(rows: Sequence[Row]) -> Finding:
    """How many accelerators each system feeds, of several numbers that were tried."""
    plain = [row for row in rows if row.arm.state == "warm" and row.arm.cache_share >= 1]

    def key(row: Row) -> tuple[float, tuple[float, float]]:
        found = fed_of(row)
        return found.estimate.mean if found else 0.0, _best(row)

    ours = max((row for row in plain or rows if row.arm.system == OURS), key=key, default=None)
    ours = ours or max((row for row in rows if row.arm.system == OURS), key=key)
    best: dict[str, Row] = {}
    for row in sorted(rows, key=key):
        if row.arm.system not in (OURS, *REFERENCES):
            best[row.arm.system] = row
    peers = tuple(sorted(best.values(), key=key, reverse=True)[:_PEERS])
    fed = {row.key: found for row in (ours, *peers) if (found := fed_of(row)) is not None}
    name = ours.setting.workload.accelerator_name
    if peers and all(one.at_least for one in fed.values()):
        most = estimates.accelerators(fed[ours.key]).removesuffix(" or more")
        names = _listed([row.arm.spoken for row in (ours, *peers)])
        text = f"{names} feed all that was tried ({most} {name}): storage was not the limit"
        sentence = _sentence(text, (ours, *peers))
        return Finding(sentence, ours.setting, (ours, *peers), fed=True, is_shown=False)
    count = estimates.accelerators(fed[ours.key])
    parts = [f"{ours.arm.spoken} feeds {count} {name} at 90% or more busy"]
    parts += [f"{row.arm.spoken} {estimates.accelerators(fed[row.key])}" for row in peers]
    sentence = _sentence(", ".join(parts), (ours, *peers))
    return Finding(sentence, ours.setting, (ours, *peers), fed=True)


# -- warm epochs ---------------------------------------------------------------------------------


def _reads_warm(rows: Sequence[Row], others: Sequence[Row]) -> Finding | None:
    """Compare warm epochs by the same number of readers: the most that was measured. A system that
    keeps nothing has no warm epochs, and is named by what it has."""
    if (ours := _subject(rows)) is None:
        return None
    assert ours.speed is not None
    verb = "reads" if ours.setting.workload.reads else "trains"
    text = f"A warm epoch through {ours.spoken} {verb} {_of_native(ours, rows)}"
    if (messages := ours.figure("messages")) is not None:
        text += f" and sends its daemon {messages.mean:,.0f} messages"
    if peers := _best_of_each(others):
        text += f"; that is {_compared_with(ours, peers[0])}"
    rivals = (*peers[:1], *(row for row in rows if row.arm.system == "native"))
    return Finding(f"{text}.", ours.setting, (ours, *rivals), is_warm=True)


def _of_native(ours: Row, rows: Sequence[Row]) -> str:
    assert ours.speed is not None
    found = ours.figure("native_ratio")
    if found is None:
        native = next((row for row in rows if row.arm.system == "native"), None)
        found = None if native is None else difference(ours, native)[0]
    if found is None:
        return f"at {estimates.figure(ours.speed.mean)} {ours.unit}"
    if found.low is None or found.high is None:
        return f"at {found.mean:.0%} of the speed of native files (one measurement)"
    low, high = max(0.0, found.low), found.high
    if not low or high / low > _WIDEST:
        return (
            "at a share of the speed of native files that this run cannot tell (somewhere from "
            f"{low:.0%} to {high:.0%})"
        )
    interval = f"95% interval {low:.0%} to {high:.0%}"
    return f"at {found.mean:.0%} of the speed of native files ({interval})"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _sentence(text: str, used: Sequence[Row]) -> str:
    least = min(row.repeats for row in used)
    return f"{text} (one repeat: no interval)." if least == 1 else f"{text}."


def _why(rows: Sequence[Row]) -> str:
    left_out = {one.id: one for row in rows if row.arm.system == OURS for one in row.left_out}
    if not left_out:
        return "none has a result"
    return f"{len(left_out)} left out, of which the first {next(iter(left_out.values())).why_not}"


def _notes(run: Run, rows: Sequence[Row], headline: Sequence[Finding]) -> list[str]:
    settings = {one.setting.key: one.setting for one in headline}
    notes = [f"Measured in {one.title}: {one.details}." for one in settings.values()]
    if any(one.fed for one in headline):
        notes.append(FED_METHOD)
    notes.append(
        "Ratios of first epochs are of geometric means over repeats; whether two differ is asked "
        "of Welch's t test on logarithms, at 5%. Shares of native files are medians of "
        "neighbouring measurements."
    )
    named = [row for one in headline for row in one.rows]
    if any(row.arm.hinted for row in named):
        notes.append("Hinted: storage was given the order of the epoch beforehand.")
    if any(row.setting.workload.emulated for row in named):
        notes.append("Emulated: an accelerator is a wait of the published step time on each batch.")
    if left_out := len(run.left_out):
        who = "1 experiment" if left_out == 1 else f"{left_out} experiments"
        here = [row for row in rows if row.setting.key in settings]
        gone = [row.arm.spoken for row in here if not row.counted]
        missing = f" There is no figure here for {_listed(gone)}." if gone else ""
        notes.append(f"Left out: {who} that failed or did not prove what was claimed.{missing}")
    return notes


def _warnings(headline: Sequence[Finding]) -> list[str]:
    """Say which epochs were too short to be timed."""
    short = {
        row.setting.key: pair[1].seconds
        for one in headline
        for row in one.rows
        if (pair := row.typical) is not None and pair[1].seconds < _SHORTEST_S
    }
    return [
        f"{key[0]}: an epoch took {estimates.seconds(took)}, too short to be timed well; a larger "
        "data set shows more"
        for key, took in short.items()
    ]
