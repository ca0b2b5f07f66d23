"""What is wrong with a job that no model can see: it asks for what this machine does not have."""

from typing import Any

from penstock.errors import Problem
from penstock.jobs.containers import find_engine, why_no_engine
from penstock.jobs.data import dataset_of, describe_missing
from penstock.jobs.records import ENDED
from penstock.jobs.usage import machine_gpus
from penstock.reconcile.state import State
from penstock.specs.documents import Document
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]


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
