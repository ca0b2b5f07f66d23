"""The results of a run as values: experiments, their epochs and proofs. Pure, no I/O.

What a workload does not measure is missing in its results, and None here. A result with a value of
another kind is not read at all: results_tree.py makes a note of it.
`Result.counted` decides: a result that does not count is listed with its reason, and no figure and
no sentence uses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from penstock.units import format_bit_rate

# In the order of tables and charts: references first, then Penstock, then its peers.
SYSTEMS = ("ceiling", "native", "penstock", "juicefs", "alluxio", "rclone", "s3fs")
BARE = "bare client"
REPORT = "report"  # the workflow's step in which all this is written
OPEN = ("waiting", "running")
_STATES = ("warm", "planned", "loaded first", "cold")
_MODELS = {
    "resnet50": "ResNet-50",
    "unet3d": "UNet3D",
    "cosmoflow": "CosmoFlow",
    "retinanet": "RetinaNet",
}


def number(value: Any) -> float | None:
    """Return a value of environment.json and the like as a number that can be, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e300 else None  # NaN is not


def text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


Text = Annotated[str, BeforeValidator(text)]  # None is none
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Value(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Shape(Value):
    """The network between the reader and the store."""

    name: str = "unshaped"
    latency_s: Amount = 0.0  # added to each request
    bytes_per_s: Amount | None = None  # None: as fast as it goes

    @property
    def plain(self) -> bool:
        return self.latency_s == 0 and self.bytes_per_s is None

    @property
    def details(self) -> str:
        latency = f"{self.latency_s * 1000:g} ms a request" if self.latency_s else "no added delay"
        rate = format_bit_rate(self.bytes_per_s) if self.bytes_per_s else "no limit of bandwidth"
        return f"{latency}, {rate}"


class StoreCounts(Value):
    gets: Amount | None = None
    get_bytes: Amount | None = None


class Epoch(Value):
    """One measured epoch, or several in a row, of any workload."""

    arm: str = ""  # the result's own, or the bare client
    state: str = "cold"
    readers: Count = 0  # processes, or accelerators
    number: int | None = Field(None, validation_alias="epoch")  # None: epochs have no order
    passes: int = 1
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    samples: Amount = 0.0
    size_bytes: Amount = Field(0.0, validation_alias="bytes")
    busy_share: Amount | None = None  # without the wait for the first batch
    busy_s: Amount | None = None
    first_batch_s: Amount | None = None
    store: StoreCounts | None = None
    hit_bytes: dict[str, Amount] | None = None
    cpu_s: dict[str, Amount | None] = Field(default_factory=dict)  # of the system, of readers
    memory_bytes: Amount | None = None  # of all processes of the system
    messages: Amount | None = None
    mode: str | None = None
    native_ratio: Amount | None = None  # its speed over that of its native neighbour
    bare_ratio: Amount | None = None
    place: int = 0  # in the lists of the experiment's other files

    @property
    def gets(self) -> float | None:
        return None if self.store is None else self.store.gets

    @property
    def get_bytes(self) -> float | None:
        return None if self.store is None else self.store.get_bytes

    @property
    def busy_with_first_batch(self) -> float | None:
        """Return the share of the whole epoch in which the accelerator worked."""
        return None if self.busy_s is None else self.busy_s / self.seconds

    @property
    def samples_per_s(self) -> float | None:
        return self.samples / self.seconds or None

    @property
    def bytes_per_s(self) -> float | None:
        return self.size_bytes / self.seconds or None

    @property
    def fetched_share(self) -> float | None:
        """Return bytes fetched over bytes read; a job does not report how many it read."""
        return _share(self.get_bytes, self.size_bytes)

    @property
    def hit_share(self) -> float | None:
        """Return the share that the local cache served; None for a system that does not say."""
        hits = None if self.hit_bytes is None else sum(self.hit_bytes.values())
        return _share(hits, self.size_bytes)


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


class Arm(Value):
    name: str = "unnamed"
    title: str = ""
    system: str = ""
    version: str = ""
    state: str = "cold"
    cache_share: float = 1.0
    hinted: bool = False
    command: str = ""
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.title}, hinted" if self.hinted else self.title

    @property
    def released(self) -> str:
        """The label with the system's release, without a state that each row of a table names:
        `Penstock 0.1.0`, `Penstock 0.1.0, planned, hinted`."""
        system, *rest = self.label.split(", ")
        release = self.version.split()[:1]
        kept = [word for word in rest if word != "cold" and self.system != "native"]
        return ", ".join([" ".join([system, *release]), *kept])

    @property
    def spoken(self) -> str:
        """The label within a sentence, without commas: `Penstock, warm` becomes `Penstock warm`,
        `rclone mount, no cache` becomes `rclone mount (no cache)`."""
        name, *rest = self.title.split(", ")
        if rest and rest[0] in _STATES:
            state = rest.pop(0)
            name = name if self.system == "native" else f"{name} {state}"
        rest += ["hinted"] if self.hinted else []
        return f"{name} ({', '.join(rest)})" if rest else name

    @property
    def rank(self) -> tuple[int, int, float, str]:
        """Its place in every chart and table."""
        system = SYSTEMS.index(self.system) if self.system in SYSTEMS else len(SYSTEMS)
        state = _STATES.index(self.state) if self.state in _STATES else len(_STATES)
        return system, state, -self.cache_share, self.name


