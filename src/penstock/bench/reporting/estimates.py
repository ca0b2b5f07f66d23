"""Means, intervals and tests over repeats, and numbers as people read them. Pure.

Intervals are Student's t at 95%: with the three to ten repeats that a benchmark has, a bootstrap
would draw from so few values that its interval is too narrow. Ratios and tests work on logarithms
(Welch's t, unequal variances), because speeds differ by factors. One repeat has no interval.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

LEVEL = 0.95
SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    mean: float
    values: tuple[float, ...]
    low: float | None = None
    high: float | None = None

    def within(self, least: float, most: float) -> "Estimate":
        """Return this estimate with its interval cut to possible values: no share is above 1."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.mean, self.values, max(least, self.low), min(most, self.high))


@dataclass(frozen=True, slots=True)
class FedEstimate:
    """Accelerators fed, over repeats. `at_least`: storage was the limit in none of them."""

    estimate: Estimate
    at_least: bool


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean and 95% interval; one value has no interval, no value no estimate."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, tuple(values))
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, tuple(values), mean - half, mean + half)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate | None:
    """Return ours over theirs: geometric means, with Welch's interval on logarithms."""
    pair = _logarithms(ours, theirs)
    if pair is None:
        return None
    difference = statistics.fmean(pair[0]) - statistics.fmean(pair[1])
    values = tuple(math.exp(one - statistics.fmean(pair[1])) for one in pair[0])
    if min(map(len, pair)) < 2:
        return Estimate(math.exp(difference), values)
    error, freedom = _welch_error(*pair)
    half = t_quantile(freedom) * error if error else 0.0
    return Estimate(
        math.exp(difference), values, math.exp(difference - half), math.exp(difference + half)
    )


def welch(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the two-sided p value of Welch's t test on logarithms.

    None where a side has a single repeat or a speed of zero: there is no answer then.
    """
    pair = _logarithms(ours, theirs)
    if pair is None or min(map(len, pair)) < 2:
        return None
    left, right = ((statistics.fmean(side), statistics.stdev(side), len(side)) for side in pair)
    if left[1] == right[1] == 0:
        return 1.0 if left[0] == right[0] else 0.0
    found: Any = stats.ttest_ind_from_stats(*left, *right, equal_var=False)
    return float(found.pvalue)


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number by Holm's method.

    Twenty uncorrected tests at 5% would find one difference where there is none.
    """
    known = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    corrected: list[float | None] = [None] * len(chances)
    most = 0.0
    for rank, (chance, place) in enumerate(known):
        most = max(most, min(1.0, chance * (len(known) - rank)))
        corrected[place] = most
    return corrected


def t_quantile(freedom: float) -> float:
    """Return how many standard errors a two-sided interval at LEVEL extends to each side."""
    student: Any = stats.t
    return float(student.ppf(0.5 + LEVEL / 2, freedom))


def _logarithms(*sides: Sequence[float]) -> tuple[list[float], list[float]] | None:
    if not all(sides) or min(map(min, sides)) <= 0:
        return None
    left, right = ([math.log(value) for value in side] for side in sides)
    return left, right


def _welch_error(left: list[float], right: list[float]) -> tuple[float, float]:
    """Return the standard error of the difference of means, and its degrees of freedom."""
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (left, right)]
    total = sum(part for part, _ in parts)
    below = sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(total), total**2 / below if below else 1.0


def figure(value: float) -> str:
    """Three significant digits with a thousands separator: 1,234 · 56.7 · 0.089."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def share(value: float) -> str:
    """`98.2%`; 100% only for exactly 1."""
    if value < 1 and round(value, 3) >= 1:
        return "99.9%"
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def times(value: float) -> str:
    """`35`, `3.1`, `0.98`."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1.5 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def accelerators(found: FedEstimate) -> str:
    """`12`, `7.4`, `0.05`, `8 or more`. Rounded down: 6.97 does not feed 7."""
    value = found.estimate.mean
    places = 1 if value >= 10 else 10 if value >= 1 else 100
    below = int(value * places + 1e-9) / places
    text = f"{below:,.0f}" if places == 1 else f"{below:g}" if below else f"{value:.1g}"
    return f"{text} or more" if found.at_least else text


def seconds(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 1e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs" if value else "0 s"


def count(value: float) -> str:
    """`12,345`, `9.5`, `0`."""
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def quotient(value: float) -> str:
    """`0.97`, `0.037`."""
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def interval(found: Estimate | None, text: Callable[[float], str] = figure) -> str:
    """`1,200 to 1,260`; a dash for one repeat."""
    if found is None or found.low is None or found.high is None:
        return "–"
    return f"{text(max(0.0, found.low))} to {text(found.high)}"
