"""Intervals and tests give what tables of Student's t give, and refuse what they cannot know."""

import math
import random

import pytest

from penstock.bench.reporting.fed import Fed, fed
from penstock.bench.reporting.intervals import (
    estimate,
    holm,
    ratio,
    t_quantile,
    welch,
)
from penstock.bench.reporting.results import Arm, Epoch, Result, Shape, Workload


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (30, 2.04227)]
)
def test_quantiles_of_t_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=1e-4)


def test_an_interval_is_the_mean_and_t_standard_errors_about_it() -> None:
    found = estimate([10.0, 12.0, 14.0])
    assert found is not None
    assert found.mean == 12
    assert found.high == pytest.approx(12 + 4.30265 * 2 / math.sqrt(3), abs=1e-3)
    assert found.low == pytest.approx(12 - 4.30265 * 2 / math.sqrt(3), abs=1e-3)


def test_one_repeat_has_no_interval_and_none_has_no_mean() -> None:
    found = estimate([7.0])
    assert found is not None
    assert (found.mean, found.low, found.high) == (7, None, None)
    assert estimate([]) is None
    single = ratio([10.0], [5.0, 5.0])
    assert single is not None
    assert (single.mean, single.low) == (pytest.approx(2), None)
    assert welch([10.0], [5.0, 6.0]) is None


def test_welch_gives_the_chance_of_a_worked_example() -> None:
    # Logarithms 1, 2, 3 and 2, 4, 6: means 2 and 4, errors 1/3 and 4/3, 2.94 degrees of freedom.
    left, right = [math.exp(x) for x in (1, 2, 3)], [math.exp(x) for x in (2, 4, 6)]
    chance = welch(left, right)
    assert chance == pytest.approx(0.2208, abs=5e-4)
    assert welch(right, left) == pytest.approx(chance)


def test_an_interval_of_a_ratio_covers_the_truth_about_as_often_as_it_says() -> None:
    dice = random.Random(4)
    covered = 0
    for _ in range(100):
        ours = [30 * math.exp(dice.gauss(0, 0.05)) for _ in range(4)]
        theirs = [10 * math.exp(dice.gauss(0, 0.02)) for _ in range(3)]
        found = ratio(ours, theirs)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 3 <= found.high
    assert 90 <= covered <= 99


def test_equal_values_differ_by_nothing_and_zero_speeds_are_not_compared() -> None:
    assert welch([5.0, 5.0], [5.0, 5.0]) == 1
    assert welch([5.0, 5.0], [6.0, 6.0]) == pytest.approx(0, abs=1e-12)
    assert welch([0.0, 1.0], [6.0, 6.0]) is None
    assert ratio([0.0], [1.0]) is None


def test_asking_often_is_corrected_for() -> None:
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])


def run_of(*points: tuple[int, float], scale: float = 1.0, busy: float | None = None) -> Result:
    workload = Workload("w", "emulated", accelerator="h100", accelerators=2, scale=scale)
    epochs = (Epoch(0, 10.0, 100, 1000, busy_share=busy),)
    return Result("i", "f", Arm("a", "A", "rclone"), workload, Shape("s"), epochs=epochs,
                  accelerator_runs=points)  # fmt: skip


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (run_of((1, 0.36)), Fed(0.4)),
        (run_of((1, 0.99), (2, 0.98), (4, 0.97)), Fed(4.0, at_least=True)),
        (run_of((1, 0.99), (4, 0.99), (8, 0.7875)), Fed(7.0)),
        (run_of((1, 0.99), (4, 0.95), (8, 0.2)), Fed(4.0)),
        (run_of((1, 0.99), (4, 0.99), (8, 0.7875), scale=0.25), Fed(1.75)),
        (run_of(busy=0.45), Fed(1.0)),
        (run_of(), None),
    ],
)
def test_accelerators_fed_are_those_kept_busy_nine_tenths_of_the_time(
    result: Result, expected: Fed | None
) -> None:
    found = fed(result)
    if found is None or expected is None:
        assert found == expected
    else:
        assert found.count == pytest.approx(expected.count)
        assert found.at_least == expected.at_least
