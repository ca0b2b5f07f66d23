"""Kubernetes quantities, as sizes: 150Gi is 150 * 2**30 bytes, 180G is 180 * 10**9. Pure.

Not the sizes of the command line (penstock.units), where 100G and 100GiB are the same: manifests
mean what Kubernetes means.
"""

import re
from decimal import ROUND_UP, Decimal, DecimalException

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|(?:[eE](?P<exponent>[+-]?[0-9]{1,3})))?"
)
_BINARY = {unit + "i": 1024 ** (place + 1) for place, unit in enumerate("KMGTPE")}
_DECIMAL = {"k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST = 2**63 - 1  # as in Kubernetes

HINT = "write it like 150Gi (2**30 bytes each), 180G (10**9 bytes each) or 1.5Ti"


class NotAQuantity(ValueError):
    """`hint` says what to write instead."""

    def __init__(self, what: str, hint: str = HINT) -> None:
        super().__init__(what)
        self.hint = hint


def parse_quantity(text: str) -> int:
    """Bytes, a fraction of one rounded up as Kubernetes does."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise NotAQuantity(f"{_shown(text)} is not a quantity", _nearest(text))
    if match["decimal"] in ("n", "u", "m"):
        raise NotAQuantity(
            f"{_shown(text)} is a fraction of a byte: {match['decimal']} is a "
            + {"n": "billionth", "u": "millionth", "m": "thousandth"}[match["decimal"]],
            f"{match['number']}M is 10**6 bytes each, {match['number']}Mi 2**20",
        )
    try:
        value = Decimal(match["number"])
        if match["binary"]:
            value *= _BINARY[match["binary"]]
        elif match["decimal"]:
            value = value.scaleb(_DECIMAL[match["decimal"]])
        elif match["exponent"]:
            value = value.scaleb(int(match["exponent"]))
        size_bytes = int(value.to_integral_value(rounding=ROUND_UP))
    except DecimalException as error:
        raise NotAQuantity(f"{_shown(text)} is not a quantity") from error
    if size_bytes < 0:
        raise NotAQuantity(f"{_shown(text)} is less than nothing")
    if size_bytes > _LARGEST:
        raise NotAQuantity(f"{_shown(text)} is more than any machine holds")
    return size_bytes


def _nearest(text: str) -> str:
    """Most that are wrong are sizes of another dialect: 100GB, 100GiB, 100 Gi, 100g, 64K."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMgGtTpPeE])(i?)[bB]?\s*", text)
    if match is None:
        return HINT
    number, unit, binary = match.groups()
    if binary:
        return f"did you mean {number}{unit.upper()}i?"
    decimal = "k" if unit in "kK" else unit.upper()
    return f"did you mean {number}{unit.upper()}i (powers of 1024) or {number}{decimal} (of 1000)?"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
