"""What someone wants to apply, checked as a whole: all of it is taken, or nothing."""

import time
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
    Pair,
    Snapshot,
    Stored,
)
from penstock.reconcile.state import State
from penstock.specs.documents import Document
from penstock.specs.kinds import KINDS, ResourceKey
from penstock.specs.secret_fields import HIDDEN, hidden_places, take_secrets

Json = dict[str, Any]

# What is used comes before who uses it.
_ORDER = ("Secret", "ThinRuntimeProfile", "Dataset")
# What has ended runs once more, when it is applied after a failure or a change.
_BEGUN_AGAIN = OPERATIONS | JOBS
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
    """Raises ManifestError with all that is wrong; then nothing was applied. `only_new`: what is
    there already is a mistake too."""
    wishes = [_Wish(state, document, namespace) for document in documents]
    for wish in wishes:
        if wish.key.kind in JOBS:
            wish.problems += job_problems(state, wish.key, wish.manifest, wish.document)
    wishes.sort(key=lambda wish: _ORDER.index(wish.key.kind) if wish.key.kind in _ORDER else 9)
    problems = [problem for wish in wishes for problem in wish.problems]
    if problems:
        raise ManifestError.of(problems)
    applied: list[Applied] = []
    try:
        with state.transaction():
            for wish in wishes:
                if only_new and state.find(wish.key) is not None:
                    raise UsageError(f"{wish.key} is there already", hint="give another name")
                outcome = state.put(wish.key, wish.manifest, wish.secrets)
                if wish.key.kind in _BEGUN_AGAIN and state.reset_if_ended(
                    wish.key, changed=outcome == "configured"
                ):
                    outcome = "configured"
                applied.append(Applied(wish.key, wish.manifest["apiVersion"], outcome))
            problems = _problems_together(state, wishes)
            if problems:
                raise ManifestError.of(problems)
            if dry_run:
                raise _OnlyTried
    except _OnlyTried:
        pass
    return applied


class _OnlyTried(Exception):
    """Rolls back what a dry run has written."""


class _Wish:
    """One document, ready to be stored."""

    def __init__(self, state: State, document: Document, namespace: str | None) -> None:
        self.document = document
        self.problems: list[Problem] = []
        raw: Json = document.raw
        metadata = {name: raw["metadata"][name] for name in _METADATA if name in raw["metadata"]}
        said = metadata.get("namespace")
        if namespace is not None and said not in (None, namespace):
            self._refuse(
                "metadata.namespace",
                f"the namespace is {said!r}, and -n says {namespace!r}",
                "leave one of them out",
            )
        metadata["namespace"] = said or namespace or "default"
        if not KINDS[raw["kind"]].namespaced:
            metadata["namespace"] = "default"
        self.key = ResourceKey(raw["kind"], metadata["namespace"], metadata["name"])
        whole = {name: value for name, value in raw.items() if name != "status"}
        before = state.find(self.key)
        self._keep_restart(before, metadata)
        self.manifest, self.secrets = take_secrets({**whole, "metadata": metadata})
        self._fill_hidden(state, before)

    def _keep_restart(self, before: Stored | None, metadata: Json) -> None:
        """`up --restart` has put it there; who applies the same again has changed nothing."""
        asked = before.annotations.get(RESTARTED_AT) if before is not None else None
        if asked is not None:
            metadata["annotations"] = {RESTARTED_AT: asked, **(metadata.get("annotations") or {})}

    def _fill_hidden(self, state: State, before: Stored | None) -> None:
        """What `get -o yaml` has hidden stays what it was."""
        hidden = [place for place in hidden_places(self.manifest) if place not in self.secrets]
        known = state.secrets(before) if hidden and before is not None else {}
        for place in hidden:
            if place in known:
                self.secrets[place] = known[place]
            else:
                path = place.strip("/").replace("/", ".")
                self._refuse(
                    path,
                    f"{path} is {HIDDEN}, and no value of it is known here",
                    "write the value itself, or a Secret",
                )

    def _refuse(self, path: str, what: str, hint: str | None) -> None:
        self.problems.append(Problem(self.document.where(path), what, hint))


