"""The experiments of a plan, how much each moves, and what its process is given. Pure.

`Experiment` is one measurement of a plan. `ExperimentConfig` is the CONFIG.json that the process of
one experiment is started with.
"""

import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from penstock.bench.plans.known_arms import ArmPlan
from penstock.bench.plans.model import (
    WITHOUT_DATA,
    JobPlan,
    Plan,
    Shape,
    WorkloadPlan,
)
from penstock.units import MIB


@dataclass(frozen=True, slots=True)
class Experiment:
    """One measurement. `order` is its place in the run, `seed` its own."""

    id: str
    arm: ArmPlan
    workload: JobPlan | WorkloadPlan
    shape: Shape
    dataset: str  # its name; empty for a workload that reads none
    repeat: int
    order: int
    seed: int


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How an experiment reaches the store. It starts its own shaper (bench/shaper.py), so that each
    of several at once has its own line and its own counters.

    `keys_file` is JSON, readable by its owner alone: {"access_key": …, "secret_key": …} and
    perhaps "session_token"; None: no keys are needed, or the environment's are used.
    What an experiment itself writes to the store (JuiceFS keeps objects of its own shape) goes
    below `scratch_name`/ in `scratch_bucket`, both of which are there when it starts; the runner
    removes it. The name fits as the name of a JuiceFS volume.
    """

    local: bool
    endpoint: str | None  # None: the provider's own
    region: str
    bucket: str
    prefix: str  # of the data set in it: "" or "a/b/"
    keys_file: str | None
    scratch_bucket: str
    scratch_name: str
    metrics_port: int | None = None  # of a local server: its own counters


@dataclass(frozen=True, slots=True)
class DatasetAccess:
    """The data set as files: `root` is read by the native arm, and compared with.

    `manifest` is datasets/NAME.json as `make_dataset` described it.
    """

    manifest: str
    root: str


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """CONFIG.json. All folders exist; `medium` is where the experiment makes its Workspace."""

    run: str
    experiment: Experiment
    store: StoreAccess
    dataset: DatasetAccess | None
    output: str  # result.json, series.json, latencies.json
    logs: str  # of the systems; standard error goes to one there already
    medium: str
    schema: Literal[2] = 2

    def write(self, path: Path) -> None:
        path.write_bytes(TypeAdapter(ExperimentConfig).dump_json(self, indent=2))


def read_config(path: Path) -> ExperimentConfig:
    return TypeAdapter(ExperimentConfig).validate_json(path.read_bytes())


def config_path(run: Path, experiment_id: str) -> Path:
    return run / "experiments" / experiment_id / "config" / "experiment.json"


def expand(plan: Plan) -> tuple[Experiment, ...]:
    """Return every experiment of a plan: all of them once, then all again, in seeded orders."""
    draw = random.Random(f"{plan.name} {plan.seed}")
    found: list[Experiment] = []
    for repeat in range(plan.repeats):
        combinations = list(_combinations(plan))
        draw.shuffle(combinations)
        for arm, workload, shape, dataset in combinations:
            tail = "".join(draw.choices(string.ascii_lowercase, k=4))
            named = [arm.name, workload.name, shape.name]
            if len(plan.datasets) > 1 and dataset:
                named.append(dataset)
            found.append(
                Experiment(
                    id="-".join([*named, f"r{repeat}", tail]),
                    arm=arm,
                    workload=workload,
                    shape=shape,
                    dataset=dataset,
                    repeat=repeat,
                    order=len(found),
                    # The same for all arms: they read the same files in the same order.
                    seed=random.Random(f"{plan.seed} {workload.name} {repeat}").getrandbits(31),
                )
            )
    return tuple(found)


def _combinations(plan: Plan) -> Iterator[tuple[ArmPlan, WorkloadPlan, Shape, str]]:
    names = [dataset.name for dataset in plan.datasets]
    for arm in plan.arms:
        for workload in plan.all_workloads:
            if workload.arms and arm.name not in workload.arms:
                continue
            # Without I/O there is nothing to read, and no file for a job to open.
            if arm.system == "ceiling" and workload.kind != "emulated":
                continue
            if workload.kind in WITHOUT_DATA:
                if arm.system == "penstock":
                    yield arm, workload, plan.network[0], ""
                continue
            for shape in plan.network:
                for name in names:
                    if name in (workload.datasets or names) and name in (arm.datasets or names):
                        yield arm, workload, shape, name


CACHED_ROUNDS = 3  # of the workload `read`


def states_of(arm: ArmPlan, workload: WorkloadPlan) -> tuple[str, ...]:
    """Return the states in which the workload `read` measures an arm, in the order of the epochs.

    Without a cache every read goes to the store, and with one for a part of the data the kernel's
    pages would hide it. Native files are never cold: they lie where they are read.
    """
    possible = {"cold", "cached", "warm"}
    if arm.cache_share == 0:
        possible = {"cold"}
    elif arm.cache_share < 1:
        possible = {"cold", "cached"}
    elif arm.state == "warm":
        possible = {"cached", "warm"}
    first = "planned" if arm.state == "planned" else "cold"
    return tuple(first if one == "cold" else one for one in workload.states if one in possible)


def read_bytes(experiment: Experiment, size_bytes: int) -> int:
    """Return what it reads in all of its epochs, about; native neighbours are left out."""
    arm, workload = experiment.arm, experiment.workload
    if arm.system == "ceiling":
        return 0
    if workload.kind == "read":
        rounds = {"cached": CACHED_ROUNDS, "warm": workload.rounds}
        measured = (rounds.get(one, workload.cold_rounds) for one in states_of(arm, workload))
        return size_bytes * len(workload.reader_counts) * sum(measured)
    passes = len(workload.accelerators) if workload.kind == "emulated" else 1
    return size_bytes * workload.epochs * passes


def store_bytes(experiment: Experiment, size_bytes: int) -> int:
    """Return what of it comes from the store, about: the data set once; with a small cache, what
    does not fit into it again and again."""
    arm, workload = experiment.arm, experiment.workload
    if arm.system in ("native", "ceiling"):
        return 0
    if workload.kind == "read":
        counts = len(workload.reader_counts)
        cached = "cached" in states_of(arm, workload)
        missed = (1 - arm.cache_share) * CACHED_ROUNDS * counts if cached else 0
        return int(size_bytes * (counts * workload.cold_rounds + missed))
    epochs = read_bytes(experiment, size_bytes) // size_bytes if size_bytes else 0
    missed = (epochs - 1) * (1 - arm.cache_share) if epochs else 0
    return int(size_bytes * (1 + missed))


def medium_bytes(plan: Plan, experiments: tuple[Experiment, ...], sizes: Mapping[str, int]) -> int:
    """Return what must be free: the data sets as files and as objects of a local store, the caches
    of the experiments that run at once, and JuiceFS's objects."""

    def one(experiment: Experiment) -> int:
        arm, size_bytes = experiment.arm, sizes.get(experiment.dataset, 0)
        if arm.system in ("native", "ceiling"):
            return 0
        if experiment.workload.kind == "random":  # the file, and its copy in the cache
            return 2 * (experiment.workload.count or 0) * MIB
        caches = 2 if arm.system == "alluxio" else 1  # the worker's, and the FUSE process's
        cache = int(size_bytes * arm.cache_share * 1.25) * caches
        # A local store frees the space of an experiment's objects when the next one has ended.
        copies = 0 if arm.system != "juicefs" else 2 if plan.is_local else 1
        return cache + copies * size_bytes

    largest = sorted(map(one, experiments), reverse=True)[: plan.parallel]
    copies = 2 if plan.is_local else 1
    return copies * sum(sizes.values()) + sum(largest) + (256 << 20)
