"""From a plan to its experiments, and how much each of them moves. Pure.

The order is random, from the plan's seed: what the machine does over time (heat, neighbours, a
page cache that fills) then falls on no arm in particular. Repeats are interleaved: all
experiments once, then all of them again.
"""

import random
import string
from collections.abc import Iterator

from penstock.bench.plans.model import ArmPlan, Experiment, Plan, Shape, WorkloadPlan


def expand(plan: Plan) -> tuple[Experiment, ...]:
    draw = random.Random(f"{plan.name} {plan.seed}")
    found: list[Experiment] = []
    for repeat in range(plan.repeats):
        combinations = list(_combinations(plan))
        draw.shuffle(combinations)
        for arm, workload, shape in combinations:
            tail = "".join(draw.choices(string.ascii_lowercase, k=4))
            found.append(
                Experiment(
                    id=f"{arm.name}-{workload.name}-{shape.name}-r{repeat}-{tail}",
                    arm=arm,
                    workload=workload,
                    shape=shape,
                    repeat=repeat,
                    order=len(found),
                    # The same for all arms: they read the same files in the same order.
                    seed=random.Random(f"{plan.seed} {workload.name} {repeat}").getrandbits(31),
                )
            )
    return tuple(found)


def _combinations(plan: Plan) -> Iterator[tuple[ArmPlan, WorkloadPlan, Shape]]:
    for arm in plan.arms:
        for workload in plan.workloads:
            # Without I/O there is nothing to read, and no file for a job to open.
            if arm.system == "ceiling" and workload.kind != "emulated":
                continue
            for shape in plan.network:
                yield arm, workload, shape


def read_bytes(experiment: Experiment, size_bytes: int) -> int:
    """What it reads in all of its epochs."""
    if experiment.arm.system == "ceiling":
        return 0
    workload = experiment.workload
    passes = len(workload.accelerators) if workload.kind == "emulated" else 1
    return size_bytes * workload.epochs * passes


def store_bytes(experiment: Experiment, size_bytes: int) -> int:
    """What of it comes from the store, about: the data set once; with a small cache, what does not
    fit in it again and again."""
    arm = experiment.arm
    if arm.system in ("native", "ceiling"):
        return 0
    epochs = read_bytes(experiment, size_bytes) // size_bytes if size_bytes else 0
    missed = (epochs - 1) * (1 - arm.cache_share) if epochs else 0
    return int(size_bytes * (1 + missed))


def medium_bytes(plan: Plan, experiments: tuple[Experiment, ...], size_bytes: int) -> int:
    """What must be free: the data set as files and as objects of a local store, the caches of the
    experiments that run at once, and JuiceFS's objects."""

    def one(experiment: Experiment) -> int:
        arm = experiment.arm
        if arm.system in ("native", "ceiling"):
            return 0
        cache = int(size_bytes * arm.cache_share * 1.25)
        # A local store frees the space of an experiment's objects when the next one has ended.
        copies = 0 if arm.system != "juicefs" else 2 if plan.store.local else 1
        return cache + copies * size_bytes

    largest = sorted(map(one, experiments), reverse=True)[: plan.parallel]
    copies = 2 if plan.store.local else 1
    return copies * size_bytes + sum(largest) + (256 << 20)