def _problems_together(state: State, wishes: Iterable[_Wish]) -> list[Problem]:
    """What is wrong with each data set that these wishes change, and whose runtime is known: its
    secrets, options, paths. Found here, not by the loop a second later."""
    snapshot = Snapshot({one.key: one for one in state.all()}, state.labels())
    by_name: dict[tuple[str, str], list[_Wish]] = {}
    for wish in wishes:
        if wish.key.kind == "Dataset" or wish.key.kind in RUNTIMES:
            by_name.setdefault((wish.key.namespace, wish.key.name), []).append(wish)
    problems: list[Problem] = []
    for name, concerned in by_name.items():
        pair = snapshot.pair(*name)
        if pair.dataset is None:
            continue
        try:
            plan_of(state, snapshot, pair.dataset, pair.runtime or _some_runtime(pair))
        except SpecProblem as problem:
            problems.append(_told(problem, concerned))
    return problems


def _told(problem: SpecProblem, concerned: list[_Wish]) -> Problem:
    """At the line of the document that it is about, if that is one of these."""
    of_dataset = is_of_dataset(problem.path)
    for wish in concerned:
        if of_dataset == (wish.key.kind == "Dataset"):
            return Problem(wish.document.where(problem.path), str(problem), problem.hint)
    wish = concerned[0]
    whose = f"the {'data set' if of_dataset else 'runtime'} {wish.key.name}"
    return Problem(
        wish.document.where(), f"{whose}, which is there already: {problem}", problem.hint
    )


def _some_runtime(pair: Pair) -> Stored:
    """A data set without one is checked with the plainest there is."""
    manifest: Json = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "PenstockRuntime",
        "metadata": {"name": pair.name, "namespace": pair.namespace},
        "spec": {},
    }
    key = ResourceKey("PenstockRuntime", pair.namespace, pair.name)
    return Stored("", key, 0, manifest, time.time(), None, {}, {}, None)


def job_problems(
    state: State, key: ResourceKey, manifest: Json, document: Document
) -> list[Problem]:
    """A data set that does not exist is none: the job waits for it, and says so. `submit` asks
    `data_problems` as well."""
    spec: Json = manifest.get("spec") or {}
    problems: list[Problem] = []
    workers, gpus = spec.get("workers") or 1, spec.get("gpus") or 0
    if gpus and workers * gpus > (there := len(machine_gpus())):
        asked = f"{gpus}" if workers == 1 else f"{workers} workers with {gpus} each"
        has = {0: "no GPU", 1: "one"}.get(there, str(there))
        hint = "gpus: 0 trains on the CPU" if not there else f"{there} can be shared among workers"
        what = f"spec.gpus: {asked} are more than this machine has: {has}"
        problems.append(Problem(document.where("spec.gpus"), what, hint))
    if spec.get("image") and find_engine() is None:
        problems.append(
            Problem(
                document.where("spec.image"),
                f"spec.image cannot be run: {why_no_engine()}",
                "start docker or podman, or leave the image out: the job then runs on this machine "
                "as it is",
            )
        )
    before = state.find(key)
    if before is not None and before.manifest["spec"] != spec and _has_begun(before.status):
        problems.append(
            Problem(
                document.where("spec"),
                f"job {key.name} runs, and cannot be changed any more",
                f"penstock delete job {key.name}, and apply it again",
            )
        )
    return problems


def data_problems(state: State, document: Document) -> list[Problem]:
    """The data sets of a job that are not declared: what is applied may come in any order, but
    whoever submits a job by hand has most likely misspelled it."""
    resource = document.resource
    known = [one.key for one in state.all(["Dataset"]) if one.deleting is None]
    data: list[Json] = document.raw["spec"].get("data") or []
    wanted = [dataset_of(resource.key, one) for one in data]
    return [
        Problem(
            document.where(f"spec.data.{index}"),
            f"spec.data.{index}: {describe_missing(key, resource.key, known)}",
            "`penstock get dataset -A` lists them; `penstock apply -f` makes one",
        )
        for index, key in enumerate(wanted)
        if key not in known
    ]


def _has_begun(status: Json) -> bool:
    return "attempts" in status and status.get("phase") not in ENDED
