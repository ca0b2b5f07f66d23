"""A plan's YAML to a Plan, or all that is wrong with it. Reads the manifests that it names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from penstock.bench.plans.model import (
    DatasetPlan,
    ExperimentFields,
    JobPlan,
    Plan,
    PlanFields,
    Shape,
)
from penstock.errors import ManifestError, Problem, UsageError
from penstock.specs import documents
from penstock.specs.secret_fields import names_a_secret, take_secrets
from penstock.specs.validation import Mistake, refusals, unknown_in
from penstock.specs.yaml_tree import Tree, read_trees

JOB_KIND = "TrainingJob"
_NOT_A_PLAN = "`penstock bench init` prints one to begin with"


def read_plan_file(path: Path, overrides: Sequence[str] = ()) -> Plan:
    """Read a plan; each of `overrides` is PATH=VALUE, as --set takes it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}", hint=_NOT_A_PLAN) from error
    return read_plan(documents.decode(data, str(path)), str(path), path.parent, overrides)


def read_plan(text: str, file: str, folder: Path, overrides: Sequence[str] = ()) -> Plan:
    """Read a plan whose paths begin at `folder`. Raise ManifestError with all of its mistakes."""
    problems: list[Problem] = []
    trees = [tree for tree in read_trees(text, file, problems) if tree.value is not None]
    if not problems and len(trees) != 1:
        what = "holds no plan" if not trees else "holds more than one document"
        problems.append(Problem(file, what, _NOT_A_PLAN))
    if problems:
        raise ManifestError.of(problems)
    for override in overrides:
        set_value(trees[0].value, override)
    return _Reader(trees[0], file, folder).read()


def set_value(plan: Any, override: str) -> None:
    """Change one value of a plan: `dataset.files=300`, `workloads.states.readers=[1, 8]`.

    An item of a list goes by its name, or by its place from 0.
    """
    path, sign, text = override.partition("=")
    problems: list[Problem] = []
    values = [tree.value for tree in read_trees(text, "--set", problems)]
    if not sign or problems or len(values) != 1:
        raise UsageError(f"--set {override}: not PATH=VALUE", hint="--set dataset.files=300")
    *above, last = path.split(".")
    place = plan
    for step in above:
        place = _below(place, step, override)
    if isinstance(place, list):
        items = cast("list[Any]", place)
        items[_place_of(items, last, override)] = values[0]
    elif isinstance(place, dict):
        cast("dict[str, Any]", place)[last] = values[0]
    else:
        raise _no_such_place(last, override)


def _below(place: Any, step: str, override: str) -> Any:
    if isinstance(place, list):
        items = cast("list[Any]", place)
        return items[_place_of(items, step, override)]
    if isinstance(place, dict):
        return cast("dict[str, Any]", place).setdefault(step, {})
    raise _no_such_place(step, override)


def _place_of(items: list[Any], step: str, override: str) -> int:
    for place, item in enumerate(items):
        named = cast("dict[str, Any]", item) if isinstance(item, dict) else {"name": item}
        if step in (named.get("name"), named.get("experiment")):
            return place
    if step.isdigit() and int(step) < len(items):
        return int(step)
    raise _no_such_place(step, override)


def _no_such_place(step: str, override: str) -> UsageError:
    return UsageError(
        f"--set {override}: the plan has no {step} there",
        hint="a path is made of field names, and names or numbers of list items",
    )


class _Reader:
    def __init__(self, tree: Tree, file: str, folder: Path) -> None:
        self._tree, self._file, self._folder = tree, file, folder
        self._problems: list[Problem] = []

    def read(self) -> Plan:
        fields = self._fields()
        filled: dict[str, Any] = {
            **dict(fields),
            "dataset": None,
            "datasets": [self._dataset(one) for one in fields.all_datasets],
            "network": fields.network or [Shape(name="plain")],
            "jobs": self._jobs(fields),
        }
        plan = Plan.model_construct(None, **filled)
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
                # A missing field may be there under a wrong name, which is reported already.
                if not (unknown and mistake[1].endswith(": is missing")):
                    self._say(mistake)
            raise ManifestError.of(self._problems) from None
        if self._problems:
            raise ManifestError.of(self._problems)
        return fields

    def _dataset(self, one: DatasetPlan) -> DatasetPlan:
        """Let the path of a given data set begin at the plan."""
        if one.path is None:
            return one
        return one.model_copy(update={"path": str((self._folder / one.path).absolute())})

    def _jobs(self, fields: PlanFields) -> list[JobPlan]:
        found: list[JobPlan] = []
        for index, one in enumerate(fields.experiments):
            path = f"experiments.{index}.trainingJobConfig"
            try:
                found.append(self._job(one))
            except ManifestError as error:
                # The manifest's own mistakes have their own lines; this one names the experiment.
                self._say((path, f"{path}: {error}", error.hint))
        return found

    def _job(self, one: ExperimentFields) -> JobPlan:
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
        job = jobs[0].raw
        spec = cast("dict[str, Any]", job["spec"])
        given = cast("list[dict[str, Any]]", spec.get("env") or [])
        env = {"PLAN_DIR": str(self._folder.absolute()), **one.env}
        kept = [entry for entry in given if entry.get("name") not in env]
        added = [{"name": name, "value": value} for name, value in env.items()]
        job = {**job, "spec": {**spec, "env": [*kept, *added]}}
        return JobPlan(
            name=one.experiment,
            kind="job",
            epochs=one.epochs,
            manifest=job,
            arms=one.arms,
            datasets=one.datasets,
        )

    def _say(self, mistake: Mistake) -> None:
        path, what, hint = mistake
        self._problems.append(Problem(f"{self._file}:{self._tree.lines.of(path)}", what, hint))
