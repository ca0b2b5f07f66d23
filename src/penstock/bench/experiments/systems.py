"""The arms of an experiment: the systems of `penstock.bench.arms`, as an ArmPlan wants them.

What differs from there is the cache: none, all of the data, or a share of it; and options that the
plan adds, which come last and so win. There is one arm in an experiment.
"""

from pathlib import Path

from penstock.bench.alluxio import Alluxio
from penstock.bench.arms import Arm, Mount, Native, Penstock, Rclone, S3fs, Site
from penstock.bench.juicefs import JuiceFS
from penstock.bench.plans.experiments import StoreAccess
from penstock.bench.plans.model import ARMS, ArmPlan
from penstock.bench.workspace import Process
from penstock.errors import UsageError
from penstock.units import MIB

_TITLES = {
    "native": "native files",
    "ceiling": "no I/O (ceiling)",
    "rclone": "rclone mount",
    "s3fs": "s3fs",
    "juicefs": "JuiceFS",
    "alluxio": "Alluxio",
    "penstock": "Penstock",
}


def title_of(plan: ArmPlan) -> str:
    """Return its name as people write it: `Penstock, cold, cache of 25%`."""
    words = [_TITLES[plan.system]]
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


def make_arm(plan: ArmPlan, site: Site, access: StoreAccess) -> Arm:
    if plan.state in ("planned", "loaded") and plan.system != "penstock":
        raise UsageError(
            f"{plan.name}: {_TITLES[plan.system]} has no state {plan.state}",
            hint="only penstock has it",
        )
    match plan.system:
        case "native":
            return Native(site)
        case "ceiling":
            return Ceiling(site)
        case "penstock":
            return PlannedPenstock(site, plan)
        case "rclone":
            return PlannedRclone(site, plan)
        case "s3fs":
            return PlannedS3fs(site, plan)
        case "juicefs":
            return PlannedJuiceFS(site, plan, access)
        case "alluxio":
            return PlannedAlluxio(site, plan)


def quota_bytes(plan: ArmPlan, site: Site) -> int:
    return int(site.dataset.size_bytes * plan.cache_share)


class Ceiling(Arm):
    """An arm that reads nothing: samples are made in memory."""

    name = "ceiling"

    def start(self) -> None:
        return None

    def stop(self) -> None:
        return None


class _Planned(Mount):
    """A mount in a folder with a short name: a control socket's path has 108 bytes."""

    def __init__(self, site: Site, plan: ArmPlan) -> None:
        super().__init__(site)
        self.plan = plan
        self.place = site.workspace.folder / "m"
        self.cache = self.place / "cache"
        self.mountpoint = self.place / "mnt"

    def extra_options(self) -> list[str]:
        return [
            f"--{name}={value}" if value else f"--{name}"
            for name, value in self.plan.options.items()
        ]


class PlannedPenstock(_Planned, Penstock):
    def cache_options(self) -> list[str]:
        if self.plan.cache_share == 0:
            return ["--no-cache"]
        if self.plan.cache_share < 1:
            # Marks that let it be filled to the brim: the plan names what it holds.
            quota = quota_bytes(self.plan, self.site)
            return [f"--tier=MEM:{self.cache}:{quota}B:high=1,low=0.99"]
        return super().cache_options()


class PlannedRclone(_Planned, Rclone):
    def cache_options(self) -> list[str]:
        if self.plan.cache_share == 0:
            return [f"--cache-dir={self.cache}", "--vfs-cache-mode=off"]
        if self.plan.cache_share < 1:
            # It looks after its size only now and then; at every second it does so soon enough.
            quota = quota_bytes(self.plan, self.site)
            limits = [f"--vfs-cache-max-size={quota}B", "--vfs-cache-poll-interval=1s"]
            return [*super().cache_options(), *limits]
        return super().cache_options()


class PlannedS3fs(_Planned, S3fs):
    @property
    def bucket(self) -> str:
        bucket, slash, prefix = self.site.bucket.partition("/")
        return f"{bucket}:/{prefix}" if slash else bucket

    def cache_options(self) -> list[str]:
        if self.plan.cache_share == 0:
            return []
        if self.plan.cache_share < 1:
            raise UsageError(
                f"{self.plan.name}: s3fs cannot be given a cache of {self.plan.cache_share:.0%}",
                hint="it has no limit for its cache; give a share of 0 or 1",
            )
        return super().cache_options()

    def extra_options(self) -> list[str]:
        return [f"{name}={value}" if value else name for name, value in self.plan.options.items()]


class PlannedAlluxio(_Planned, Alluxio):
    def launch(self) -> Process:
        if self.plan.cache_share < 1:
            raise UsageError(
                f"{self.plan.name}: Alluxio is measured with room for all data only",
                hint="leave cacheShare out",
            )
        return super().launch()

    def extra_options(self) -> list[str]:
        return [f"{name}={value}" if value else name for name, value in self.plan.options.items()]


class PlannedJuiceFS(_Planned, JuiceFS):
    """JuiceFS whose objects go to the run's scratch folder, and are removed with it."""

    def __init__(self, site: Site, plan: ArmPlan, access: StoreAccess) -> None:
        super().__init__(site, plan)
        self.volume = access.scratch_name
        self._scratch_bucket = access.scratch_bucket
        if plan.cache_share < 1:
            self.cache_mib = quota_bytes(plan, site) // MIB

    @property
    def bucket(self) -> str:
        return self._scratch_bucket


def cache_folder(arm: Arm) -> Path | None:
    """Return the folder of a system's local cache; None for those that have none."""
    return arm.cache if isinstance(arm, Mount) else None
