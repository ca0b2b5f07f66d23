"""Examine one resource or all of them: look, judge, report.

Mounts, jobs and memory are looked at twice, since only a difference shows whether requests are
being answered and whether the page cache loses its pages. Stores are tried between the two looks.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from penstock.daemon.mount_registry import MountNote, find_note, resolve_mountpoint
from penstock.doctor.facts.declared import (
    JobFacts,
    LoopFacts,
    OperationFacts,
    label,
    look_at_dataset,
    look_at_job,
    look_at_loop,
    look_at_operation,
)
from penstock.doctor.facts.machine import look_at_machine, look_at_memory, refaulted_bytes
from penstock.doctor.facts.mounts import Mount, look_at_mount, look_at_tiers, notes_by_mountpoint
from penstock.doctor.facts.stores import PROBE_S, StoreFacts, look_at_store, with_keys_of
from penstock.doctor.findings import Finding, bad, each_within, exit_code, worst_first
from penstock.doctor.redactor import redactor_for
from penstock.doctor.rules.declared import (
    judge_dataset,
    judge_job,
    judge_loop,
    judge_operation,
    judge_reading,
)
from penstock.doctor.rules.machine import SUBJECT, judge_headroom, judge_machine, judge_thrashing
from penstock.doctor.rules.mounts import judge_mount, judge_progress, judge_tiers
from penstock.doctor.rules.shared import judge_members, members_of
from penstock.doctor.rules.stores import judge_store
from penstock.errors import NoSuchResource, PenstockError, UsageError
from penstock.jobs.job_datasets import job_datasets
from penstock.reconcile.live_status import served_mounts
from penstock.reconcile.snapshot import JOBS, OPERATIONS, Pair, Snapshot, Stored, operation_datasets
from penstock.reconcile.state import State
from penstock.settings import MountSettings, Part
from penstock.specs.kinds import ResourceKey, find_kind
from penstock.units import counted

# -- what to examine: from a name to data sets, mounts, operations and jobs -----------------------


@dataclass(slots=True)
class Case:
    """A data set, a mount, or both, with the facts about it."""

    subject: str
    note: MountNote | None = None
    pair: Pair | None = None
    mount: Mount | None = None
    settings: MountSettings | None = None  # of the mount; without one, as declared
    parts: tuple[Part, ...] = ()  # with the keys of its server

    @property
    def remount(self) -> str:
        if self.pair is None:
            return "mount it again"
        namespace = self.pair.namespace
        place = "" if namespace == "default" else f" -n {namespace}"
        return f"penstock up --restart {self.pair.name}{place}"

    @property
    def renew_keys(self) -> str:
        if self.pair is not None or self.note is None:
            return "apply its Secret again"
        return f"export its keys, then penstock upgrade {self.note.mountpoint}"

    @property
    def quota_option(self) -> str:
        return "a --tier" if self.pair is None else "a quota in spec.tieredstore.levels"


@dataclass(frozen=True, slots=True)
class Targets:
    cases: list[Case]
    operations: list[Stored] = field(default_factory=list[Stored])
    jobs: list[Stored] = field(default_factory=list[Stored])


def everything(snapshot: Snapshot, notes: Mapping[str, MountNote]) -> Targets:
    cases: list[Case] = []
    taken: set[str] = set()
    for pair in snapshot.pairs():
        if pair.dataset is not None:
            cases.append(_case(pair, notes))
            taken.add(str(pair.dataset.note.get("mountpoint")))
    cases += [Case(note.mountpoint, note) for place, note in notes.items() if place not in taken]
    return Targets(cases, snapshot.operations(), snapshot.jobs())


def named(name: str, namespace: str, snapshot: Snapshot, notes: Mapping[str, MountNote]) -> Targets:
    """Try `name` as a data set, then as a mount point, then as KIND/NAME.

    Raises UsageError if it is none of these.
    """
    if ResourceKey("Dataset", namespace, name) in snapshot.resources:
        return Targets([_case(snapshot.pair(namespace, name), notes)])
    mountpoint = resolve_mountpoint(name)
    if str(mountpoint) in notes or name.startswith(("/", ".")):
        note = notes.get(str(mountpoint)) or find_note(mountpoint)
        return Targets([_case_of_mount(note, snapshot, notes)])
    kind, slash, plain = name.partition("/")
    if not slash:
        hint = (
            "`penstock get datasets -A` lists what is declared; name a mount made by hand by its "
            "mount point"
        )
        if any(ResourceKey(kind, namespace, name) in snapshot.resources for kind in JOBS):
            hint = f"there is a job of that name: penstock doctor job/{name}"
        raise NoSuchResource(
            f"there is no data set {name!r} in the namespace {namespace}", hint=hint
        )
    return _of_kind(kind, plain, namespace, snapshot, notes)


def _of_kind(
    word: str, name: str, namespace: str, snapshot: Snapshot, notes: Mapping[str, MountNote]
) -> Targets:
    info = find_kind(word)
    found = snapshot.resources.get(ResourceKey(info.kind, namespace, name))
    if found is None:
        raise NoSuchResource(
            f"there is no {info.kind} {name!r} in the namespace {namespace}",
            hint=f"`penstock get {info.plural} -A` lists what is declared",
        )
    if info.kind in OPERATIONS:
        return Targets(_cases(sorted(operation_datasets(found)), snapshot, notes), [found])
    if info.kind in JOBS:
        return Targets(_cases(job_datasets(found), snapshot, notes), jobs=[found])
    pair = snapshot.pair(namespace, name)
    if pair.dataset is None:
        raise NoSuchResource(
            f"there is no data set for the {info.kind} {name!r}",
            hint=f"apply a Dataset {name} in the namespace {namespace}",
        )
    return Targets([_case(pair, notes)])


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

# The shortest time between the two looks.
_APART_S = 0.5
# Three requests are sent to a mount, each of which may take 3 s.
_MOUNT_WITHIN_S = 12.0


@dataclass(slots=True)
class Report:
    subjects: list[str]  # what was examined, in this order
    findings: list[Finding]  # without secrets
    state: State | None
    mounts: list[Mount]
    # The doctor's answer of the one mount that was named: objects that it cannot show.
    hidden: Json = field(default_factory=dict[str, Any])


def examine(name: str | None, *, namespace: str = "default", limit: int = 1000) -> Report:
    """Examine a data set, a KIND/NAME or a mount point; without a name, everything.

    `limit` is how many hidden objects of a mount to list. Raises UsageError for an unknown name.
    """
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
            self._add(bad("the declared state", str(error), "", error.hint or ""))

    def run(self, name: str | None, namespace: str) -> Report:
        notes = notes_by_mountpoint()
        if name is None:
            targets = everything(self._snapshot, notes)
        else:
            targets = named(name, namespace, self._snapshot, notes)
        cases, operations = targets.cases, targets.operations
        began_s = time.monotonic()
        machine = self._machine
        loop = self._look_at_loop()
        mounts = self._look_at_mounts(cases)
        for case in cases:
            self._fill_in(case, mounts)
        running = self._look_at_operations(operations)
        jobs = self._look_at_jobs(targets.jobs)
        stores = _look_at_stores(cases)
        time.sleep(max(0.0, _APART_S - (time.monotonic() - began_s)))
        later = self._look_at_mounts([case for case in cases if case.mount and case.mount.stats])

        wants_other = any(case.settings and case.settings.allow_other for case in cases)
        self._add(*judge_machine(machine, wants_allow_other=wants_other))
        memory, seconds = look_at_memory(), time.monotonic() - began_s
        self._add(*judge_thrashing(refaulted_bytes(machine.memory, memory), seconds))
        if running or jobs or any(case.pair is not None for case in cases):
            unsettled = [*self._unsettled(cases), *_waiting_for_loop(jobs.values())]
            self._add(*judge_loop(loop, unsettled, running))
        for case in cases:
            self._judge(case, stores, loop, later)
        for seen, then in zip(running, self._look_at_operations(operations), strict=True):
            self._add(*judge_operation(seen, loop, then))
        jobs_later = self._look_at_jobs(targets.jobs)
        for uid, job in jobs.items():
            if (then := jobs_later.get(uid)) is not None:  # else it was deleted meanwhile
                self._add(*judge_job(job, loop, then, by_name=name is not None))
                self._judge_reading(job, then, cases, later)
        names = [seen.name for seen in (*running, *jobs.values())]
        subjects = [*(case.subject for case in cases), *names]
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
        """Use the declared settings, where no mount can tell the ones in use."""
        pair = case.pair
        runtime = None if pair is None else pair.serving_runtime
        if pair is None or pair.dataset is None or runtime is None or self._state is None:
            return
        if pair.dataset.deleting is not None:
            return
        from penstock.reconcile.mount_plan import plan_of

        try:
            plan = plan_of(self._state, self._snapshot, pair.dataset, runtime)
        except PenstockError as error:
            if (pair.dataset.note.get("trouble") or {}).get("what") != str(error):
                what = f"it cannot be mounted: {error}"
                self._add(bad(case.subject, what, "", error.hint or ""))
            return
        case.settings, case.parts = plan.settings, plan.settings.parts

    def _look_at_loop(self) -> LoopFacts:
        if self._state is None:
            return LoopFacts(runs=False, log="", last_error="")
        return look_at_loop(self._state.folder)

    def _look_at_operations(self, operations: Sequence[Stored]) -> list[OperationFacts]:
        if self._state is None:
            return []
        fresh = [self._state.by_uid(one.uid) or one for one in operations]
        return [look_at_operation(self._state, self._snapshot, one) for one in fresh]

    def _look_at_jobs(self, jobs: Sequence[Stored]) -> dict[str, JobFacts]:
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
        stores: Mapping[Part, StoreFacts | None],
        loop: LoopFacts,
        later: Mapping[str, Mount | None],
    ) -> None:
        subject, mount, settings = case.subject, case.mount, case.settings
        then = later.get(mount.mountpoint) if mount is not None else None
        if case.pair is not None and self._state is not None:
            self._add(*judge_dataset(look_at_dataset(self._state, self._snapshot, case.pair), loop))
        if mount is not None:
            self._add(*judge_mount(mount, subject, remount=case.remount))
            if then is not None:
                self._add(*judge_progress(mount, then, subject))
            if (stats := mount.stats) is not None:
                used, limit = stats["memory_bytes"], stats["memory_limit_bytes"]
                self._add(*judge_headroom(subject, self._machine.memory, used, limit))
        if settings is None:
            return
        stats = (mount.stats if mount is not None else None) or {}
        tiers = look_at_tiers(settings.tiers, settings.policy, stats.get("tiers"))
        self._add(
            *judge_tiers(
                tiers,
                subject,
                data_bytes=stats.get("bytes"),
                cached_bytes=stats.get("cached_bytes"),
                quota_option=case.quota_option,
            )
        )
        self._add(*_judge_shared(subject, mount, settings, stats))
        rate = _fetching_bytes_per_s(mount, then)
        for part in case.parts:
            seen = stores[part] or StoreFacts(str(part.source), part.path, too_slow=True)
            self._add(
                *judge_store(
                    seen,
                    subject,
                    threads=settings.threads,
                    reading_bytes_per_s=rate,
                    renew=case.renew_keys,
                )
            )

    def _judge_reading(
        self,
        before: JobFacts,
        after: JobFacts,
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
            and pair.serving_runtime is not None
            and pair.dataset.note.get("settled") != self._snapshot.fingerprint(pair)
        ]

    def _add(self, *findings: Finding) -> None:
        self._findings += findings

    def _report(self, subjects: list[str], cases: Sequence[Case], name: str | None) -> Report:
        mounts = [case.mount for case in cases if case.mount is not None]
        redactor = redactor_for(
            self._state,
            [case.settings for case in cases if case.settings is not None],
            [mount.given.environment for mount in mounts if mount.given is not None],
        )
        findings = [
            replace(
                one,
                what=redactor.text(one.what),
                why=redactor.text(one.why),
                remedy=redactor.text(one.remedy),
            )
            for one in self._findings
        ]
        hidden = mounts[0].doctor_answer if name is not None and len(mounts) == 1 else None
        subjects = list(dict.fromkeys([*subjects, *(finding.subject for finding in findings)]))
        return Report(subjects, findings, self._state, mounts, hidden or {})


def _judge_shared(
    subject: str, mount: Mount | None, settings: MountSettings, stats: Mapping[str, Any]
) -> list[Finding]:
    if settings.shared is None or mount is None or mount.doctor_answer is None:
        return []
    tier: Mapping[str, Any] = stats.get("shared") or {}
    return judge_members(
        members_of(mount.doctor_answer),
        subject,
        data_bytes=stats.get("bytes"),
        sealed=settings.shared_key is not None,
        problem=tier.get("problem"),
    )


def _waiting_for_loop(jobs: Iterable[JobFacts]) -> list[str]:
    return [job.name for job in jobs if job.needs_the_loop]


def _look_at_stores(cases: Sequence[Case]) -> Mapping[Part, StoreFacts | None]:
    """Look at each store once, however many data sets use it."""
    parts = {part for case in cases for part in case.parts}
    return each_within(PROBE_S + 1, {part: partial(look_at_store, part) for part in parts})


def _fetching_bytes_per_s(before: Mount | None, after: Mount | None) -> float | None:
    if before is None or after is None or not before.stats or not after.stats:
        return None
    seconds = after.looked_s - before.looked_s
    return (after.stats["store_bytes"] - before.stats["store_bytes"]) / seconds if seconds else None


# -- the report as text and as JSON ------------------------------------------------------------

_WORDS = {"bad": "wrong", "slow": "slow", "note": "note", "ok": "ok"}


def as_text(report: Report, *, verbose: bool = False) -> Iterator[str]:
    for subject in report.subjects:
        about = [one for one in report.findings if one.subject == subject]
        if not about:
            continue
        if not any(one.severity in ("bad", "slow") for one in about):
            yield f"{subject}: nothing is wrong"
        for one in [one for one in worst_first(about) if verbose or one.severity != "ok"]:
            yield from _lines(one)


def as_json(report: Report) -> dict[str, Any]:
    return {
        **report.hidden,
        "exit_code": exit_code(report.findings),
        "findings": [asdict(one) for one in report.findings],
    }


def hidden_lines(answer: dict[str, Any], limit: int) -> Iterator[str]:
    """List the objects that a mount cannot show as files."""
    total = sum(answer.get("hidden_counts", {}).values())
    if not total:
        return
    yield f"{counted(total, 'object')} cannot be shown as files:"
    for reason, count in sorted(answer["hidden_counts"].items()):
        yield f"  {count:,}  {reason}"
    for key, reason in answer["hidden"]:
        yield f"{key!r}: {reason}"
    if more := total - len(answer["hidden"]):
        # If there are very many, the catalog itself keeps only the first by name.
        why = "--limit" if len(answer["hidden"]) >= limit else "counted, not listed"
        yield f"… and {more:,} more ({why})"


def _lines(one: Finding) -> Iterator[str]:
    yield f"{_WORDS[one.severity]:<5} {one.subject}: {one.what}"
    if one.why:
        yield f"      why: {one.why}"
    if one.remedy:
        yield f"      do:  {one.remedy}"
