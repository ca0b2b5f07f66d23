"""Members of a shared tier as the workers of a data set. Pure.

In Fluid a runtime has workers on several machines, and `tieredstore` says what each of them holds.
Here one machine is one worker, unless the Dataset names the members of a shared tier: then these
are the workers. A machine that has the address of one runs it, as large as `tieredstore` says, and
the mounts of all machines use all of them. The mount itself then has no tiers, like the FUSE pod of
Fluid's runtimes, so nothing is held twice.
"""

from dataclasses import dataclass, replace

from penstock.cache.members import Address, parse_members
from penstock.errors import OptionError, SpecProblem
from penstock.fluid.values import Report
from penstock.member.options import Flash, check_sizes
from penstock.settings import MountSettings
from penstock.specs.dataset import Dataset
from penstock.specs.models import Runtime
from penstock.specs.tieredstore import Level
from penstock.units import counted

SHARED = "penstock.dev/shared"
SHARED_KEY = "penstock.dev/shared-key"
_PATH = "metadata.annotations"
_LEVELS = "spec.tieredstore.levels"


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """What each member holds, and where the members are: one of them may be this machine's."""

    addresses: tuple[Address, ...]
    memory_bytes: int
    flash: Flash | None


def plan_members(dataset: Dataset, runtime: Runtime, report: Report) -> MemberPlan | None:
    """Return the members that the Dataset names, if it does. Raises SpecProblem."""
    annotations = dataset.metadata.annotations
    text = annotations.get(SHARED)
    if text is None:
        if SHARED_KEY in annotations:
            hint = f"{SHARED} names the members"
            raise SpecProblem(_PATH, f"{SHARED_KEY} without {SHARED}", hint=hint)
        return None
    try:
        source = parse_members(text, SHARED)
    except OptionError as error:
        raise SpecProblem(_PATH, str(error), hint=error.hint) from error
    if source.may_change:
        hint = "for a file or a name write `shared` into the options of a PenstockRuntime"
        raise SpecProblem(_PATH, f"{SHARED}: a list of members is needed", hint=hint)
    levels = list(enumerate(runtime.spec.tieredstore.levels))
    memory = [_quota(level, number) for number, level in levels if level.mediumtype == "MEM"]
    disks = [_flash(level, number) for number, level in levels if level.mediumtype != "MEM"]
    if not memory:
        hint = "memory is also the buffer and the index of a member's flash"
        raise SpecProblem(_LEVELS, "a member needs a level of memory (MEM)", hint=hint)
    if len(disks) > 1:
        raise SpecProblem(_LEVELS, "a member has one level on disk", hint="name the fastest disk")
    flash = disks[0] if disks else None
    try:
        check_sizes(sum(memory), flash)
    except OptionError as error:
        raise SpecProblem(_LEVELS, str(error), hint=error.hint) from error
    report.note(f"{_LEVELS}: each member of the shared tier holds as much; the mount has no tiers")
    replicas, count = runtime.spec.replicas, len(source.addresses)
    if replicas > 1 and replicas != count:
        report.note(f"spec.replicas: {replicas}, but {SHARED} names {counted(count, 'member')}")
    return MemberPlan(source.addresses, sum(memory), flash)


def with_members(settings: MountSettings, dataset: Dataset) -> MountSettings:
    """Return the settings of the mount, which uses the members that the Dataset names."""
    annotations = dataset.metadata.annotations
    if settings.shared is not None:
        what = f"{SHARED} and the option shared exclude each other"
        raise SpecProblem(_PATH, what, hint="leave one of them out")
    key = annotations.get(SHARED_KEY)
    if key is not None and not key.startswith("/"):
        raise SpecProblem(_PATH, f"{SHARED_KEY}: {key!r} is not an absolute path")
    key = key or settings.shared_key
    return replace(settings, shared=annotations[SHARED], shared_key=key)


def _quota(level: Level, number: int) -> int:
    quota = sum(level.quota_list_bytes) or level.quota_bytes
    if not quota:
        raise SpecProblem(
            f"{_LEVELS}.{number}.quota", "a member needs a quota", hint="write it like 8Gi"
        )
    return quota


def _flash(level: Level, number: int) -> Flash:
    if len(level.paths) != 1 or level.volume_type != "hostPath":
        hint = "flash is one file, in a folder of the machine"
        raise SpecProblem(f"{_LEVELS}.{number}.path", "one folder is needed", hint=hint)
    return Flash(level.paths[0], _quota(level, number))
