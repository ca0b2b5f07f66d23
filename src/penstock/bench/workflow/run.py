"""Runs a whole benchmark: from a plan to results and a report; removes all else that it made.

    check, make-dataset, start-store, upload-dataset, one step for each experiment, report;
    then, also after a failure: copy-results, stop-store, remove-dataset, sweep

Called from the main thread, since interrupts arrive there.
"""

import contextlib
import fcntl
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from penstock.bench.plans.experiments import (
    Experiment,
    ExperimentConfig,
    config_path,
    expand,
)
from penstock.bench.plans.known_arms import System
from penstock.bench.plans.model import Plan
from penstock.bench.workflow import checks, history, registry, remote
from penstock.bench.workflow.engine import (
    FILE,
    Child,
    Engine,
    Progress,
    Record,
    Step,
    StepContext,
    StepRecord,
    StepSkipped,
    now,
    records_of,
    write_json,
)
from penstock.bench.workflow.site import Parts, Places, Site
from penstock.bench.workflow.view import View
from penstock.bench.workspace import PREFIX, BenchError, Workspace, tail
from penstock.errors import PenstockError, UsageError

SCHEMA = 2  # of result.json


class ExperimentFailed(BenchError):
    """An experiment ended without a result. Its exit code has the kind: see errors.py."""

    def __init__(self, what: str, *, hint: str | None, exit_code: int) -> None:
        super().__init__(what, hint=hint)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Measuring:
    run: str
    results: Path
    workspace: Workspace
    site: Site
    parts: Parts

    def measure(self, experiment: Experiment, context: StepContext, progress: Progress) -> None:
        output, logs = self._folders(experiment)
        # Short: the paths of sockets below it may have 107 bytes.
        place = self.workspace.folder / f"e{experiment.order}"
        config = ExperimentConfig(
            run=self.run,
            experiment=experiment,
            store=self.site.access(experiment),
            dataset=self.site.dataset_access(experiment),
            output=str(output),
            logs=str(logs),
            medium=str(place),
        )
        path = config_path(self.results, experiment.id)
        config.write(path)
        child = Child(self.workspace, place, logs, "experiment")
        with contextlib.ExitStack() as exits:
            if experiment.arm.system == "juicefs":
                exits.enter_context(self.site.scratch(experiment))
            status = child.run([*self.parts.experiment_command, str(path)], context, progress)
        self._judge(output, status, child.errors)

    def _folders(self, experiment: Experiment) -> tuple[Path, Path]:
        folder = self.results / "experiments" / experiment.id
        if folder.exists():  # an attempt that failed, or that was killed
            shutil.rmtree(folder)
        for name in ("config", "output", "logs"):
            (folder / name).mkdir(parents=True)
        return folder / "output", folder / "logs"

    def _judge(self, output: Path, status: int, errors: Path) -> None:
        result = read_result(output)
        failure = None if result is None else cast("dict[str, Any] | None", result.get("failure"))
        if status == 0 and result is not None and failure is None:
            return
        if failure is not None:
            what, hint = str(failure.get("what")), failure.get("hint")
        else:
            ended = f"signal {-status}" if status < 0 else f"status {status}"
            detail = tail(errors)
            what = f"ended with {ended} and without a result{': ' + detail if detail else ''}"
            hint = f"its log: {errors}"
        raise ExperimentFailed(what, hint=hint, exit_code=status if status in (2, 3) else 2)


def read_result(output: Path) -> dict[str, Any] | None:
    """Return result.json; None if there is none, or it is not complete."""
    try:
        result = cast("dict[str, Any]", json.loads((output / "result.json").read_text()))
    except (FileNotFoundError, ValueError):
        return None
    return result if result.get("schema") == SCHEMA else None


def has_result(results: Path, experiment_id: str) -> bool:
    """Return whether it was measured: a resumed run does not measure it again."""
    result = read_result(results / "experiments" / experiment_id / "output")
    return result is not None and result.get("failure") is None


INTERRUPTED = 130


