"""The tiers of a runtime's cache, and other fields that runtimes share. Pure."""

from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator

from penstock.specs import reasons
from penstock.specs.fields import (
    Count,
    Fields,
    FreeMap,
    Quantities,
    Quantity,
    Text,
    field,
    invalid,
    parse_quantity,
)


def _ratio(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if text and not 0 < value <= 1:
        raise invalid(f"{text[:40]!r} is not a share of the quota", 'write it like "0.95"')
    return text


def _as_list_text(value: Any) -> Any:
    """Accept a list of paths; Fluid wants one text with commas."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return ",".join(item if isinstance(item, str) else "" for item in items)
    return value


Ratio = Annotated[Text, AfterValidator(_ratio)]


class Level(Fields):
    mediumtype: Literal["MEM", "SSD", "HDD"] = field(
        "Medium of the tier. MEM is memory (tmpfs); faster tiers are filled first.", required=True
    )
    volume_type: Literal["hostPath", "emptyDir"] = field(
        "hostPath: the folder at `path`. emptyDir: a folder that is removed with the runtime.",
        default="hostPath",
    )
    volume_source: FreeMap | None = field("Settings of the emptyDir.", no_effect=reasons.VOLUMES)
    path: Annotated[str, BeforeValidator(_as_list_text)] = field(
        "Folder of the tier on this machine; several are separated by commas.", default=""
    )
    quota: Quantity | None = field(
        "How much the tier may hold, such as 150Gi; divided evenly between several paths."
    )
    quota_list: Quantities = field(
        "How much each path may hold, in the order of the paths: 100Gi,50Gi.", default=""
    )
    high: Ratio = field("Share of the quota at which eviction begins.", default="")
    low: Ratio = field("Share of the quota at which eviction ends.", default="")
    storage_type: str = field(
        "Fluid's name for the medium, in older releases.",
        default="",
        no_effect="a setting of older releases of Fluid: mediumtype sets the medium",
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
    levels: list[Level] = field("The tiers of the cache, in any order.", factory=list)


class CleanCachePolicy(Fields):
    grace_period_seconds: Count = field(
        "How long clearing the cache may take when the runtime is deleted.", default=60, ge=0
    )
    max_retry_attempts: Count = field("How often clearing is retried if it fails.", default=3, ge=0)

    @property
    def keeps(self) -> bool:
        """Whether cached data stays when the runtime is deleted; never for Fluid's runtimes."""
        return False


class MetadataSyncPolicy(Fields):
    auto_sync: bool | None = field(
        "Whether metadata is listed when the data set is mounted.",
        no_effect="metadata sync: metadata is always listed before a mount",
        when="false",
    )


class Management(Fields):
    clean_cache_policy: CleanCachePolicy = field(
        "What happens to the cache when the runtime is deleted.", factory=CleanCachePolicy
    )
    metadata_sync_policy: MetadataSyncPolicy = field(
        "When metadata is listed.", factory=MetadataSyncPolicy
    )


class Version(Fields):
    image: str = field("Image of the engine.", default="")
    image_tag: Text = field("Its tag.", default="")
    image_pull_policy: str = field("When it is pulled.", default="")


NetworkMode = Literal["HostNetwork", "", "ContainerNetwork"]
CleanPolicy = Literal["", "OnDemand", "OnRuntimeDeleted", "OnFuseChanged"]
