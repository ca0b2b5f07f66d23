"""Every system by its name: what people call it, and the class that runs it."""

from collections.abc import Iterable, Mapping

from penstock.bench.alluxio import Alluxio
from penstock.bench.arms import Arm, Ceiling, Native, Penstock, Rclone, S3fs, Site
from penstock.bench.juicefs import JuiceFS
from penstock.bench.plans.arms import ARMS, ArmPlan, System
from penstock.bench.workspace import BenchError
from penstock.errors import UsageError

_SYSTEMS: Mapping[System, tuple[str, type[Arm]]] = {
    "native": ("native files", Native),
    "ceiling": ("no I/O (ceiling)", Ceiling),
    "rclone": ("rclone mount", Rclone),
    "s3fs": ("s3fs", S3fs),
    "juicefs": ("JuiceFS", JuiceFS),
    "alluxio": ("Alluxio", Alluxio),
    "penstock": ("Penstock", Penstock),
}


def make_arm(plan: ArmPlan, site: Site) -> Arm:
    title, arm = _SYSTEMS[plan.system]
    if plan.state in ("planned", "loaded") and arm is not Penstock:
        raise UsageError(
            f"{plan.name}: {title} has no state {plan.state}", hint="only penstock has it"
        )
    return arm(site, plan)


def title_of(plan: ArmPlan) -> str:
    """Return its name as people write it: `Penstock, cold, cache of 25%`."""
    words = [_SYSTEMS[plan.system][0]]
    if plan.system == "ceiling":
        return words[0]
    if plan.cache_share == 0:
        words.append("no cache")
    else:
        words.append("loaded first" if plan.state == "loaded" else plan.state)
        if plan.planned_by == "sampler":
            words.append("PlannedSampler")
        if plan.options.get("mode") == "passthrough":
            words.append("passthrough")
        if plan.cache_share < 1:
            words.append(f"cache of {plan.cache_share:.0%}")
    if plan.name not in ARMS:
        words.append(plan.name)  # a second of the same system and state
    return ", ".join(words)


def lacking(systems: Iterable[System]) -> dict[System, str]:
    """Return why systems cannot run on this machine, in one line each."""
    found: dict[System, str] = {}
    for system in systems:
        try:
            _SYSTEMS[system][1].require()
        except BenchError as error:
            found[system] = f"{error}; {error.hint}" if error.hint else str(error)
    return found
