"""A run from its plan to its results: whatever ends it, nothing of it is left but those."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.bench import measure
from penstock.bench.datasets import SMALL_BYTES
from penstock.bench.plans.reading import read_plan_file
from penstock.bench.s3server import reclaim_space
from penstock.bench.workflow import checks, registry, remote, run
from penstock.bench.workflow.preview import preview
from penstock.bench.workflow.site import Parts
from penstock.bench.workflow.view import View
from penstock.bench.workspace import MARK, PREFIX, Workspace
from penstock.errors import PenstockError, StoreError, UsageError
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from penstock.specs.secret_fields import take_secrets
from penstock.ui.results import Results
from tests.support.bench_ground import assert_nothing_left, sockets_of
from tests.support.bench_runner import PARTS, REAL_STORE
from tests.support.mounts import penstock
from tests.support.s3 import S3

PLAN = """
name: study
dataset: {{form: small, files: 3}}
arms: [{arms}]
workloads: [read]
{more}
"""


@dataclass
class Ground:
    """Where a run takes place."""

    folder: Path

    @property
    def medium(self) -> Path:
        return self.folder / "medium"

    @property
    def results(self) -> list[Path]:
        return sorted((self.folder / "out").glob("*"))

    def plan(self, arms: Sequence[str] = ("native",), more: str = "") -> Path:
        path = self.folder / "plan.yaml"
        path.write_text(PLAN.format(arms=", ".join(arms), more=more))
        return path

    def settings(self, parts: Parts = PARTS) -> run.Settings:
        return run.Settings(self.folder / "out", "penstock bench run", self.medium, parts=parts)

    def start(self, plan: Path, kill_at: str = "", store: str = "rclone") -> subprocess.Popen[str]:
        words = [plan, self.folder / "out", self.medium, store, *([kill_at] if kill_at else [])]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.bench_runner", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_at(self, step: str, plan: Path, store: str = "rclone") -> None:
        """Run this plan in a process that kills itself there."""
        process = self.start(plan, step, store)
        process.communicate(timeout=100)
        assert process.returncode == -signal.SIGKILL

    def run(self, plan: Path, parts: Parts = PARTS) -> run.Outcome:
        return run.run_plan(read_plan_file(plan), plan.read_text(), self.settings(parts), View())

    def assert_nothing_is_left(self) -> None:
        assert_nothing_left(self.medium)
        assert registry.entries() == []


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    ground = Ground(tmp_path)
    ground.medium.mkdir()
    yield ground
    registry.clean()  # what a test that failed has left


def states(results: Path) -> dict[str, str]:
    """By step; of an experiment without the letters at its end."""
    steps = json.loads((results / "workflow.json").read_text())["steps"]
    return {step["name"].split("-read-")[0]: step["state"] for step in steps}


def test_a_run_ends_with_its_results_and_nothing_else(ground: Ground) -> None:
    more = f"s3ResultPath: file://{ground.folder}/copied"
    (ground.folder / "copied").mkdir()
    plan = ground.plan(["native", "penstock-warm", "juicefs"], more)
    reclaimed: list[Path] = []

    def reclaim(workspace: Workspace) -> None:
        reclaimed.append(workspace.folder)
        reclaim_space(workspace)

    outcome = ground.run(plan, parts=replace(REAL_STORE, reclaim=reclaim))
    assert len(reclaimed) == 1  # what JuiceFS put into the local store was removed from it
    results = outcome.results
    assert (outcome.exit_code, outcome.done) == (0, 3), outcome
    ground.assert_nothing_is_left()
    assert set(states(results).values()) == {"done"}
    names = {path.name for path in results.iterdir()}
    assert names == {
        "plan.yaml",
        "plan.json",
        "environment.json",
        "storage-config.yaml",
        "datasets",
        "workflow.json",
        "logs",
        "experiments",
        "report.md",
    }
    experiments = list((results / "experiments").iterdir())
    assert len(experiments) == 3
    for experiment in experiments:
        assert {path.name for path in experiment.iterdir()} == {"config", "output", "logs"}
    copied = ground.folder / "copied" / results.name
    assert (copied / "report.md").exists()
    assert len(list(copied.glob("experiments/*/output/result.json"))) == 3
    # The keys of the store lie elsewhere.
    config = json.loads(next(results.glob("experiments/*/config/experiment.json")).read_text())
    assert not Path(config["store"]["keys_file"]).is_relative_to(results)
    # The page of `penstock ui` finds it.
    (shown,) = Results().runs()
    assert (shown["folder"], shown["state"]) == (str(results), "done")
    assert (shown["done"], shown["experiments"]) == (3, 3)


def test_an_experiment_that_fails_hangs_or_cheats_costs_no_other(ground: Ground) -> None:
    arms = [
        f"{{name: {act}, system: native, options: {{act: {act}}}}}"
        for act in ("measure", "crash", "hang", "unreachable", "cheat")
    ]
    outcome = ground.run(ground.plan(arms, "timeout: 10s"))
    ground.assert_nothing_is_left()
    # Of all that went wrong, the store that cannot be reached.
    assert outcome.exit_code == 3, outcome
    results = outcome.results
    found = states(results)
    assert {found[name] for name in ("measure", "cheat", "report")} == {"done"}
    assert {found[name] for name in ("crash", "hang", "unreachable")} == {"failed"}
    steps = json.loads((results / "workflow.json").read_text())["steps"]
    errors = {step["name"].split("-")[0]: step["error"] for step in steps}
    assert "status 1 and without a result: no luck" in errors["crash"]
    assert "took too long and was ended: about to hang" in errors["hang"]
    assert errors["unreachable"] == "the store is gone"


STEPS = (
    "check",
    "make-dataset",
    "start-store",
    "upload-dataset",
    "measuring",
    "report",
    "copy-results",
    "stop-store",
    "remove-dataset",
    "sweep",
)


@pytest.mark.parametrize(
    ("step", "store"),
    [
        ("measuring", "rclone"),
        *(pytest.param(step, "seaweedfs", marks=pytest.mark.slow) for step in STEPS),
    ],
)
def test_a_run_killed_at_any_step_leaves_nothing_after_clean(
    ground: Ground, step: str, store: str
) -> None:
    ground.kill_at(step, ground.plan(["native", "juicefs"]), store)
    assert len(registry.entries()) == 1
    sockets = sockets_of(ground.medium)
    if step == "measuring":
        assert measure.marked_processes(f"{MARK}={ground.medium}/") != []
        assert (sockets != []) == (store == "seaweedfs")
        if os.geteuid() == 0:
            assert len(measure.mounts_below(ground.medium)) == 1
    (cleaned,) = registry.clean()
    assert "removed" in cleaned.what
    ground.assert_nothing_is_left()
    assert not any(path.exists() for path in sockets)
    # At the check, the run has no results yet.
    assert len(ground.results) == (step != "check")
    for results in ground.results:
        assert json.loads((results / "workflow.json").read_text())["state"] == "interrupted"
    assert registry.clean() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are made by root")
def test_scratch_and_cgroups_of_a_killed_runs_jobs_are_removed(ground: Ground) -> None:
    folder, scratch = ground.medium / f"{PREFIX}x", ground.folder / "penstock-job-x"
    (scratch / "worker-0").mkdir(parents=True)
    uid = f"test-{os.getpid()}"
    top = next(one for one in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")) if one.is_dir())
    groups = [top / f"penstock-job-{uid}-{kind}" for kind in ("dead", "alive")]
    for group in groups:
        (group / "worker-0").mkdir(parents=True)
    # A dead job is known by its state, one that lives by its process.
    whole = json.dumps({"engine": None, "groups": [], "scratch": str(scratch)})
    for name, attempt in (("torn", "{"), (f"{uid}-dead", whole)):
        (folder / "e0/state/jobs" / name).mkdir(parents=True)
        (folder / "e0/state/jobs" / name / "attempt.json").write_text(attempt)
    process = subprocess.Popen(["sleep", "1000"], env={MARK: f"{folder}/e0/job"})
    (groups[1] / "worker-0" / "cgroup.procs").write_text(str(process.pid))
    assert "4 cgroups" in registry.sweep(folder)
    process.wait(10)
    assert not any(path.exists() for path in (folder, scratch, *groups))


def test_what_is_left_of_a_dead_run_is_removed_and_a_run_that_lives_is_left_alone(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, results = ground.medium / f"{PREFIX}x", ground.folder / "out" / "old"
    folder.mkdir()
    entry = registry.own_entry("old", folder, results)
    registry.write(entry)
    (cleaned,) = registry.clean()
    assert cleaned.alive
    assert f"process {os.getpid()}" in cleaned.what
    assert folder.exists()
    # Another process has its id: the run is dead. And its results cannot be written.
    (results / ".workflow.json.new").mkdir(parents=True)  # cannot be opened, also by root
    (results / "workflow.json").write_text('{"state": "running", "steps": []}')
    registry.write(replace(entry, started="earlier"))
    rmtree = shutil.rmtree

    def find_another_clean_at_work(path: Path) -> None:
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        raise FileNotFoundError(path / "removed by another")

    monkeypatch.setattr(shutil, "rmtree", find_another_clean_at_work)
    (cleaned,) = registry.clean()
    assert not cleaned.alive
    assert f"{results} still shows it as running" in cleaned.what
    ground.assert_nothing_is_left()


def test_runs_of_one_plan_that_begin_at_once_are_two(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-030405")
    taken = registry.own_entry("study-20260102-030405", ground.medium / "x", ground.folder)
    assert registry.claim(taken)
    assert not registry.claim(taken)
    settings = ground.settings()
    outcome = ground.run(ground.plan())
    assert outcome.results.name == "study-20260102-030405-2"
    assert registry.entries() == [taken]
    registry.forget(taken)
    with (outcome.results / "plan.json").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process continues it"):
            run.resume_run(outcome.results, settings, View())


def test_an_interrupt_runs_the_exit_handler(ground: Ground) -> None:
    process = ground.start(ground.plan(["{name: a, system: native, options: {act: hang}}"]))
    assert process.stderr is not None
    # Whatever it is at: the handler is the same.
    assert any(line.startswith("make-dataset: running") for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == run.INTERRUPTED
    ground.assert_nothing_is_left()
    (results,) = ground.results
    found = states(results)
    assert found["a"] == "skipped"
    assert {found[name] for name in ("stop-store", "remove-dataset", "sweep")} == {"done"}


def test_a_killed_run_is_resumed_without_measuring_anything_twice(ground: Ground) -> None:
    ground.kill_at("report", ground.plan(["native", "ceiling", "rclone"]))
    (results,) = ground.results
    measured = {path: path.stat().st_mtime_ns for path in results.glob("*/*/output/result.json")}
    assert len(measured) == 2  # without I/O there is nothing to read
    lost = next(iter(measured))
    shutil.rmtree(lost.parent)
    settings = ground.settings()
    outcome = run.resume_run(results, settings, View())
    assert (outcome.exit_code, outcome.done, outcome.failed) == (0, 2, ())
    for path, mtime_ns in measured.items():
        assert (path.stat().st_mtime_ns == mtime_ns) == (path != lost)
    assert set(states(results).values()) <= {"done", "skipped"}
    ground.assert_nothing_is_left()
    # Figures of two machines are not put into one table.
    whole = lost.read_text()
    lost.unlink()
    environment = (results / "environment.json").read_text()
    (results / "environment.json").write_text(environment.replace('"cores": ', '"cores": 9'))
    with pytest.raises(UsageError, match="cannot be resumed: cores was 9"):
        run.resume_run(results, settings, View())
    ground.assert_nothing_is_left()
    lost.write_text(whole)
    # Of one that has everything, only the report is made again.
    outcome = run.resume_run(results, settings, View())
    assert outcome.exit_code == 0
    assert states(results)["make-dataset"] == "skipped"


def test_what_is_put_into_a_bucket_is_removed_from_it(
    ground: Ground, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.bucket("bench-sets")
    (bucket / "kept").write_bytes(b"not the run's")
    more = f"storageBackend: s3\ns3DatasetPath: {bucket.source}/sets\nendpoint: {s3.endpoint}\n"
    # A store elsewhere needs no program here.
    monkeypatch.setattr(checks, "_has_program", lambda name: name != "weed")
    told = preview(read_plan_file(ground.plan(["native", "juicefs"], more)), ground.settings())
    assert told.found.problems == []
    order = next(one.order for one in told.experiments if one.arm.system == "juicefs")
    juicefs = f"{bucket.source}/penstock-bench-…-e{order}"
    assert told.writes_to == (juicefs, f"{bucket.source}/sets/penstock-bench-…/data")

    def keys() -> list[str]:
        return [path.key for path in bucket.rglob()]

    def kill_a_run() -> None:
        ground.kill_at("measuring", ground.plan(["native", "juicefs"], more))
        assert sum(key.startswith("sets/penstock-bench-") for key in keys()) == 3

    kill_a_run()
    (cleaned,) = registry.clean()
    assert "objects" in cleaned.what
    assert keys() == ["kept"]
    shutil.rmtree(ground.results[0])
    kill_a_run()
    remove = remote.remove

    def first_in_vain(place: remote.Place) -> int:
        monkeypatch.setattr(remote, "remove", remove)
        raise StoreError("no answer")

    # What cleaning cannot remove, the resumed run removes in the end.
    monkeypatch.setattr(remote, "remove", first_in_vain)
    outcome = run.resume_run(ground.results[0], ground.settings(), View())
    assert (outcome.exit_code, remote.remove) == (0, remove)
    assert keys() == ["kept"]
    ground.assert_nothing_is_left()


def test_keys_come_from_a_secret_that_was_applied(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    store = remote.Place(
        "s3://b/x", secret_name="bench", access_key_name="id", secret_key_name="key"
    )
    with pytest.raises(UsageError, match="there is no Secret bench"):
        remote.plain_keys(store)
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bench"}}
    applied = take_secrets(manifest | {"stringData": {"id": "who", "key": "word"}})
    State().put(ResourceKey("Secret", "default", "bench"), *applied)
    assert remote.plain_keys(store) == {"access_key": "who", "secret_key": "word"}


def refused(ground: Ground, plan: Path) -> PenstockError:
    """What `bench run` says, and that it has not begun."""
    with pytest.raises(PenstockError) as caught:
        ground.run(plan)
    ground.assert_nothing_is_left()
    assert ground.results == []
    return caught.value


def test_too_little_room_and_places_that_cannot_be_written_are_said_before_anything_starts(
    ground: Ground, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ground.plan()
    plan.write_text(plan.read_text().replace("files: 3", "size: 1000TiB"))
    error = refused(ground, plan)
    assert isinstance(error, UsageError)
    assert "too little room" in str(error)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-it")
    s3.bucket("bench-not-ours")
    more = (
        "storageBackend: s3\ns3DatasetPath: s3://bench-not-ours/sets\n"
        f"endpoint: {s3.endpoint}\ns3ResultPath: file:///dev/null/x"
    )
    error = refused(ground, ground.plan(more=more))
    assert "s3://bench-not-ours/sets" in str(error)
    assert "file:///dev/null/x" in str(error)
    assert "cannot be written" in str(error)
    assert "must be allowed to write and to delete there" in f"{error} {error.hint}"


def test_a_missing_program_is_said_before_anything_starts_or_skipped(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checks, "_has_program", lambda name: name != "weed")
        assert "SeaweedFS (weed) is not installed" in str(refused(ground, ground.plan()))
    monkeypatch.setattr(checks, "_lacks", lambda system: "get it" if system == "s3fs" else None)
    plan = ground.plan(["native", "s3fs"])
    error = refused(ground, plan)
    assert "s3fs is not installed, and is wanted by the arms s3fs" in str(error)
    assert error.hint == "get it; or skip them with --skip-missing"
    settings = replace(ground.settings(), skip_missing=True)
    outcome = run.run_plan(read_plan_file(plan), "", settings, View())
    assert (outcome.done, outcome.skipped, outcome.exit_code) == (1, 1, 0)
    assert states(outcome.results)["s3fs"] == "skipped"


def test_the_command_says_what_it_would_do_and_does_nothing(ground: Ground) -> None:
    plan = ground.folder / "plan.yaml"
    plan.write_text(penstock("bench", "init").stdout)
    told = json.loads(penstock("bench", "run", plan, "--dry-run", "-o", "json").stdout)
    assert len(told["experiments"]) == 8
    assert told["steps"][:2] == ["check", "make-dataset"]
    assert told["dataset_bytes"] == 596 * SMALL_BYTES  # whole files, about 64 MiB
    plan.write_text(plan.read_text().replace("repeats:", "repeat:"))
    wrong = penstock("bench", "run", plan, cwd=ground.folder)
    assert wrong.returncode == 2
    assert "repeat: unknown field" in wrong.stderr
    assert "hint: did you mean repeats?" in wrong.stderr
    assert not (ground.folder / "bench-results").exists()
    assert penstock("bench", "clean").stderr == "nothing to clean\n"