class Workload(Value):
    name: str = "unnamed"
    kind: str = "read"
    model: str | None = None
    accelerator: str | None = None
    accelerators: int | None = None
    emulated: bool = False
    batch: Amount | None = None
    step_s: Amount | None = None
    scale: float = 1.0
    readers: int | None = None
    sample_bytes: Amount | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_its_real_scale(cls, value: Any) -> Any:
        """How hungry one emulated accelerator is, of a whole one. Batches are whole samples, so
        that what was asked for (`scale`) is met only about; what was published says it exactly."""
        if not isinstance(value, dict):
            return value
        found = cast("dict[str, Any]", value)
        whole: dict[str, Any] = found.get("published") or {}
        try:
            scale: float = found["batch"] / found["step_s"] / (whole["batch"] / whole["step_s"])
        except (KeyError, TypeError, ZeroDivisionError):
            return found
        return {**found, "scale": scale}

    @property
    def reads(self) -> bool:
        """Return whether files are read for their own sake; else something trains on them."""
        return self.kind not in ("emulated", "loader", "job")

    @property
    def accelerator_name(self) -> str | None:
        """`emulated H100`, or `H100` of a real one."""
        if not self.accelerator:
            return None
        name = self.accelerator.upper()
        return f"emulated {name}" if self.emulated else name

    @property
    def scaled(self) -> bool:
        return abs(self.scale - 1) > 1e-6

    @property
    def details(self) -> str:
        parts = [_MODELS.get(self.model, self.model)] if self.model else []
        if self.accelerator_name:
            count = f"{self.accelerators} " if self.accelerators else ""
            parts.append(f"{count}{self.accelerator_name}")
        if self.scaled:
            parts.append(f"at scale {self.scale:.3g}")
        if self.kind == "loader":
            parts.append(f"{self.readers} loader workers")
        return ", ".join(parts) or {"read": "files are read whole"}.get(self.kind, self.kind)


class Proof(Value):
    name: str = ""
    ok: bool = False
    detail: str = ""


class Failure(Value):
    what: str = ""
    hint: str | None = None


def _with_places(value: Any) -> Any:
    """Number the epochs: the lists of the other files have the same order."""
    if not isinstance(value, list):
        return value
    items = cast("list[Any]", value)
    if not all(isinstance(one, dict) for one in items):
        return items
    return [{**one, "place": place} for place, one in enumerate(items)]


class Result(Value):
    """One experiment that wrote a result. `folder` is relative to the run's."""

    id: str
    folder: str
    arm: Arm = Arm()
    workload: Workload = Workload()
    shape: Shape = Shape()
    dataset: str = ""
    repeat: int = 0
    order: int = 0
    seed: int | None = None
    started: str = ""
    seconds: Amount | None = None
    valid: bool = False
    proofs: tuple[Proof, ...] = ()
    failure: Failure | None = None
    epochs: Annotated[tuple[Epoch, ...], BeforeValidator(_with_places)] = ()
    figures: dict[str, float] = Field(default_factory=dict)  # of management

    @property
    def counted(self) -> bool:
        return not self.why_not

    @property
    def why_not(self) -> str:
        """Why no figure uses this result; empty if it counts. A failed proof overrides `valid`."""
        if self.failure is not None:
            return f"failed: {self.failure.what}"
        failed = [proof for proof in self.proofs if not proof.ok]
        if failed:
            return "invalid: " + "; ".join(f"{p.name}: {p.detail}".rstrip(": ") for p in failed)
        if not self.valid:
            return "invalid: marked so, without a failed proof"
        if not (self.epochs or self.figures):
            return "no epoch was measured"
        return ""

    @property
    def raw(self) -> str:
        return f"{self.folder}/output/result.json"


class Step(Value):
    """A step of the workflow."""

    name: str = "unnamed"
    state: str = "waiting"
    attempts: int | None = None
    started: Text = ""
    ended: Text = ""
    error: Text = ""
    needs: tuple[str, ...] = ()
    last: bool = False  # of the exit handler, which comes after the report

    @property
    def seconds(self) -> float | None:
        try:
            passed = datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        except (ValueError, TypeError):  # TypeError: one with a zone, the other without
            return None
        return passed.total_seconds()


def experiment_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that are experiments: no other step but the report needs them."""
    needed = {name for step in steps if step.name != REPORT for name in step.needs}
    return [s for s in steps if not s.last and s.name != REPORT and s.name not in needed]


@dataclass(frozen=True, slots=True)
class Run:
    """A results tree as found on disk. `notes` lists what could not be read."""

    folder: Path
    name: str
    results: tuple[Result, ...] = ()
    unfinished: tuple[str, ...] = ()  # ids of experiments without a result
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    datasets: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )  # by name
    goals: tuple[Mapping[str, Any], ...] = ()  # of the plan
    state: str = ""
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        found: Any = self.environment.get("versions")
        if not isinstance(found, dict):
            return {}
        versions = cast("dict[str, Any]", found)
        return {name: text(value) for name, value in versions.items()}

    @property
    def counted(self) -> list[Result]:
        return [result for result in self.results if result.counted]

    @property
    def left_out(self) -> list[Result]:
        return [result for result in self.results if not result.counted]

    def left_out_alike(self) -> list[list[Result]]:
        """Results left out, grouped by arm and reason: repeats often fail for the same reason."""
        groups: dict[tuple[str, str], list[Result]] = {}
        for one in self.left_out:
            groups.setdefault((one.arm.label, one.why_not), []).append(one)
        return list(groups.values())

    @property
    def ended(self) -> bool:
        """False while the run measures, or if it was stopped. The report step itself runs inside
        the workflow, so a running report counts as ended."""
        measuring = [step for step in self.steps if not step.last and step.name != REPORT]
        still = any(step.state in OPEN for step in measuring)
        return not self.unfinished and not still and self.state != "interrupted"

    @property
    def skipped(self) -> list[Step]:
        """Experiments that were not run; `error` has the reason."""
        return [step for step in experiment_steps(self.steps) if step.state == "skipped"]
