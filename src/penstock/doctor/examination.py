"""Looks at one thing, or at all of them, and judges what was seen.

Looks twice where only a difference tells: do requests move, does the page cache lose what it has?
Stores are asked between the two looks.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from penstock.daemon.registry import MountNote, absolute, find_note
from penstock.doctor.cleaning import cleaner_for
from penstock.doctor.facts.caches import look_at_tiers
from penstock.doctor.facts.declared import (
    LoopSeen,
    OperationSeen,
    label,
    look_at_dataset,
    look_at_loop,
    look_at_operation,
)
from penstock.doctor.facts.jobs import JobSeen, look_at_job
from penstock.doctor.facts.machine import look_at_machine, look_at_memory, refaulted_bytes
from penstock.doctor.facts.mounts import Mount, look_at_mount, notes_by_mountpoint
from penstock.doctor.facts.stores import PROBE_S, StoreSeen, look_at_store, with_keys_of
from penstock.doctor.findings import Finding, each_within, exit_code, worst_first
from penstock.doctor.rules.caches import judge_tiers
from penstock.doctor.rules.declared import judge_dataset, judge_loop, judge_operation
from penstock.doctor.rules.jobs import judge_job, judge_reading
from penstock.doctor.rules.machine import SUBJECT, judge_machine, judge_room, judge_thrashing
from penstock.doctor.rules.mounts import judge_mount, judge_progress
from penstock.doctor.rules.stores import judge_store
from penstock.errors import NoSuchResource, PenstockError, UsageError
from penstock.jobs.job_datasets import job_datasets
from penstock.reconcile.live_status import served_mounts
from penstock.reconcile.snapshot import JOBS, OPERATIONS, Pair, Snapshot, Stored, operation_datasets
from penstock.reconcile.state import State
from penstock.settings import MountSettings, Part
from penstock.specs.kinds import ResourceKey, find_kind

# What the doctor is asked about: from a name to data sets, mounts, operations and jobs.


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


def everything(snapshot: Snapshot, notes: Mapping[str, MountNote]) -> Wanted:
    cases: list[Case] = []
    taken: set[str] = set()
    for pair in snapshot.pairs():
        if pair.dataset is not None:
            cases.append(_case(pair, notes))
            taken.add(str(pair.dataset.note.get("mountpoint")))
    cases += [Case(note.mountpoint, note) for place, note in notes.items() if place not in taken]
    return Wanted(cases, snapshot.operations(), snapshot.jobs())


def named(name: str, namespace: str, snapshot: Snapshot, notes: Mapping[str, MountNote]) -> Wanted:
    """A data set first, then a mount point, then KIND/NAME. Raises UsageError for what is none."""
    if ResourceKey("Dataset", namespace, name) in snapshot.resources:
        return Wanted([_case(snapshot.pair(namespace, name), notes)])
    mountpoint = absolute(name)
    if str(mountpoint) in notes or name.startswith(("/", ".")):
        note = notes.get(str(mountpoint)) or find_note(mountpoint)
        return Wanted([_case_of_mount(note, snapshot, notes)])
    kind, slash, plain = name.partition("/")
    if not slash:
        hint = (
            "`penstock get datasets -A` lists what is declared; a mount made by hand is named by "
            "its mount point"
        )
        if any(ResourceKey(kind, namespace, name) in snapshot.resources for kind in JOBS):
            hint = f"there is a job of that name: penstock doctor job/{name}"
        raise NoSuchResource(
            f"there is no data set {name!r} in the namespace {namespace}", hint=hint
        )
    return _of_kind(kind, plain, namespace, snapshot, notes)


def _of_kind(
    word: str, name: str, namespace: str, snapshot: Snapshot, notes: Mapping[str, MountNote]
) -> Wanted:
    info = find_kind(word)
    found = snapshot.resources.get(ResourceKey(info.kind, namespace, name))
    if found is None:
        raise NoSuchResource(
            f"there is no {info.kind} {name!r} in the namespace {namespace}",
            hint=f"`penstock get {info.plural} -A` lists what is declared",
        )
    if info.kind in OPERATIONS:
        return Wanted(_cases(sorted(operation_datasets(found)), snapshot, notes), [found])
    if info.kind in JOBS:
        return Wanted(_cases(job_datasets(found), snapshot, notes), jobs=[found])
    pair = snapshot.pair(namespace, name)
    if pair.dataset is None:
        raise NoSuchResource(
            f"there is no data set for the {info.kind} {name!r}",
            hint=f"apply a Dataset {name} in the namespace {namespace}",
        )
    return Wanted([_case(pair, notes)])


def _cases(
    datasets: Iterable[ResourceKey], snapshot: Snapshot, notes: Mapping[str, MountNote]
) -> list[Case]:
    pairs = [snapshot.pair(namespace, name) for _, namespace, name in datasets]
    return [_case(pair, notes) for pair in pairs if pair.dataset is not None]


def _case(pair: Pair, notes: Mapping[str, MountNote]) -> Case:
    assert pair.dataset is not None
    note = notes.get(str(pair.dataset.note.get("mountpoint")))
    return Case(label(pair.dataset.key), note, pair)


def _case_of_mount(note: MountNote, snapshot: Snapshot, notes: Mapping[str, MountNote]) -> Case:
    for pair in snapshot.pairs():
        if pair.dataset is not None and pair.dataset.note.get("mountpoint") == note.mountpoint:
            return _case(pair, notes)
    return Case(note.mountpoint, note)


Json = dict[str, Any]

# Between the two looks, at least.
_APART_S = 0.5
# A mount is asked three questions, each of which may take 3 s.
_MOUNT_WITHIN_S = 12.0


@dataclass(slots=True)
class Report:
    subjects: list[str]  # what was looked at, in this order
    findings: list[Finding]  # without secrets
    state: State | None
    mounts: list[Mount]
    hidden: Json = field(default_factory=dict[str, Any])  # what the one mount cannot show


def examine(name: str | None, *, namespace: str = "default", limit: int = 1000) -> Report:
    """`name`: a data set, KIND/NAME, or a mount point; None for all there is. `limit`: how many
    hidden objects of a mount to tell. Raises UsageError for a name that is nobody's."""
    return _Examination(limit).run(name, namespace)


