"""A look that never returns costs its deadline and nothing more."""

import threading

import pytest

from penstock.resources.diagnosis.deadline import TooSlow, each_within, within


def test_what_returns_in_time_is_returned_and_what_raises_is_raised() -> None:
    assert within(5, lambda: 7) == 7

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        within(5, fail)


def test_what_hangs_is_left_to_itself() -> None:
    released = threading.Event()
    with pytest.raises(TooSlow):
        within(0.01, lambda: released.wait(30))
    found = each_within(1.0, {"hangs": lambda: released.wait(30), "well": lambda: True})
    assert found == {"hangs": None, "well": True}
    released.set()


def test_more_than_fit_at_once_are_all_looked_at() -> None:
    looks = {number: (lambda number=number: number * 2) for number in range(10)}
    assert each_within(5, looks, at_once=3) == {number: number * 2 for number in range(10)}
