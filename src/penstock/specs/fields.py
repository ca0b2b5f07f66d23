"""The base model of resources, the types of their values, and fields that document themselves.

A field carries its documentation, one or two sentences for `penstock explain`, and, if it has no
effect on one machine, the reason. Both live in the models, so that neither can be forgotten. Pure.
"""

import re
from decimal import ROUND_UP, Decimal, DecimalException
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

# When a field has no effect: always, or only with some values. One machine holds one replica, so
# replicas has no effect if it is above one.
When = Literal["always", "above one", "false", "writing", "exclusive", "without a secret"]

NO_EFFECT = "x-no-effect"
NO_EFFECT_WHEN = "x-no-effect-when"
INVALID = "invalid"  # the type of our own errors, beside pydantic's


class Fields(BaseModel):
    """A map with known keys: camelCase in YAML, as in Kubernetes, and snake_case in Python.

    Drops unknown keys, so that it can read the state of a newer release; specs/validation.py finds
    them in manifests before.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,  # the input may be a secret
        defer_build=True,  # build only the models in use: 0.19 s to import, not 0.26
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """Treat `fuse:` without a value as absent, as Kubernetes does."""
        if not isinstance(value, dict):
            return value
        entries = cast("dict[str, Any]", value)
        return {key: one for key, one in entries.items() if one is not None}


def field(
    text: str,
    *,
    default: Any = None,
    factory: Any = None,
    required: bool = False,
    no_effect: str | None = None,
    when: When = "always",
    alias: str | None = None,
    ge: int | None = None,
    secret: bool = False,
) -> Any:
    """Declare a field with its documentation. The value of a `secret` field is in no repr."""
    extra: dict[str, Any] = {}
    if no_effect is not None:
        extra = {NO_EFFECT: no_effect, NO_EFFECT_WHEN: when}
    common: dict[str, Any] = {
        "description": text,
        "json_schema_extra": extra or None,
        "repr": not secret,
    }
    if alias is not None:
        common["alias"] = alias
    if ge is not None:
        common["ge"] = ge
    if required:
        return Field(**common)
    if factory is not None:
        return Field(default_factory=factory, **common)
    return Field(default=default, **common)


def invalid(what: str, hint: str | None = None) -> PydanticCustomError:
    """Return the error for a validator to raise. Both texts may hold braces."""
    return PydanticCustomError(INVALID, "{what}", {"what": what, "hint": hint})


def _as_text(value: Any) -> Any:
    """Convert numbers to text: Kubernetes wants `"0.95"`, but many write 0.95."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return value


def _as_texts(value: Any) -> Any:
    """Convert values to text; a flag without a value, such as `debug:`, becomes empty text."""
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    return {key: "" if one is None else _as_text(one) for key, one in entries.items()}


def _as_count(value: Any) -> Any:
    if isinstance(value, bool):
        raise invalid("must be a whole number, not true or false")
    return value


Text = Annotated[str, BeforeValidator(_as_text)]
TextMap = Annotated[dict[str, str], BeforeValidator(_as_texts)]
Count = Annotated[int, BeforeValidator(_as_count)]

# Parts of Kubernetes' own objects: not checked, since nothing here depends on them.
FreeMap = dict[str, Any]
FreeList = list[dict[str, Any]]


# -- Kubernetes quantities: 150Gi is 150 * 2**30 bytes, 180G is 180 * 10**9 ---------------------
#
# On the command line (penstock.units) 100G and 100GiB are the same; in manifests they differ, as in
# Kubernetes.

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|(?:[eE](?P<exponent>[+-]?[0-9]{1,3})))?"
)
_BINARY = {unit + "i": 1024 ** (place + 1) for place, unit in enumerate("KMGTPE")}
_DECIMAL = {"k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST = 2**63 - 1  # as in Kubernetes

HINT = "write it like 150Gi (2**30 bytes each), 180G (10**9 bytes each) or 1.5Ti"


class NotAQuantity(ValueError):
    """Text that is not a quantity; `hint` is what to write instead."""

    def __init__(self, what: str, hint: str = HINT) -> None:
        super().__init__(what)
        self.hint = hint


def parse_quantity(text: str) -> int:
    """Return the bytes, rounded up as Kubernetes does."""
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
        raise NotAQuantity(f"{_shown(text)} is negative")
    if size_bytes > _LARGEST:
        raise NotAQuantity(f"{_shown(text)} is too large")
    return size_bytes


def _nearest(text: str) -> str:
    """Return a hint; most mistakes are sizes of other systems: 100GB, 100GiB, 100 Gi, 100g, 64K."""
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


def _quantity(text: str) -> str:
    try:
        parse_quantity(text)
    except NotAQuantity as error:
        raise invalid(str(error), error.hint) from None
    return text


def _quantities(text: str) -> str:
    for one in text.split(","):
        _quantity(one)
    return text


Quantity = Annotated[Text, AfterValidator(_quantity)]
Quantities = Annotated[Text, AfterValidator(_quantities)]
