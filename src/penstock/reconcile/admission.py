"""Check manifests as a whole and store them: all of them, or none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ManifestError, Problem, SpecProblem, UsageError
from penstock.fluid.plan import is_of_dataset
from penstock.jobs.containers import find_engine, why_no_engine
from penstock.jobs.job_datasets import dataset_of, describe_missing
from penstock.jobs.job_status import ENDED
from penstock.jobs.usage import machine_gpus
from penstock.reconcile.mount_plan import plan_of
from penstock.reconcile.snapshot import (
    JOBS,
    OPERATIONS,
    RESTARTED_AT,
    RUNTIMES,
    Snapshot,
    Stored,
    default_runtime,
)
from penstock.reconcile.state import State
from penstock.specs.documents import Document
from penstock.specs.kinds import KINDS, ResourceKey
from penstock.specs.secret_fields import HIDDEN, hidden_places, take_secrets

Json = dict[str, Any]

# A resource is stored before those that use it.
_ORDER = ("Secret", "ThinRuntimeProfile", "Dataset")
# These run once more when they are applied again after a failure or a change.
_RUN_AGAIN = OPERATIONS | JOBS
_METADATA = ("name", "namespace", "labels", "annotations")


@dataclass(frozen=True, slots=True)
class Applied:
    key: ResourceKey
    api_version: str
    outcome: str  # created, configured or unchanged


def apply(
    state: State,
    documents: Sequence[Document],
    *,
    namespace: str | None = None,
    dry_run: bool = False,
    only_new: bool = False,
) -> list[Applied]:
    """Store the documents. Raises ManifestError with every problem; then nothing was stored.

    `only_new`: a resource that exists already is a mistake too.
    """
    candidates = [_Candidate(state, document, namespace) for document in documents]
    for candidate in candidates:
        if candidate.key.kind in JOBS:
            candidate.problems += job_problems(
                state, candidate.key, candidate.manifest, candidate.document
            )
    candidates.sort(
        key=lambda candidate: (
            _ORDER.index(candidate.key.kind) if candidate.key.kind in _ORDER else 9
        )
    )
    problems = [problem for candidate in candidates for problem in candidate.problems]
    if problems:
        raise ManifestError.of(problems)
    applied: list[Applied] = []
    try:
        with state.transaction():
            for candidate in candidates:
                if only_new and state.find(candidate.key) is not None:
                    raise UsageError(f"{candidate.key} exists already", hint="give another name")
                outcome = state.put(candidate.key, candidate.manifest, candidate.secrets)
                if candidate.key.kind in _RUN_AGAIN and state.reset_if_ended(
                    candidate.key, changed=outcome == "configured"
                ):
                    outcome = "configured"
                applied.append(Applied(candidate.key, candidate.manifest["apiVersion"], outcome))
            problems = _pair_problems(state, candidates)
            if problems:
                raise ManifestError.of(problems)
            if dry_run:
                raise _DryRun
    except _DryRun:
        pass
    return applied


class _DryRun(Exception):
    """Rolls back the transaction of a dry run."""


class _Candidate:
    """One document, prepared to be stored."""

    def __init__(self, state: State, document: Document, namespace: str | None) -> None:
        self.document = document
        self.problems: list[Problem] = []
        raw: Json = document.raw
        metadata = {name: raw["metadata"][name] for name in _METADATA if name in raw["metadata"]}
        given = metadata.get("namespace")
        if namespace is not None and given not in (None, namespace):
            self._refuse(
                "metadata.namespace",
                f"the namespace is {given!r}, but -n is {namespace!r}",
                "leave one of them out",
            )
        metadata["namespace"] = given or namespace or "default"
        if not KINDS[raw["kind"]].namespaced:
            metadata["namespace"] = "default"
        self.key = ResourceKey(raw["kind"], metadata["namespace"], metadata["name"])
        whole = {name: value for name, value in raw.items() if name != "status"}
        before = state.find(self.key)
        self._keep_restart(before, metadata)
        self.manifest, self.secrets = take_secrets({**whole, "metadata": metadata})
        self._fill_hidden(state, before)

    def _keep_restart(self, before: Stored | None, metadata: Json) -> None:
        """Keep the annotation of `up --restart`: the same manifest applied again is unchanged."""
        restarted = before.annotations.get(RESTARTED_AT) if before is not None else None
        if restarted is not None:
            metadata["annotations"] = {
                RESTARTED_AT: restarted,
                **(metadata.get("annotations") or {}),
            }

    def _fill_hidden(self, state: State, before: Stored | None) -> None:
        """Keep the stored secrets where the manifest has the placeholder of `get -o yaml`."""
        hidden = [place for place in hidden_places(self.manifest) if place not in self.secrets]
        known = state.secrets(before) if hidden and before is not None else {}
        for place in hidden:
            if place in known:
                self.secrets[place] = known[place]
            else:
                path = place.strip("/").replace("/", ".")
                self._refuse(
                    path,
                    f"{path} is {HIDDEN}, and no value is stored for it",
                    "write the value itself, or a Secret",
                )

    def _refuse(self, path: str, what: str, hint: str | None) -> None:
        self.problems.append(Problem(self.document.where(path), what, hint))


def _pair_problems(state: State, candidates: Iterable[_Candidate]) -> list[Problem]:
    """Return the problems of the data sets that these candidates change: secrets, options, paths.

    The loop would find them too, but only after the client was told that all is well.
    """
    snapshot = Snapshot({one.key: one for one in state.all()}, state.labels())
    by_name: dict[tuple[str, str], list[_Candidate]] = {}
    for candidate in candidates:
        if candidate.key.kind == "Dataset" or candidate.key.kind in RUNTIMES:
            by_name.setdefault((candidate.key.namespace, candidate.key.name), []).append(candidate)
    problems: list[Problem] = []
    for name, group in by_name.items():
        pair = snapshot.pair(*name)
        if pair.dataset is None:
            continue
        try:
            plan_of(state, snapshot, pair.dataset, pair.runtime or default_runtime(pair))
        except SpecProblem as problem:
            problems.append(_at_line(problem, group))
    return problems


def _at_line(problem: SpecProblem, group: list[_Candidate]) -> Problem:
    """Locate the problem in the document that it is about, if that is one of these."""
    of_dataset = is_of_dataset(problem.path)
    for candidate in group:
        if of_dataset == (candidate.key.kind == "Dataset"):
            return Problem(candidate.document.where(problem.path), str(problem), problem.hint)
    candidate = group[0]
    kind = "data set" if of_dataset else "runtime"
    message = f"the existing {kind} {candidate.key.name}: {problem}"
    return Problem(candidate.document.where(), message, problem.hint)


def job_problems(
    state: State, key: ResourceKey, manifest: Json, document: Document
) -> list[Problem]:
    """Return the problems of a job that its model cannot find: what this machine does not have.

    A data set that does not exist is no problem: the job waits for it. `submit` asks
    `data_problems` too.
    """
    spec: Json = manifest.get("spec") or {}
    problems: list[Problem] = []
    workers, gpus = spec.get("workers") or 1, spec.get("gpus") or 0
    if gpus and workers * gpus > (there := len(machine_gpus())):
        hint = "gpus: 0 trains on the CPU" if not there else f"{there} can be shared among workers"
        what = "spec.gpus: this machine has no GPU"
        if there:
            what = f"spec.gpus: {workers * gpus} GPUs are needed, but this machine has {there}"
        problems.append(Problem(document.where("spec.gpus"), what, hint))
    if spec.get("image") and find_engine() is None:
        problems.append(
            Problem(
                document.where("spec.image"),
                f"spec.image cannot be run: {why_no_engine()}",
                "start docker or podman, or leave the image out to run the job directly on this "
                "machine",
            )
        )
    before = state.find(key)
    if before is not None and before.manifest["spec"] != spec and _has_begun(before.status):
        problems.append(
            Problem(
                document.where("spec"),
                f"job {key.name} runs, and cannot be changed",
                f"penstock delete job {key.name}, and apply it again",
            )
        )
    return problems


def data_problems(state: State, document: Document) -> list[Problem]:
    """Return the data sets of a job that are not declared.

    `apply` may get resources in any order; but a job that is submitted by hand most likely has a
    misspelled name.
    """
    resource = document.resource
    known = [one.key for one in state.all(["Dataset"]) if one.deleting is None]
    data: list[Json] = document.raw["spec"].get("data") or []
    wanted = [dataset_of(resource.key, one) for one in data]
    return [
        Problem(
            document.where(f"spec.data.{index}"),
            f"spec.data.{index}: {describe_missing(key, resource.key, known)}",
            "`penstock get dataset -A` lists them; `penstock apply -f` creates one",
        )
        for index, key in enumerate(wanted)
        if key not in known
    ]


def _has_begun(status: Json) -> bool:
    return "attempts" in status and status.get("phase") not in ENDED
