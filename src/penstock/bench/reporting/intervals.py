"""Means, intervals and tests over repeats. Pure; no numpy, since a report needs none.

Intervals are Student's t at 95%: with the three to ten repeats that a benchmark has, a bootstrap
would draw from so few values that its interval is too narrow. Ratios and tests work on logarithms
(Welch's t, unequal variances), since speeds differ by factors. One repeat has no interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    mean: float
    values: tuple[float, ...]
    low: float | None = None
    high: float | None = None

    @property
    def repeats(self) -> int:
        return len(self.values)

    def within(self, least: float, most: float) -> "Estimate":
        """The same, its interval cut to what is possible: no share is above 1."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.mean, self.values, max(least, self.low), min(most, self.high))


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and 95% interval; no interval from one value, nothing from none."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, tuple(values))
    half = t_quantile(0.5 + LEVEL / 2, len(values) - 1) * math.sqrt(_variance(values) / len(values))
    return Estimate(mean, tuple(values), mean - half, mean + half)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate | None:
    """How many times `theirs` ours is: geometric means, with Welch's interval on logarithms."""
    if not ours or not theirs or min(*ours, *theirs) <= 0:
        return None
    difference = _log_mean(ours) - _log_mean(theirs)
    pairs = tuple(one / math.exp(_log_mean(theirs)) for one in ours)
    spread = _spread(ours, theirs)
    if spread is None:
        return Estimate(math.exp(difference), pairs)
    error, freedom = spread
    half = t_quantile(0.5 + LEVEL / 2, freedom) * error if error else 0.0
    return Estimate(
        math.exp(difference), pairs, math.exp(difference - half), math.exp(difference + half)
    )


def welch(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """How likely a difference as large as this is by chance (two-sided p). None: cannot be told
    from one repeat, or from speeds of zero."""
    if not ours or not theirs or min(*ours, *theirs) <= 0:
        return None
    spread = _spread(ours, theirs)
    if spread is None:
        return None
    error, freedom = spread
    difference = abs(_log_mean(ours) - _log_mean(theirs))
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return _tails(difference / error, freedom)


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """The same chances, corrected for having asked that often: twenty tests at 5% would find one
    difference where there is none."""
    known = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    corrected: list[float | None] = [None] * len(chances)
    most = 0.0
    for rank, (chance, place) in enumerate(known):
        most = max(most, min(1.0, chance * (len(known) - rank)))
        corrected[place] = most
    return corrected


def quantile(ascending: Sequence[float], share: float) -> float:
    """Between neighbours by their distance."""
    place = share * (len(ascending) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)


def t_quantile(share: float, freedom: float) -> float:
    """Where Student's t has `share` (above one half) of its weight below it."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        if 1 - _tails(middle, freedom) / 2 < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _spread(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float] | None:
    """Standard error of the difference of mean logarithms, and Satterthwaite's freedom."""
    if len(ours) < 2 or len(theirs) < 2:
        return None
    parts = [
        (_variance([math.log(one) for one in side]) / len(side), len(side) - 1)
        for side in (ours, theirs)
    ]
    total = parts[0][0] + parts[1][0]
    if total == 0:
        return 0.0, 1.0
    below = sum(part**2 / freedom for part, freedom in parts)
    # Equal values leave dust of 1e-33, whose square is no number any more.
    return math.sqrt(total), total**2 / below if below else min(part[1] for part in parts)


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _log_mean(values: Sequence[float]) -> float:
    return math.fsum(math.log(value) for value in values) / len(values)


def _tails(t: float, freedom: float) -> float:
    """The weight of Student's t beyond -t and t."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised, by its continued fraction (Lentz's way), on the side where that is quick."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction
