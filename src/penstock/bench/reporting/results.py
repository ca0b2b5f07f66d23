"""The results of a run as values: experiments, their epochs and proofs. Pure, no I/O.

A crash or a hand edit may have written a result. Its declaration here says what each field is when
it is missing or no such value, so that the rest is reported.
`Result.counted` decides: a result that does not count is listed with its reason, and no figure and
no sentence uses it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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
    """A finite number that is not negative, or None: all that is measured here is such."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and found >= 0 else None


def numbers(value: Any) -> list[float]:
    return [found for one in sequence(value) if (found := number(one)) is not None]


def text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def sequence(value: Any) -> Sequence[Any]:
    return cast(Sequence[Any], value) if isinstance(value, list | tuple) else ()


def maps(value: Any) -> list[Mapping[str, Any]]:
    return [cast(Mapping[str, Any], one) for one in sequence(value) if isinstance(one, dict)]


def _numbers_by_name(value: Any) -> dict[str, float]:
    pairs = ((name, number(one)) for name, one in mapping(value).items())
    return {name: one for name, one in pairs if one is not None}


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _text_or(default: str) -> BeforeValidator:
    return BeforeValidator(lambda value: text(value) or default)


Text = Annotated[str, BeforeValidator(text)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(sequence)]
Number = Annotated[float | None, BeforeValidator(number)]
Amount = Annotated[float, BeforeValidator(lambda value: number(value) or 0.0)]
Positive = Annotated[float | None, BeforeValidator(lambda value: number(value) or None)]
Whole = Annotated[int | None, BeforeValidator(_whole)]
Count = Annotated[int, BeforeValidator(lambda value: _whole(value) or 0)]
PositiveCount = Annotated[int | None, BeforeValidator(lambda value: _whole(value) or None)]
Flag = Annotated[bool, BeforeValidator(lambda value: value is True)]
Figures = Annotated[dict[str, float], BeforeValidator(_numbers_by_name)]
MaybeFigures = Annotated[
    dict[str, float] | None,
    BeforeValidator(lambda value: _numbers_by_name(value) if isinstance(value, dict) else None),
]


