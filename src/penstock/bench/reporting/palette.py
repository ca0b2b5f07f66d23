"""Colours, as classes of the page's style sheet. Pure.

The hues are those of Okabe and Ito, which people with any kind of colour blindness can tell apart;
the dark page has lighter ones. A system has one hue in every chart. Its state is not left to
colour: lines differ by their dashes, bars carry their names, and stacked parts by their order.
"""

from collections.abc import Iterable

from penstock.bench.reporting.results import SYSTEMS, Arm

_SYSTEM_COLOURS = {  # on white, on black
    "ceiling": ("#a8adb3", "#6b7178"),
    "native": ("#5f666d", "#a9b0b7"),
    "penstock": ("#0072b2", "#56b4e9"),
    "juicefs": ("#009e73", "#2fc79b"),
    "rclone": ("#d55e00", "#f0843a"),
    "s3fs": ("#b0568d", "#dd94bd"),
    "other": ("#8c7a00", "#e3d05c"),
}
_PART_COLOURS = {
    "load": ("#d55e00", "#f0843a"),
    "compute": ("#0072b2", "#56b4e9"),
    "barrier": ("#a8adb3", "#7b828a"),
    "system": ("#0072b2", "#56b4e9"),
    "readers": ("#a8adb3", "#7b828a"),
    "pages": ("#0072b2", "#56b4e9"),
    "cache": ("#7fb4d6", "#3c7ca3"),
    "tier-0": ("#009e73", "#2fc79b"),
    "tier-1": ("#7cc9b1", "#1f8567"),
    "tier-2": ("#c3dfa0", "#6f9445"),
    "store": ("#d55e00", "#f0843a"),
}
_DASHES = {"warm": "", "planned": "8 4", "cold": "2.5 3"}


def system_class(arm: Arm) -> str:
    """`c-penstock cold`: a hue, and the state for dashes and for paler bars."""
    system = arm.system if arm.system in SYSTEMS else "other"
    state = arm.state if arm.state in _DASHES else "cold"
    return f"c-{system} {state}{' part' if arm.cache_share < 1 else ''}"


def line_class(arm: Arm, arms: Iterable[Arm]) -> str:
    """As above; dashes only where a system has several arms to tell apart."""
    alone = len({one.name for one in arms if one.system == arm.system}) == 1
    return system_class(arm).split()[0] if alone else system_class(arm)


def part_class(name: str) -> str:
    return f"c-{name}" if name in _PART_COLOURS else "c-other"


def style() -> str:
    """The rules of the light page and of the dark one, and of dashes."""
    both = {**_PART_COLOURS, **_SYSTEM_COLOURS}
    light = "".join(f"--{name}:{pair[0]};" for name, pair in both.items())
    dark = "".join(f"--{name}:{pair[1]};" for name, pair in both.items())
    classes = "".join(f".c-{name}{{--c:var(--{name})}}" for name in both)
    dashes = "".join(
        f"polyline.{state}{{stroke-dasharray:{dash}}}" for state, dash in _DASHES.items() if dash
    )
    return (
        f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"{classes}\n{dashes}"
    )
