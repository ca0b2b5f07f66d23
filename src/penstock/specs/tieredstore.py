"""Tiers of a runtime's cache, and what else all runtimes share. Pure."""

import re
from decimal import ROUND_UP, Decimal, DecimalException
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator

from penstock.specs import reasons
from penstock.specs.fields import Count, Fields, FreeMap, Text, refuse, said

# Kubernetes quantities, as sizes: 150Gi is 150 * 2**30 bytes, 180G is 180 * 10**9. Pure.
#
# Not the sizes of the command line (penstock.units), where 100G and 100GiB are the same:
# manifests mean what Kubernetes means.

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


def _quantity(text: str) -> str:
    try:
        parse_quantity(text)
    except NotAQuantity as error:
        raise refuse(str(error), error.hint) from None
    return text


def _quantities(text: str) -> str:
    for one in text.split(","):
        _quantity(one)
    return text


def _ratio(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if text and not 0 < value <= 1:
        raise refuse(f"{text[:40]!r} is not a share of the quota", 'write it like "0.95"')
    return text


def _as_list_text(value: Any) -> Any:
    """Some write the paths as a list; Fluid wants one text with commas."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return ",".join(item if isinstance(item, str) else "" for item in items)
    return value


Quantity = Annotated[Text, AfterValidator(_quantity)]
Quantities = Annotated[Text, AfterValidator(_quantities)]
Ratio = Annotated[Text, AfterValidator(_ratio)]


class Level(Fields):
    mediumtype: Literal["MEM", "SSD", "HDD"] = said(
        "What the tier is on. MEM is memory (tmpfs); faster tiers are filled first.", required=True
    )
    volume_type: Literal["hostPath", "emptyDir"] = said(
        "hostPath: the folder at `path`, kept. emptyDir: a folder that goes with the runtime.",
        default="hostPath",
    )
    volume_source: FreeMap | None = said("Settings of the emptyDir.", no_effect=reasons.VOLUMES)
    path: Annotated[str, BeforeValidator(_as_list_text)] = said(
        "Folder of the tier on this machine; several are separated by commas.", default=""
    )
    quota: Quantity | None = said(
        "How much the tier may hold, such as 150Gi; divided evenly between several paths."
    )
    quota_list: Quantities = said(
        "How much each path may hold, in the order of the paths: 100Gi,50Gi.", default=""
    )
    high: Ratio = said("Share of the quota at which the tier is thinned out.", default="")
    low: Ratio = said("Share of the quota down to which it is thinned out.", default="")
    storage_type: str = said(
        "Fluid's name for the medium, in older releases.",
        default="",
        no_effect="a setting of older releases of Fluid: mediumtype says the same",
    )

    @property
    def paths(self) -> list[str]:
        return [path.strip() for path in self.path.split(",") if path.strip()]

    @property
    def quota_bytes(self) -> int | None:
        return None if self.quota is None else parse_quantity(self.quota)

    @property
    def quota_list_bytes(self) -> list[int]:
        return (
            [parse_quantity(one) for one in self.quota_list.split(",")] if self.quota_list else []
        )


class TieredStore(Fields):
    levels: list[Level] = said("The tiers of the cache, in any order.", factory=list)


class CleanCachePolicy(Fields):
    grace_period_seconds: Count = said(
        "How long the cache may take to be cleared when the runtime goes.", default=60, ge=0
    )
    max_retry_attempts: Count = said(
        "How often clearing is tried again if it fails.", default=3, ge=0
    )

    @property
    def keeps(self) -> bool:
        """Whether what is cached stays when the runtime goes. Never with Fluid's runtimes."""
        return False


class MetadataSyncPolicy(Fields):
    auto_sync: bool | None = said(
        "Whether names and sizes are listed when the data set is mounted.",
        no_effect="metadata sync: names and sizes are always listed, nothing is mounted without",
        when="false",
    )


class Management(Fields):
    clean_cache_policy: CleanCachePolicy = said(
        "What becomes of the cache when the runtime goes.", factory=CleanCachePolicy
    )
    metadata_sync_policy: MetadataSyncPolicy = said(
        "When names and sizes are listed.", factory=MetadataSyncPolicy
    )


class Version(Fields):
    image: str = said("Image of the engine.", default="")
    image_tag: Text = said("Its tag.", default="")
    image_pull_policy: str = said("When it is pulled.", default="")


NetworkMode = Literal["HostNetwork", "", "ContainerNetwork"]
CleanPolicy = Literal["", "OnDemand", "OnRuntimeDeleted", "OnFuseChanged"]
