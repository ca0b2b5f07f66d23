"""The arms of a plan: one system in one state each, and those that a name alone describes. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from penstock.errors import did_you_mean
from penstock.specs.fields import Fields, TextMap, field, invalid
from penstock.specs.resource import Name

System = Literal["native", "rclone", "s3fs", "juicefs", "alluxio", "penstock", "ceiling"]
CacheState = Literal["cold", "warm", "planned", "loaded"]
Share = Annotated[float, Field(ge=0, le=1)]


def named(value: Any) -> Any:
    """`- penstock-warm` means `- name: penstock-warm`."""
    return {"name": value} if isinstance(value, str) else value


def _arm(system: System, state: CacheState, share: float = 1.0, **more: Any) -> dict[str, Any]:
    """Return the fields of a known arm. Pages that the kernel keeps would hide a small cache."""
    drops = {"drops_pages": share < 1}
    return {"system": system, "state": state, "cache_share": share, **drops, **more}


# By name: the fields, and what it is.
_KNOWN: Mapping[str, tuple[dict[str, Any], str]] = {
    "ceiling": (
        _arm("ceiling", "warm"),
        "batches from memory, no I/O at all: what the workload reaches at best",
    ),
    "native": (_arm("native", "warm"), "the same files on the local medium, without a mount"),
    "rclone": (
        _arm("rclone", "cold", 0.0),
        "rclone mount without a cache: each read goes to the store",
    ),
    "rclone-cold": (
        _arm("rclone", "cold"),
        "rclone mount, its cache empty when the first epoch begins",
    ),
    "s3fs": (_arm("s3fs", "cold", 0.0), "s3fs without a cache: each read goes to the store"),
    "s3fs-cold": (_arm("s3fs", "cold"), "s3fs, its cache empty when the first epoch begins"),
    "juicefs-none": (
        _arm("juicefs", "cold", 0.0),
        "JuiceFS without a cache; it keeps objects of its own shape in the store",
    ),
    "juicefs": (_arm("juicefs", "cold"), "JuiceFS, its cache empty when the first epoch begins"),
    "juicefs-warm": (_arm("juicefs", "warm"), "JuiceFS, its cache full before the first epoch"),
    "alluxio": (_arm("alluxio", "cold"), "Alluxio, its caches empty when the first epoch begins"),
    "penstock-none": (
        _arm("penstock", "cold", 0.0),
        "Penstock without a cache: each read goes to the store",
    ),
    "penstock-cold": (
        _arm("penstock", "cold"),
        "Penstock, its cache empty when the first epoch begins",
    ),
    "penstock-passthrough": (
        _arm("penstock", "cold", options={"mode": "passthrough"}),
        "the same in passthrough mode: the kernel reads complete files of the cache itself",
    ),
    "penstock-planned": (
        _arm("penstock", "planned"),
        "the same, and `penstock run` tells the mount the order of each epoch; reported as hinted",
    ),
    "penstock-sampler": (
        _arm("penstock", "planned", planned_by="sampler"),
        "for a loader: the script wraps its sampler in PlannedSampler; reported as hinted",
    ),
    "penstock-loaded": (
        _arm("penstock", "loaded"),
        "for a loader: `penstock warm` loads everything first, and its time counts as waiting",
    ),
    "penstock-warm": (_arm("penstock", "warm"), "Penstock, its cache full before the first epoch"),
    **{
        f"penstock-{percent}": (
            _arm("penstock", "cold", percent / 100),
            f"Penstock with room for {percent}% of the data set; pages are dropped before each "
            "epoch, so that the cache alone counts",
        )
        for percent in (25, 50, 75)
    },
}


def _hides_the_cache(found: dict[str, Any]) -> bool:
    """Return whether the kernel's pages would hide a cache that is too small for all data."""
    return found.get("cache_share", 1.0) < 1


class ArmPlan(Fields):
    """One system in one state. A known name needs no more; every field can be changed."""

    name: Name = field(
        "A known arm, or a name of your own with `system`: " + ", ".join(_KNOWN) + ".",
        required=True,
    )
    system: System = field("What reads; for a name of your own.", default="penstock")
    state: CacheState = field(
        "cold: nothing is cached when the first epoch begins; warm: the cache is full before; "
        "planned: cold, and the mount knows the order of each epoch; loaded: cold, and `penstock "
        "warm` loads everything first, which counts as waiting (with kind: loader).",
        default="cold",
    )
    cache_share: Share = field(
        "How much of the data set the cache has room for, from 0 (no cache) to 1.", default=1.0
    )
    options: TextMap = field(
        "More options of the system's own command line, by their long names.", factory=dict
    )
    drops_pages: bool = field(
        "Whether the kernel's pages are dropped before each epoch.",
        factory=_hides_the_cache,
    )
    planned_by: Literal["run", "sampler"] = field(
        "Of a planned arm with kind: loader: `run` starts the script with `penstock run`, and "
        "`sampler` lets the script wrap its sampler in PlannedSampler.",
        default="run",
    )
    datasets: list[str] = field("Only these data sets; all by default.", factory=list)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: Any) -> Any:
        """Add the fields of a known name; what is written overrides them."""
        value = named(value)
        if not isinstance(value, dict):
            return value
        written = cast("dict[str, Any]", value)
        name = written.get("name")
        known = _KNOWN[name][0] if isinstance(name, str) and name in _KNOWN else {}
        filled = {**known, **written}
        if isinstance(options := written.get("options"), dict):
            filled["options"] = {**known.get("options", {}), **options}
        return filled

    @model_validator(mode="after")
    def _is_known(self) -> "ArmPlan":
        if self.name not in _KNOWN and "system" not in self.model_fields_set:
            hint = did_you_mean(self.name, _KNOWN, f"known arms: {', '.join(_KNOWN)}", cutoff=0.7)
            raise invalid(f"{self.name!r} is no known arm, and names no system", hint)
        return self


ARMS: Mapping[str, tuple[ArmPlan, str]] = {
    name: (ArmPlan(name=name), meaning) for name, (_, meaning) in _KNOWN.items()
}
