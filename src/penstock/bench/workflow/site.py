"""The data sets of a run, as files and in a store, and the removal of both at the end.

    FOLDER/data/NAME  the files; a local server has them in the bucket `bench-NAME`, too
    FOLDER/s3         of a local server
    FOLDER/keys.json  for the experiments; only its owner can read it

Its methods are steps of the workflow, called one after the other from different threads.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.peers import juicefs_bucket
from penstock.bench.plans.experiments import DatasetAccess, Experiment, StoreAccess
from penstock.bench.plans.model import DatasetPlan, Plan
from penstock.bench.s3server import (
    REGION,
    S3Server,
    create_bucket,
    reclaim_space,
    remove_objects,
    serve_s3,
    upload,
)
from penstock.bench.workflow import registry, remote
from penstock.bench.workflow.engine import Child, Progress, StepContext, write_json
from penstock.bench.workspace import BenchError, Workspace, tail
from penstock.errors import UsageError
from penstock.store.source import parse_source


def _report(run: Path) -> None:
    from penstock.bench import reporting  # when it is wanted: charts take long to import

    reporting.write(run)


@dataclass(frozen=True)
class Parts:
    """`dataset_command` gets SETTINGS.json (see datasets.py), `experiment_command` a
    CONFIG.json (see plans/model.py)."""

    dataset_command: Sequence[str] = (sys.executable, "-Pm", "penstock.bench.datasets")
    experiment_command: Sequence[str] = (sys.executable, "-Pm", "penstock.bench.experiments")
    report: Callable[[Path], None] = _report
    serve: Callable[[Workspace], AbstractContextManager[S3Server]] = serve_s3
    reclaim: Callable[[Workspace], None] = reclaim_space  # after objects were removed


@dataclass(frozen=True)
class Places:
    """The folders in object stores that a run writes to and removes, all named like its own folder.

    The copy of the results stays, and is none of them.
    """

    plan: Plan
    folder: Path

    def given(self) -> remote.Place:
        assert self.plan.s3_dataset_path is not None
        return remote.place(self.plan.s3_dataset_path, self.plan)

    def dataset(self, dataset: DatasetPlan) -> remote.Place:
        """Return its place in the bucket: a folder of the run's own, or where it was given."""
        given = self.given()
        return given if dataset.is_in_bucket else given.below(f"{self.folder.name}/{dataset.name}")

    def scratch(self, experiment: Experiment) -> remote.Place:
        """Return where JuiceFS writes its objects: below a name of the run's own at the root of the
        bucket, since its volumes know no folders above them."""
        bucket = parse_source(self.given().url).bucket
        return remote.place(f"s3://{bucket}", self.plan).below(self.scratch_name(experiment))

    def scratch_name(self, experiment: Experiment) -> str:
        return f"{self.folder.name}-e{experiment.order}"

    def all(self, experiments: Iterable[Experiment]) -> tuple[remote.Place, ...]:
        plan = self.plan
        places: list[remote.Place] = []
        if not plan.is_local:
            places += [self.scratch(one) for one in experiments if one.arm.system == "juicefs"]
            places += [self.dataset(one) for one in plan.datasets if not one.is_in_bucket]
        if plan.s3_result_path is not None:
            places.append(remote.place(plan.s3_result_path, plan).below(self.folder.name))
        return tuple(places)


