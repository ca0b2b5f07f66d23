"""Figures as people read them: three places that mean something, units beside them. Pure."""

from collections.abc import Callable

from penstock.bench.reporting.fed import FedEstimate
from penstock.bench.reporting.intervals import Estimate

Said = Callable[[float], str]


def figure(value: float) -> str:
    """Three significant places, thousands apart: 1,234 · 56.7 · 0.089."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def rate(bytes_per_s: float) -> str:
    return f"{figure(bytes_per_s / 1e6)} MB/s"


def share(value: float) -> str:
    """`98.2%`; never 100% of what is not."""
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
    said = f"{below:,.0f}" if places == 1 else f"{below:g}" if below else f"{value:.1g}"
    return f"{said} or more" if found.at_least else said


def seconds(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 1e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs" if value else "0 s"


def money(dollars: float) -> str:
    if dollars == 0:
        return "$0"
    return f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.2g}"


def interval(found: Estimate | None, unit: float = 1.0, *, percent: bool = False) -> str:
    """`1,200 to 1,260`; a dash from one repeat."""
    if found is None or found.low is None or found.high is None:
        return "–"
    if percent:
        return f"{share(found.low)} to {share(found.high)}"
    return f"{figure(max(0.0, found.low) / unit)} to {figure(found.high / unit)}"


def repeats(count: int) -> str:
    return "1 repeat" if count == 1 else f"{count} repeats"