class _Examination:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._findings: list[Finding] = []
        self._state: State | None = None
        self._snapshot = Snapshot({}, {})
        self._machine = look_at_machine()
        try:
            self._state = State()
            self._snapshot = self._state.snapshot()
        except UsageError as error:
            self._add(Finding("bad", "the declared state", str(error), "", error.hint or ""))

    def run(self, name: str | None, namespace: str) -> Report:
        notes = notes_by_mountpoint()
        if name is None:
            wanted = everything(self._snapshot, notes)
        else:
            wanted = named(name, namespace, self._snapshot, notes)
        cases, operations = wanted.cases, wanted.operations
        began_s = time.monotonic()
        machine = self._machine
        loop = self._look_at_loop()
        mounts = self._look_at_mounts(cases)
        for case in cases:
            self._fill_in(case, mounts)
        at_work = self._look_at_operations(operations)
        jobs = self._look_at_jobs(wanted.jobs)
        stores = _look_at_stores(cases)
        time.sleep(max(0.0, _APART_S - (time.monotonic() - began_s)))
        later = self._look_at_mounts([case for case in cases if case.mount and case.mount.stats])

        wants_other = any(case.settings and case.settings.allow_other for case in cases)
        self._add(*judge_machine(machine, wants_allow_other=wants_other))
        came_back, seconds = look_at_memory(), time.monotonic() - began_s
        self._add(*judge_thrashing(refaulted_bytes(machine.memory, came_back), seconds))
        if at_work or jobs or any(case.pair is not None for case in cases):
            unsettled = [*self._unsettled(cases), *_left(jobs.values())]
            self._add(*judge_loop(loop, unsettled, at_work))
        for case in cases:
            self._judge(case, stores, loop, later)
        for seen, then in zip(at_work, self._look_at_operations(operations), strict=True):
            self._add(*judge_operation(seen, loop, then))
        jobs_later = self._look_at_jobs(wanted.jobs)
        for uid, job in jobs.items():
            if (then := jobs_later.get(uid)) is not None:  # or it was deleted meanwhile
                self._add(*judge_job(job, loop, then, by_name=name is not None))
                self._judge_reading(job, then, cases, later)
        of_work = [seen.name for seen in (*at_work, *jobs.values())]
        subjects = [*(case.subject for case in cases), *of_work]
        return self._report([SUBJECT, *subjects], cases, name)

    # -- looking -----------------------------------------------------------------------------

    def _look_at_mounts(self, cases: Sequence[Case]) -> Mapping[str, Mount | None]:
        looks = {
            case.note.mountpoint: partial(look_at_mount, case.note, limit=self._limit)
            for case in cases
            if case.note is not None
        }
        return each_within(_MOUNT_WITHIN_S, looks)

    def _fill_in(self, case: Case, mounts: Mapping[str, Mount | None]) -> None:
        if case.note is not None:
            case.mount = mounts[case.note.mountpoint]
        if case.mount is not None and (given := case.mount.given) is not None:
            case.settings = given.settings
            case.parts = tuple(with_keys_of(one, given.environment) for one in given.settings.parts)
        else:
            self._plan(case)

    def _plan(self, case: Case) -> None:
        """As it is declared, where no mount can say what it was given."""
        pair = case.pair
        if pair is None or pair.dataset is None or pair.runtime is None or self._state is None:
            return
        if pair.dataset.deleting is not None:
            return
        from penstock.reconcile.mount_plan import plan_of

        try:
            plan = plan_of(self._state, self._snapshot, pair.dataset, pair.runtime)
        except PenstockError as error:
            if (pair.dataset.note.get("trouble") or {}).get("what") != str(error):
                what = f"no mount can be made of it: {error}"
                self._add(Finding("bad", case.subject, what, "", error.hint or ""))
            return
        case.settings, case.parts = plan.settings, plan.settings.parts

    def _look_at_loop(self) -> LoopSeen:
        if self._state is None:
            return LoopSeen(runs=False, log="", last_words="")
        return look_at_loop(self._state.folder)

    def _look_at_operations(self, operations: Sequence[Stored]) -> list[OperationSeen]:
        if self._state is None:
            return []
        fresh = [self._state.by_uid(one.uid) or one for one in operations]
        return [look_at_operation(self._state, self._snapshot, one) for one in fresh]

    def _look_at_jobs(self, jobs: Sequence[Stored]) -> dict[str, JobSeen]:
        if self._state is None or not jobs:
            return {}
        is_served = served_mounts()
        return {
            one.uid: look_at_job(self._state.folder, self._snapshot, one, is_served)
            for job in jobs
            if (one := self._state.by_uid(job.uid)) is not None
        }

    # -- judging -----------------------------------------------------------------------------

    def _judge(
        self,
        case: Case,
        stores: Mapping[Part, StoreSeen | None],
        loop: LoopSeen,
        later: Mapping[str, Mount | None],
    ) -> None:
        subject, mount, settings = case.subject, case.mount, case.settings
        then = later.get(mount.mountpoint) if mount is not None else None
        if case.pair is not None and self._state is not None:
            self._add(*judge_dataset(look_at_dataset(self._state, self._snapshot, case.pair), loop))
        if mount is not None:
            self._add(*judge_mount(mount, subject, anew=case.anew))
            if then is not None:
                self._add(*judge_progress(mount, then, subject))
            if (told := mount.stats) is not None:
                held, most = told["memory_bytes"], told["memory_limit_bytes"]
                self._add(*judge_room(subject, self._machine.memory, held, most))
        if settings is None:
            return
        told = (mount.stats if mount is not None else None) or {}
        tiers = look_at_tiers(settings.tiers, settings.policy, told.get("tiers"))
        self._add(
            *judge_tiers(
                tiers,
                subject,
                data_bytes=told.get("bytes"),
                cached_bytes=told.get("cached_bytes"),
                where=case.quota_is_set_by,
            )
        )
        rate = _fetching_bytes_per_s(mount, then)
        for part in case.parts:
            seen = stores[part] or StoreSeen(str(part.source), part.path, too_slow=True)
            self._add(
                *judge_store(seen, subject, threads=settings.threads, reading_bytes_per_s=rate)
            )

    def _judge_reading(
        self,
        before: JobSeen,
        after: JobSeen,
        cases: Sequence[Case],
        later: Mapping[str, Mount | None],
    ) -> None:
        for case in cases:
            dataset = case.pair.dataset if case.pair is not None else None
            if case.mount is None or dataset is None or dataset.key not in before.datasets:
                continue
            if (then := later.get(case.mount.mountpoint)) is not None:
                self._add(*judge_reading(before, after, case.subject, case.mount, then))

    def _unsettled(self, cases: Sequence[Case]) -> list[str]:
        pairs = [case.pair for case in cases if case.pair is not None]
        return [
            label(pair.dataset.key)
            for pair in pairs
            if pair.dataset is not None
            and pair.runtime is not None
            and pair.dataset.note.get("settled") != self._snapshot.fingerprint(pair)
        ]

    def _add(self, *findings: Finding) -> None:
        self._findings += findings

    def _report(self, subjects: list[str], cases: Sequence[Case], name: str | None) -> Report:
        mounts = [case.mount for case in cases if case.mount is not None]
        cleaner = cleaner_for(
            self._state,
            [case.settings for case in cases if case.settings is not None],
            [mount.given.environment for mount in mounts if mount.given is not None],
        )
        findings = [
            replace(
                one,
                what=cleaner.text(one.what),
                why=cleaner.text(one.why),
                remedy=cleaner.text(one.remedy),
            )
            for one in self._findings
        ]
        hidden = mounts[0].told if name is not None and len(mounts) == 1 else None
        subjects = list(dict.fromkeys([*subjects, *(finding.subject for finding in findings)]))
        return Report(subjects, findings, self._state, mounts, hidden or {})


