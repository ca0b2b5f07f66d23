"""Figures as people read them."""

import pytest

from penstock.bench.reporting.estimates import money


@pytest.mark.parametrize(
    ("dollars", "shown"),
    [(0, "$0"), (9e-05, "under $0.0001"), (0.0001, "$0.0001"), (0.00036, "$0.00036"),
     (0.0016, "$0.0016"), (0.005, "$0.005"), (0.056, "$0.056"), (0.06, "$0.06"), (0.5, "$0.50"),
     (0.999, "$1.00"), (1, "$1.00"), (1234.5, "$1,234.50")],
)  # fmt: skip
def test_a_cost_reads_like_money(dollars: float, shown: str) -> None:
    assert money(dollars) == shown