class Value(BaseModel):
    """A part of a result. What is no map reads as an empty one."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _map(cls, value: Any) -> Any:
        return value if isinstance(value, cls) else mapping(value)


class Shape(Value):
    """The network between the reader and the store."""

    name: Annotated[str, _text_or("unshaped")] = "unshaped"
    latency_s: Amount = 0.0  # added to each request
    bytes_per_s: Positive = None  # None: as fast as it goes

    @property
    def plain(self) -> bool:
        return self.latency_s == 0 and self.bytes_per_s is None

    @property
    def details(self) -> str:
        latency = f"{self.latency_s * 1000:g} ms a request" if self.latency_s else "no added delay"
        rate = format_bit_rate(self.bytes_per_s) if self.bytes_per_s else "no limit of bandwidth"
        return f"{latency}, {rate}"


class Epoch(Value):
    """One measured epoch, or several in a row, of any workload."""

    arm: Text = ""  # the result's own, or the bare client
    state: Annotated[str, _text_or("cold")] = "cold"
    readers: Count = 0  # processes, or accelerators
    number: Whole = Field(None, validation_alias="epoch")  # None: epochs have no order
    passes: Annotated[int, BeforeValidator(lambda value: _whole(value) or 1)] = 1
    seconds: Amount
    samples: Amount = 0.0
    size_bytes: Amount = Field(0.0, validation_alias="bytes")
    busy_share: Number = None  # without the wait for the first batch
    busy_s: Number = None
    first_batch_s: Number = None
    gets: Number = Field(None, validation_alias=AliasPath("store", "gets"))
    get_bytes: Number = Field(None, validation_alias=AliasPath("store", "get_bytes"))
    hit_bytes: MaybeFigures = None
    cpu_s: Figures = Field(default_factory=dict)  # of all processes of the system, of readers
    memory_bytes: Number = None  # of all processes of the system
    messages: Number = None
    mode: Text = ""
    native_ratio: Number = None  # its speed over that of its native neighbour
    bare_ratio: Number = None
    place: int = 0  # in the lists of the experiment's other files

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
    name: Annotated[str, _text_or("unnamed")] = "unnamed"
    title: Text = ""
    system: Text = ""
    version: Text = ""
    state: Annotated[str, _text_or("cold")] = "cold"
    cache_share: Annotated[
        float, BeforeValidator(lambda value: 1.0 if (n := number(value)) is None else n)
    ] = 1.0
    hinted: Flag = False
    command: Text = ""
    options: Texts = ()

    @model_validator(mode="before")
    @classmethod
    def _has_a_title(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        found = mapping(value)
        return {**found, "title": found.get("title") or found.get("name") or "unnamed"}

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
    name: Annotated[str, _text_or("unnamed")] = "unnamed"
    kind: Annotated[str, _text_or("read")] = "read"
    model: Annotated[str | None, BeforeValidator(lambda value: text(value) or None)] = None
    accelerator: Annotated[str | None, BeforeValidator(lambda value: text(value) or None)] = None
    accelerators: PositiveCount = None
    emulated: Flag = False
    batch: Number = None
    step_s: Number = None
    scale: float = 1.0
    readers: PositiveCount = None
    sample_bytes: Number = None

    @model_validator(mode="before")
    @classmethod
    def _has_its_real_scale(cls, value: Any) -> Any:
        return {**mapping(value), "scale": _scale(mapping(value))}

    @property
    def reads(self) -> bool:
        """Return whether files are read for their own sake; else something trains on them."""
        return self.kind == "read"

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


def _scale(found: Mapping[str, Any]) -> float:
    """How hungry one emulated accelerator is, of a whole one. Batches are whole samples, so that
    what was asked for (`scale`) is met only about; what was published says it exactly."""
    whole = mapping(found.get("published"))
    sides = [(number(one.get("batch")), number(one.get("step_s"))) for one in (found, whole)]
    rates = [batch / step_s for batch, step_s in sides if batch and step_s]
    if len(rates) == 2:
        return rates[0] / rates[1]
    return number(found.get("scale")) or 1.0


class Proof(Value):
    name: Text = ""
    ok: Flag = False
    detail: Text = ""


class Failure(Value):
    what: Text = ""
    hint: Text = ""


def _timed_epochs(value: Any) -> Any:
    """Keep epochs that have a time: one that was cut off has no speed."""
    if isinstance(value, tuple):
        return cast("tuple[Any, ...]", value)
    found = [{**one, "place": place} for place, one in enumerate(maps(value))]
    return [one for one in found if number(one.get("seconds"))]


class Result(Value):
    """One experiment that wrote a result. `folder` is relative to the run's."""

    id: Text
    folder: str
    arm: Arm = Arm()
    workload: Workload = Workload()
    shape: Shape = Shape()
    dataset: Text = ""
    repeat: Count = 0
    order: Count = 0
    seed: Whole = None
    started: Text = ""
    seconds: Number = None
    valid: Flag = False
    proofs: Annotated[tuple[Proof, ...], BeforeValidator(maps)] = ()
    failure: Annotated[Failure | None, BeforeValidator(lambda value: mapping(value) or None)] = None
    epochs: Annotated[tuple[Epoch, ...], BeforeValidator(_timed_epochs)] = ()
    figures: Figures = Field(default_factory=dict)  # of management

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

    name: Annotated[str, _text_or("unnamed")] = "unnamed"
    state: Annotated[str, _text_or("waiting")] = "waiting"
    attempts: Whole = None
    started: Text = ""
    ended: Text = ""
    error: Text = ""
    needs: Texts = ()
    last: Flag = False  # of the exit handler, which comes after the report

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