def _left(jobs: Iterable[JobSeen]) -> list[str]:
    return [job.name for job in jobs if job.needs_the_loop]


def _look_at_stores(cases: Sequence[Case]) -> Mapping[Part, StoreSeen | None]:
    """Each once, however many data sets show it."""
    parts = {part for case in cases for part in case.parts}
    return each_within(PROBE_S + 1, {part: partial(look_at_store, part) for part in parts})


def _fetching_bytes_per_s(before: Mount | None, after: Mount | None) -> float | None:
    if before is None or after is None or not before.stats or not after.stats:
        return None
    seconds = after.looked_s - before.looked_s
    return (after.stats["store_bytes"] - before.stats["store_bytes"]) / seconds if seconds else None


# A report as people read it, and as programs do. Pure.

_WORDS = {"bad": "wrong", "slow": "slow", "note": "note", "ok": "ok"}


def as_text(report: Report, *, verbose: bool = False) -> Iterator[str]:
    for subject in report.subjects:
        about = [one for one in report.findings if one.subject == subject]
        if not about:
            continue
        told = [one for one in worst_first(about) if verbose or one.severity != "ok"]
        if not any(one.severity in ("bad", "slow") for one in about):
            yield f"{subject}: nothing is wrong"
        for one in told:
            yield from _lines(one)


def as_json(report: Report) -> dict[str, Any]:
    return {
        **report.hidden,
        "exit_code": exit_code(report.findings),
        "findings": [asdict(one) for one in report.findings],
    }


def hidden_lines(told: dict[str, Any], limit: int) -> Iterator[str]:
    """What a mount cannot show as files."""
    total = sum(told.get("hidden_counts", {}).values())
    if not total:
        return
    yield f"{total:,} objects cannot be shown as files:"
    for reason, count in sorted(told["hidden_counts"].items()):
        yield f"  {count:,}  {reason}"
    for key, reason in told["hidden"]:
        yield f"{key!r}: {reason}"
    if more := total - len(told["hidden"]):
        # Of very many the catalog itself keeps only the first by name.
        why = "--limit" if len(told["hidden"]) >= limit else "counted, not listed"
        yield f"… and {more:,} more ({why})"


def _lines(one: Finding) -> Iterator[str]:
    yield f"{_WORDS[one.severity]:<5} {one.subject}: {one.what}"
    if one.why:
        yield f"      why: {one.why}"
    if one.remedy:
        yield f"      do:  {one.remedy}"
