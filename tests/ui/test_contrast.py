"""The colours of the page can be read, in both schemes: WCAG's ratio of 4.5 for text."""

import re
from importlib.resources import files

import pytest

ON = {
    "page": ("ink", "soft", "link", "bad"),
    "card": ("ink", "soft", "link", "bad"),
    "tint": ("ink", "soft", "link"),
    "good-page": ("good",),
    "bad-page": ("bad",),
    "busy-page": ("busy",),
}
STYLE = files("penstock.ui").joinpath("page", "page.css").read_text()
SCHEMES = [dict(re.findall(r"--([\w-]+): (#\w+)", part)) for part in STYLE.split(":root {")[1:3]]


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", SCHEMES, ids=("light", "dark"))
def test_text_stands_out_from_what_is_behind_it(scheme: dict[str, str]) -> None:
    too_low: dict[tuple[str, str], float] = {}
    for behind, texts in ON.items():
        for text in texts:
            dark, light = sorted(luminance(scheme[name]) for name in (text, behind))
            ratio = (light + 0.05) / (dark + 0.05)
            if ratio < 4.5:
                too_low[text, behind] = ratio
    assert too_low == {}
    fill, track = sorted(luminance(scheme[name]) for name in ("fill", "track"))
    assert (track + 0.05) / (fill + 0.05) > 3  # what is cached, of the whole bar