@dataclass(frozen=True)
class Settings:
    out: Path  # the folder of results is made in it
    command: str  # as the person wrote it
    medium: Path | None = None  # for data and caches; None: memory, or the disk
    skip_missing: bool = False
    parts: Parts = field(default_factory=Parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    results: Path
    done: int
    invalid: tuple[tuple[str, str], ...]  # experiments, with the proof that failed
    failed: tuple[StepRecord, ...]  # experiments
    skipped: int
    trouble: tuple[StepRecord, ...]  # other steps that failed
    exit_code: int


def run_plan(plan: Plan, text: str, settings: Settings, view: View) -> Outcome:
    name = f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return _Run(plan, text, settings.out.absolute() / name, settings, view).run()


def resume_run(results: Path, settings: Settings, view: View) -> Outcome:
    """Continue a run that was ended: measure what has no result."""
    try:
        plan = Plan.model_validate_json((results / "plan.json").read_bytes())
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise UsageError(
            f"{results}: is no folder of a run: plan.json: {why}",
            hint="give the folder that `penstock bench run` has made",
        ) from error
    with (results / "plan.json").open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = f"{results}: another process continues it"
            raise UsageError(what, hint="wait, or end it") from error
        return _Run(plan, None, results, settings, view).run()


class _Run:
    def __init__(
        self, plan: Plan, text: str | None, results: Path, settings: Settings, view: View
    ) -> None:
        self._plan, self._text, self._results = plan, text, results
        self._settings, self._view = settings, view
        self._experiments = expand(plan)
        self._todo = [one for one in self._experiments if not has_result(results, one.id)]
        self._interrupt = threading.Event()
        self._environment: dict[str, Any] = {}

    def run(self) -> Outcome:
        for cleaned in registry.clean():
            if not cleaned.alive:
                self._view.notify(f"the run {cleaned.run} was killed: {cleaned.what}")
        found = checks.check(
            self._plan,
            self._todo,
            medium=self._settings.medium,
            results=self._results,
            skip_missing=self._settings.skip_missing,
        )
        found.raise_problems()
        self._check_environment(found)
        found.raise_problems()
        for note in found.notes:
            self._view.notify(f"note: {note}")
        folder = found.medium / f"{PREFIX}{secrets.token_hex(4)}"
        wanted = [one for one in self._todo if one.arm.system not in found.missing]
        places = Places(self._plan, folder).all(wanted)
        before = self._previous_entry() if self._text is None else None
        entry = self._claim(folder, (*(before.remote if before else ()), *places))
        try:
            checks.check_writable(found, places)
            found.raise_problems()
            self._make_results()
        except PenstockError:
            if before is None:
                registry.forget(entry)
            else:
                registry.write(before)
            raise
        with Workspace(
            found.medium, name=folder.name, on_interrupt=self._interrupt.set
        ) as workspace:
            return self._work(workspace, entry, found)

    def _check_environment(self, found: checks.CheckResult) -> None:
        """Check that a resumed run has the environment it began with: its figures share a table."""
        systems: list[System] = [arm.system for arm in self._plan.arms]
        wanted = set(systems) - set(found.missing)
        self._environment = checks.environment_of(wanted, self._settings.command)
        before = checks.read_environment(self._results / "environment.json")
        if before is None:
            return
        changed = checks.environment_changes(before, self._environment)
        if changed and self._todo:
            what = f"{self._results}: cannot be resumed: {'; '.join(changed)}"
            found.problems.append((what, "begin a new run"))
        self._environment = before

    def _previous_entry(self) -> registry.Entry | None:
        """Return the old entry of a resumed run, if it left what could not be removed."""
        before = registry.find(self._results.name)
        if before is not None and before.alive:
            what = f"{self._results}: process {before.pid} is at it"
            raise UsageError(what, hint="wait, or end it")
        return before

    def _claim(self, folder: Path, places: tuple[remote.Place, ...]) -> registry.Entry:
        """Record what will be made. A new run gets a name that no other has, even one that began in
        the same second."""
        first, number = self._results, 2
        while True:
            entry = registry.own_entry(self._results.name, folder, self._results)
            entry = entry.with_remote(*places)
            if self._text is None:
                registry.write(entry)
                return entry
            if not self._results.exists() and registry.claim(entry):
                return entry
            self._results = first.with_name(f"{first.name}-{number}")
            number += 1

    def _make_results(self) -> None:
        try:
            # Another user's run has its entry elsewhere, and may have the same folder.
            self._results.mkdir(parents=True, exist_ok=self._text is None)
        except FileExistsError as error:
            what = f"{self._results}: another run has just made it"
            raise UsageError(what, hint="run it again") from error
        except OSError as error:
            raise UsageError(f"{self._results}: cannot be made: {error.strerror}") from error
        try:
            history.note_results(self._results)
        except OSError as error:
            self._view.notify(f"note: `penstock ui` will not list this run: {error}")

    def _work(
        self, workspace: Workspace, entry: registry.Entry, found: checks.CheckResult
    ) -> Outcome:
        self._write_plan()
        site = Site(self._plan, workspace, self._results, entry, self._settings.parts)
        steps = self._steps(workspace, site, found)
        last = self._last(workspace, site)
        record = Record(
            self._results.name,
            self._results / FILE,
            [self._known(step, found) for step in records_of(steps, last)],
            self._view.changed,
        )
        logs = self._results / "logs"
        engine = Engine(record, self._plan.parallel, logs, self._interrupt)
        self._view.begin(record, self._experiments)
        try:
            engine.run(steps, last)
        finally:
            self._view.end()
        return self._outcome(record)

    def _write_plan(self) -> None:
        (self._results / "logs").mkdir(exist_ok=True)
        if self._text is not None:
            (self._results / "plan.yaml").write_text(self._text)
            (self._results / "plan.json").write_text(self._plan.model_dump_json(indent=2) + "\n")
        write_json(self._results / "environment.json", self._environment)

    def _known(self, step: StepRecord, found: checks.CheckResult) -> StepRecord:
        """Return a step with what is known before the engine begins: checked, measured, missing."""
        by_id = {one.id: one for one in self._experiments}
        if step.name == "check":
            return replace(step, state="done", attempts=1, started=now(), ended=now())
        if step.name in by_id:
            experiment = by_id[step.name]
            if experiment not in self._todo:
                return replace(step, state="done", attempts=1)
            if experiment.arm.system in found.missing:
                error = f"{experiment.arm.system} is not installed"
                return replace(step, state="skipped", error=error)
        elif step.name in ("make-dataset", "start-store", "upload-dataset") and not self._todo:
            return replace(step, state="skipped", error="nothing is left to measure")
        return step

    def _steps(self, workspace: Workspace, site: Site, found: checks.CheckResult) -> list[Step]:
        view, plan = self._view, self._plan
        measuring = Measuring(
            self._results.name, self._results, workspace, site, self._settings.parts
        )

        def make(context: StepContext) -> None:
            site.make(context, lambda phase, done: view.progress("make-dataset", phase, done))

        def start_store(context: StepContext) -> None:
            site.start()
            path = self._results / "storage-config.yaml"
            checks.write_storage(path, plan, site.access(self._todo[0]), found.medium)

        steps = [
            Step("check", lambda context: None),
            Step("make-dataset", make, needs=("check",)),
            Step("start-store", start_store, needs=("make-dataset",)),
            Step("upload-dataset", site.upload, needs=("start-store",), retries=1),
        ]
        steps += [
            Step(
                one.id,
                _of(one, measuring, view),
                needs=("upload-dataset",),
                retries=plan.retries,
                timeout_s=plan.timeout_s,
            )
            for one in self._experiments
        ]
        over = tuple(one.id for one in self._experiments)
        return [*steps, Step("report", lambda context: self._report(), after=over)]

    def _last(self, workspace: Workspace, site: Site) -> list[Step]:
        return [
            Step("copy-results", lambda context: self._copy(context), retries=1),
            Step("stop-store", lambda context: site.stop()),
            Step("remove-dataset", lambda context: site.remove(), retries=1),
            Step("sweep", lambda context: self._sweep(workspace, site)),
        ]

    def _report(self) -> None:
        if not self._measured():
            raise StepSkipped("nothing was measured")
        self._settings.parts.report(self._results)

    def _copy(self, context: StepContext) -> None:
        if self._plan.s3_result_path is None:
            raise StepSkipped("the plan has no s3ResultPath")
        if not self._measured():
            raise StepSkipped("nothing was measured")
        place = remote.place(self._plan.s3_result_path, self._plan)
        remote.upload(place.below(self._results.name), self._results, context.check)

    def _sweep(self, workspace: Workspace, site: Site) -> None:
        registry.sweep(workspace.folder)
        if site.entry.remote:
            urls = ", ".join(str(place) for place in site.entry.remote)
            raise BenchError(f"{urls}: not removed", hint="`penstock bench clean` tries again")
        registry.forget(site.entry)

    def _measured(self) -> list[Experiment]:
        return [one for one in self._experiments if has_result(self._results, one.id)]

    def _outcome(self, record: Record) -> Outcome:
        states = {step.name: step for step in record.steps()}
        measured = [states[one.id] for one in self._experiments]
        failed = [step for step in states.values() if step.state == "failed"]
        interrupted = self._interrupt.is_set()
        codes = [step.exit_code for step in failed]
        record.finish("interrupted" if interrupted else "failed" if failed else "done")
        if record.unwritten is not None:
            self._view.notify(f"note: {self._results / FILE} is not whole: {record.unwritten}")
        return Outcome(
            results=self._results,
            done=sum(step.state == "done" for step in measured),
            invalid=tuple(self._invalid()),
            failed=tuple(step for step in failed if step in measured),
            skipped=sum(step.state == "skipped" for step in measured),
            trouble=tuple(step for step in failed if step not in measured),
            exit_code=INTERRUPTED if interrupted else 0 if not failed else 3 if 3 in codes else 2,
        )

    def _invalid(self) -> Iterator[tuple[str, str]]:
        for done in self._measured():
            result = read_result(self._results / "experiments" / done.id / "output") or {}
            if result.get("valid") is not True:
                proofs: list[dict[str, Any]] = result.get("proofs", [])
                detail = [
                    f"{proof['name']}: {proof['detail']}" for proof in proofs if not proof["ok"]
                ]
                yield done.id, "; ".join(detail) or "it proves nothing"


def _of(experiment: Experiment, measuring: Measuring, view: View) -> Callable[[StepContext], None]:
    def progress(phase: str, done: float | None) -> None:
        view.progress(experiment.id, phase, done)

    return lambda context: measuring.measure(experiment, context, progress)
