"""The results of a run as values: experiments, their epochs and proofs. Pure, no I/O.

`Result.counted` decides: a result that does not count is listed with its reason, and no figure and
no sentence uses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.plans.model import Shape

# In the order of tables and charts: references first, then Penstock, then its peers.
SYSTEMS = ("ceiling", "native", "penstock", "juicefs", "alluxio", "rclone", "s3fs")
REPORT = "report"  # the workflow's step in which all this is written
OPEN = ("waiting", "running")
_STATES = ("warm", "planned", "loaded first", "cold")
_WITHOUT_EPOCHS = ("states", "catalog", "resources")
_MODELS = {
    "resnet50": "ResNet-50",
    "unet3d": "UNet3D",
    "cosmoflow": "CosmoFlow",
    "retinanet": "RetinaNet",
}


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int
    seconds: float
    samples: float
    size_bytes: float
    busy_share: float | None = None  # without the wait for the first batch
    busy_s: float | None = None
    first_batch_s: float | None = None
    gets: float | None = None
    get_bytes: float | None = None
    hit_bytes: Mapping[str, float] | None = None
    cpu_s: Mapping[str, float] = field(default_factory=dict[str, float])
    memory_bytes: float | None = None

    @property
    def busy_with_first_batch(self) -> float | None:
        """Return the share of the whole epoch in which the accelerator worked."""
        return None if self.busy_s is None else self.busy_s / self.seconds

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


@dataclass(frozen=True, slots=True)
class Sample:
    """One epoch, or several in a row, of the workload `states`. `arm`: its name, or bare client."""

    arm: str
    state: str
    readers: int
    epochs: int
    seconds: float
    files: float
    size_bytes: float
    cpu_s: float  # of all processes of the system
    memory_bytes: float
    messages: float | None = None
    native_ratio: float | None = None
    bare_ratio: float | None = None
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    title: str
    system: str
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


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    kind: str
    model: str | None = None
    accelerator: str | None = None
    accelerators: int | None = None
    emulated: bool = False
    batch: float | None = None
    step_s: float | None = None
    scale: float = 1.0
    readers: int | None = None
    sample_bytes: float | None = None

    @property
    def has_epochs(self) -> bool:
        return self.kind not in _WITHOUT_EPOCHS

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


@dataclass(frozen=True, slots=True)
class Proof:
    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One experiment that wrote a result. `folder` is relative to the run's."""

    id: str
    folder: str
    arm: Arm
    workload: Workload
    shape: Shape
    dataset: str = ""
    repeat: int = 0
    order: int = 0
    seed: int | None = None
    started: str = ""
    seconds: float | None = None
    valid: bool = True
    proofs: tuple[Proof, ...] = ()
    failure: Failure | None = None
    epochs: tuple[Epoch, ...] = ()
    accelerator_runs: tuple[tuple[int, float], ...] = ()
    samples: tuple[Sample, ...] = ()  # of the workload `states`
    figures: Mapping[str, float] = field(default_factory=dict[str, float])  # of management

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
        if not (self.epochs or self.samples or self.figures):
            return "no epoch was measured"
        return ""

    @property
    def measured(self) -> tuple[Epoch, ...]:
        """The epochs that the arm is compared by: all of a warm arm, else the first one."""
        return self.epochs if self.arm.state == "warm" else self.epochs[:1]

    @property
    def later(self) -> tuple[Epoch, ...]:
        return () if self.arm.state == "warm" else self.epochs[1:]

    @property
    def raw(self) -> str:
        return f"{self.folder}/output/result.json"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the workflow."""

    name: str
    state: str
    attempts: int | None = None
    seconds: float | None = None
    error: str = ""
    needs: tuple[str, ...] = ()
    last: bool = False  # of the exit handler, which comes after the report


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
