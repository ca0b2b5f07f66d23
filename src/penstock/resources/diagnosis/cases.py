"""What the doctor is asked about: from a name to data sets, mounts, operations and jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.daemon.registry import MountNote, absolute, find_note
from penstock.daemon.settings import MountSettings, Part
from penstock.errors import NoSuchResource
from penstock.resources.diagnosis.facts.declared import label
from penstock.resources.diagnosis.facts.mounts import Mount
from penstock.resources.jobs.data import job_datasets
from penstock.resources.pairs import JOBS, OPERATIONS, Pair, World
from penstock.resources.removal import operation_datasets
from penstock.resources.state import Stored
from penstock.specs.keys import ResourceKey
from penstock.specs.kinds import find_kind


@dataclass(slots=True)
class Case:
    """A data set, a mount, or both; filled in as it is looked at."""

    subject: str
    note: MountNote | None = None
    pair: Pair | None = None
    mount: Mount | None = None
    settings: MountSettings | None = None  # those of the mount, or else as declared
    parts: tuple[Part, ...] = ()  # with the keys that its server has

    @property
    def anew(self) -> str:
        if self.pair is None:
            return "mount it anew"
        namespace = self.pair.namespace
        place = "" if namespace == "default" else f" -n {namespace}"
        return f"penstock up --restart {self.pair.name}{place}"

    @property
    def quota_is_set_by(self) -> str:
        return "a --tier" if self.pair is None else "a quota in spec.tieredstore.levels"


@dataclass(frozen=True, slots=True)
class Wanted:
    cases: list[Case]
    operations: list[Stored] = field(default_factory=list[Stored])
    jobs: list[Stored] = field(default_factory=list[Stored])


def everything(world: World, notes: Mapping[str, MountNote]) -> Wanted:
    cases: list[Case] = []
    taken: set[str] = set()
    for pair in world.pairs():
        if pair.dataset is not None:
            cases.append(_case(pair, notes))
            taken.add(str(pair.dataset.note.get("mountpoint")))
    cases += [Case(note.mountpoint, note) for place, note in notes.items() if place not in taken]
    return Wanted(cases, world.operations(), world.jobs())


def named(name: str, namespace: str, world: World, notes: Mapping[str, MountNote]) -> Wanted:
    """A data set first, then a mount point, then KIND/NAME. Raises UsageError for what is none."""
    if ResourceKey("Dataset", namespace, name) in world.resources:
        return Wanted([_case(world.pair(namespace, name), notes)])
    mountpoint = absolute(name)
    if str(mountpoint) in notes or name.startswith(("/", ".")):
        note = notes.get(str(mountpoint)) or find_note(mountpoint)
        return Wanted([_case_of_mount(note, world, notes)])
    kind, slash, plain = name.partition("/")
    if not slash:
        hint = (
            "`penstock get datasets -A` lists what is declared; a mount made by hand is named by "
            "its mount point"
        )
        if any(ResourceKey(kind, namespace, name) in world.resources for kind in JOBS):
            hint = f"there is a job of that name: penstock doctor job/{name}"
        raise NoSuchResource(
            f"there is no data set {name!r} in the namespace {namespace}", hint=hint
        )
    return _of_kind(kind, plain, namespace, world, notes)


def _of_kind(
    word: str, name: str, namespace: str, world: World, notes: Mapping[str, MountNote]
) -> Wanted:
    info = find_kind(word)
    found = world.resources.get(ResourceKey(info.kind, namespace, name))
    if found is None:
        raise NoSuchResource(
            f"there is no {info.kind} {name!r} in the namespace {namespace}",
            hint=f"`penstock get {info.plural} -A` lists what is declared",
        )
    if info.kind in OPERATIONS:
        return Wanted(_cases(sorted(operation_datasets(found)), world, notes), [found])
    if info.kind in JOBS:
        return Wanted(_cases(job_datasets(found), world, notes), jobs=[found])
    pair = world.pair(namespace, name)
    if pair.dataset is None:
        raise NoSuchResource(
            f"there is no data set for the {info.kind} {name!r}",
            hint=f"apply a Dataset {name} in the namespace {namespace}",
        )
    return Wanted([_case(pair, notes)])


def _cases(
    datasets: Iterable[ResourceKey], world: World, notes: Mapping[str, MountNote]
) -> list[Case]:
    pairs = [world.pair(namespace, name) for _, namespace, name in datasets]
    return [_case(pair, notes) for pair in pairs if pair.dataset is not None]


def _case(pair: Pair, notes: Mapping[str, MountNote]) -> Case:
    assert pair.dataset is not None
    note = notes.get(str(pair.dataset.note.get("mountpoint")))
    return Case(label(pair.dataset.key), note, pair)


def _case_of_mount(note: MountNote, world: World, notes: Mapping[str, MountNote]) -> Case:
    for pair in world.pairs():
        if pair.dataset is not None and pair.dataset.note.get("mountpoint") == note.mountpoint:
            return _case(pair, notes)
    return Case(note.mountpoint, note)
