"""A plan's YAML to a Plan, or all that is wrong with it. Reads the manifests that it names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from penstock.bench.plans.fields import (
    ArmFields,
    DatasetFields,
    ExperimentFields,
    PlanFields,
    WorkloadFields,
)
from penstock.bench.plans.model import (
    ARMS,
    ArmPlan,
    DatasetPlan,
    Plan,
    Shape,
    StorePlan,
    WorkloadPlan,
)
from penstock.errors import ManifestError, Problem
from penstock.specs import documents
from penstock.specs.secret_fields import names_a_secret, take_secrets
from penstock.specs.validation import Mistake, refusals, unknown_in
from penstock.specs.yaml_tree import Tree, read_trees

JOB_KIND = "TrainingJob"
_NOT_A_PLAN = "`penstock bench init` prints one to begin with"


def read_plan_file(path: Path) -> Plan:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}", hint=_NOT_A_PLAN) from error
    return read_plan(documents.decode(data, str(path)), str(path), path.parent)


def read_plan(text: str, file: str, folder: Path) -> Plan:
    """Paths in it begin at `folder`. Raises ManifestError with all of its mistakes."""
    problems: list[Problem] = []
    trees = [tree for tree in read_trees(text, file, problems) if tree.value is not None]
    if not problems and len(trees) != 1:
        what = "holds no plan" if not trees else "holds more than one document"
        problems.append(Problem(file, what, _NOT_A_PLAN))
    if problems:
        raise ManifestError.of(problems)
    return _Reader(trees[0], file, folder).read()


class _Reader:
    def __init__(self, tree: Tree, file: str, folder: Path) -> None:
        self._tree, self._file, self._folder = tree, file, folder
        self._problems: list[Problem] = []

    def read(self) -> Plan:
        fields = self._fields()
        plan = _plan(fields, self._jobs(fields), self._folder)
        for index, arm in enumerate(plan.arms):
            for name in arm.options:
                if names_a_secret(name):
                    path = f"arms.{index}.options.{name}"
                    what = f"{path}: keys do not belong in a plan, which is kept with the results"
                    self._say((path, what, "name a Secret in s3SecretName"))
        if self._problems:
            raise ManifestError.of(self._problems)
        return plan

    def _fields(self) -> PlanFields:
        written = self._tree.value
        if not isinstance(written, Mapping):
            raise ManifestError.of([Problem(self._file, "is not a plan", _NOT_A_PLAN)])
        given = cast("Mapping[str, Any]", written)
        for mistake in unknown_in(PlanFields, given):
            self._say(mistake)
        unknown = len(self._problems)
        try:
            fields = PlanFields.model_validate(given)
        except ValidationError as error:
            for mistake in refusals(PlanFields, error):
                # What is missing is there under a wrong name, which is said already.
                if not (unknown and mistake[1].endswith(": is missing")):
                    self._say(mistake)
            raise ManifestError.of(self._problems) from None
        if self._problems:
            raise ManifestError.of(self._problems)
        return fields

    def _jobs(self, fields: PlanFields) -> list[WorkloadPlan]:
        found: list[WorkloadPlan] = []
        for index, one in enumerate(fields.experiments):
            path = f"experiments.{index}.trainingJobConfig"
            try:
                found.append(self._job(one))
            except ManifestError as error:
                # The manifest's own mistakes have lines of their own; ours says who wanted it.
                self._say((path, f"{path}: {error}", error.hint))
        return found

    def _job(self, one: ExperimentFields) -> WorkloadPlan:
        path = self._folder / one.training_job_config
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ManifestError(f"{path}: {error.strerror}") from error
        read = documents.read(documents.decode(data, str(path)), str(path))
        jobs = [document for document in read if document.resource.kind == JOB_KIND]
        if len(jobs) != 1 or len(read) != 1:
            raise ManifestError(f"{path}: wants one {JOB_KIND} and nothing else")
        if take_secrets(jobs[0].raw)[1]:
            raise ManifestError(
                f"{path}: holds a secret, and is kept with the results",
                hint="let the job read it from a file",
            )
        return WorkloadPlan(one.experiment, "job", epochs=one.epochs, job=jobs[0].raw)

    def _say(self, mistake: Mistake) -> None:
        path, what, hint = mistake
        self._problems.append(Problem(f"{self._file}:{self._tree.lines.of(path)}", what, hint))


def _plan(fields: PlanFields, jobs: list[WorkloadPlan], folder: Path) -> Plan:
    secret = fields.s3_secret_name
    return Plan(
        name=fields.name,
        seed=fields.seed,
        repeats=fields.repeats,
        parallel=fields.parallel,
        timeout_s=fields.timeout,
        retries=fields.retries,
        store=StorePlan(
            local=fields.storage_backend == "local",
            dataset_path=fields.s3_dataset_path,
            endpoint=fields.endpoint,
            region=fields.region,
            secret_name=None if secret == "environment" else secret,
            access_key_name=fields.s3_secret_accesskeyid_key_name,
            secret_key_name=fields.s3_secret_secretaccesskey_key_name,
        ),
        dataset=_dataset(fields.dataset, folder),
        arms=tuple(map(_arm, fields.arms)),
        workloads=(*map(_workload, fields.workloads), *jobs),
        network=tuple(Shape(one.name, one.latency, one.bandwidth) for one in fields.network)
        or (Shape("plain"),),
        result_path=fields.s3_result_path,
    )


def _arm(fields: ArmFields) -> ArmPlan:
    """What is written wins over what the name means; a name of one's own begins from nothing."""
    known = ARMS[fields.name][0] if fields.name in ARMS else None
    share = 1.0 if known is None else known.cache_share
    share = share if fields.cache_share is None else fields.cache_share
    state = fields.state or ("cold" if known is None else known.state)
    drops = share < 1 if known is None else known.drops_pages
    return ArmPlan(
        name=fields.name,
        system=fields.system or (known.system if known else "penstock"),
        state=state,
        cache_share=share,
        options=dict(fields.options),
        drops_pages=drops if fields.drops_pages is None else fields.drops_pages,
    )


def _workload(fields: WorkloadFields) -> WorkloadPlan:
    return WorkloadPlan(
        name=fields.name,
        kind=fields.kind,
        model=fields.model,
        accelerator=fields.accelerator,
        accelerators=tuple(sorted(set(fields.accelerators))),
        epochs=fields.epochs,
        readers=fields.readers,
        scale=fields.scale,
    )


def _dataset(fields: DatasetFields, folder: Path) -> DatasetPlan:
    return DatasetPlan(
        form=fields.form,
        files=fields.files,
        size_bytes=fields.size,
        seed=fields.seed,
        keep=fields.keep,
        path=None if fields.path is None else str((folder / fields.path).absolute()),
    )
