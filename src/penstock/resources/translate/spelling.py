"""Names that were meant to be others. Pure."""

import difflib
from collections.abc import Iterable

_SAME_WORD = 0.75  # one letter in four


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that someone who wrote `name` most likely meant."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def misspelled(name: str, known: Iterable[str]) -> str | None:
    """The known name of which this is a slip of the pen: other capitals, or one word that differs
    by a letter or two. Names that merely look alike (`pool.min`, `pool.max`) are none."""
    words = name.lower().split(".")
    for one in known:
        others = one.lower().split(".")
        if len(others) != len(words):
            continue
        pairs = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
        if not pairs or (len(pairs) == 1 and _alike(*pairs[0])):
            return one
    return None


def _alike(a: str, b: str) -> bool:
    return sorted(a) == sorted(b) or difflib.SequenceMatcher(None, a, b).ratio() >= _SAME_WORD