class Site:
    def __init__(
        self, plan: Plan, workspace: Workspace, results: Path, entry: registry.Entry, parts: Parts
    ) -> None:
        self._plan, self._workspace, self._results = plan, workspace, results
        self._parts = parts
        self.entry = entry
        self._server = contextlib.ExitStack()
        self._near: S3Server | None = None
        self._keys: Path | None = None
        self._root = workspace.folder / "data"
        self._places = Places(plan, workspace.folder)

    def make(self, context: StepContext, progress: Progress) -> None:
        (self._results / "datasets").mkdir(exist_ok=True)
        for plan in self._plan.datasets:
            self._make(plan, context, progress)

    def _make(self, plan: DatasetPlan, context: StepContext, progress: Progress) -> None:
        root, manifest = self._root / plan.name, self._manifest(plan.name)
        root.mkdir(parents=True)
        if plan.is_in_bucket:
            progress("copying from the store", None)
            remote.download(self._places.given(), root, context.check)
            plan = plan.model_copy(update={"path": str(root)})
        settings = self._workspace.folder / "dataset-settings.json"
        described = self._workspace.folder / "dataset.json"
        write_json(
            settings,
            {"plan": plan.model_dump(), "folder": str(root), "manifest": str(described)},
        )
        child = Child(
            self._workspace, self._workspace.folder / "m", self._results / "logs", "make-dataset"
        )
        status = child.run([*self._parts.dataset_command, str(settings)], context, progress)
        if status != 0:
            raise BenchError(f"the data set {plan.name} was not made: {tail(child.errors)}")
        if manifest.exists() and manifest.read_bytes() != described.read_bytes():
            raise UsageError(
                f"the data set {plan.name} is not the one that this run has measured before",
                hint=f"compare {manifest}; or begin a new run",
            )
        manifest.write_bytes(described.read_bytes())

    def _manifest(self, name: str) -> Path:
        return self._results / "datasets" / f"{name}.json"

    def start(self) -> None:
        """Start the local server, or read the keys of the one that is there."""
        if self._plan.is_local:
            near = self._server.enter_context(self._parts.serve(self._workspace))
            for bucket in map(_bucket, self._plan.datasets):
                create_bucket(near, bucket)
                create_bucket(near, juicefs_bucket(bucket))
            keys = {"access_key": near.access_key, "secret_key": near.secret_key}
            self._near = near
        else:
            keys = remote.plain_keys(self._places.given())
        self._keys = self._workspace.folder / "keys.json"
        write_json(self._keys, keys, mode=0o600)

    def upload(self, context: StepContext) -> None:
        for dataset in self._plan.datasets:
            root = self._root / dataset.name
            if self._near is not None:
                upload(self._near, _bucket(dataset), root, context.check)
            elif not dataset.is_in_bucket:
                remote.upload(self._places.dataset(dataset), root, context.check)

    def stop(self) -> None:
        self._server.close()

    def remove(self) -> None:
        """Remove what the run has put into stores."""
        for dataset in self._plan.datasets:
            if dataset.keep and not self._plan.is_local:
                self._forget(self._places.dataset(dataset))
        for place in self.entry.remote:
            remote.remove(place)
            self._forget(place)

    def access(self, experiment: Experiment) -> StoreAccess:
        name = self._places.scratch_name(experiment)
        keys = None if self._keys is None else str(self._keys)
        dataset = self._dataset(experiment)
        if self._near is not None:
            bucket = "" if dataset is None else _bucket(dataset)
            return StoreAccess(
                local=True,
                endpoint=self._near.endpoint,
                region=REGION,
                bucket=bucket,
                prefix="",
                keys_file=keys,
                scratch_bucket=juicefs_bucket(bucket),
                scratch_name=name,
                metrics_port=self._near.metrics_port,
            )
        place = self._places.given() if dataset is None else self._places.dataset(dataset)
        source = parse_source(str(place))
        return StoreAccess(
            local=False,
            endpoint=self._plan.endpoint,
            region=self._plan.region or REGION,
            bucket=source.bucket,
            prefix=f"{source.prefix}/" if source.prefix else "",
            keys_file=keys,
            scratch_bucket=source.bucket,
            scratch_name=name,
        )

    def dataset_access(self, experiment: Experiment) -> DatasetAccess | None:
        if not experiment.dataset:
            return None
        root = self._root / experiment.dataset
        return DatasetAccess(str(self._manifest(experiment.dataset)), str(root))

    def _dataset(self, experiment: Experiment) -> DatasetPlan | None:
        named = (one for one in self._plan.datasets if one.name == experiment.dataset)
        return next(named, None)

    @contextlib.contextmanager
    def scratch(self, experiment: Experiment) -> Iterator[None]:
        """Record where an experiment may write before it does, and remove it afterwards."""
        if self._near is None:
            place = self._places.scratch(experiment)
            self.entry = self.entry.with_remote(place)
            registry.write(self.entry)
            try:
                yield
            finally:
                remote.remove(place)
                self._forget(place)
            return
        try:
            yield
        finally:
            access = self.access(experiment)
            if remove_objects(self._near, access.scratch_bucket, access.scratch_name):
                self._parts.reclaim(self._workspace)

    def _forget(self, place: remote.Place) -> None:
        self.entry = self.entry.without_remote(place)
        registry.write(self.entry)


def _bucket(dataset: DatasetPlan) -> str:
    return f"bench-{dataset.name}"
