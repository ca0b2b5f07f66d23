"""One experiment as a process: CONFIG.json in, result.json and its companions out.

Exit status 0: the result is there, valid or marked invalid. Else result.json and stderr have the
failure: 1 a failure of the run, 2 a mistake in the plan, 3 the store, 130 interrupted.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from penstock import procfs
from penstock.bench import measure
from penstock.bench.arms import Site
from penstock.bench.datasets import as_dataset, manifest_from_json
from penstock.bench.experiments.proofs import Proof
from penstock.bench.experiments.randomreads import measure_random_reads
from penstock.bench.experiments.result_files import Result, head_of, workload_head
from penstock.bench.experiments.running import ExperimentRun
from penstock.bench.experiments.storeline import open_line
from penstock.bench.plans.experiments import ExperimentConfig, read_config
from penstock.bench.plans.model import WorkloadPlan
from penstock.bench.workspace import BenchError, Workspace
from penstock.errors import PenstockError
from penstock.release import __version__

PART = "penstock"
_FILES_PER_CLASS = 1300
_REPEATS = 5


def main(config: ExperimentConfig) -> int:
    result = Result(head_of(config))
    start_s = time.monotonic()
    status = 1
    # Replaced when the end is known; an unexpected error leaves it as it is.
    result.failure = {"what": "the experiment ended unexpectedly", "hint": "its log has more"}
    try:
        _run(config, result)
        result.failure, status = None, 0
    except KeyboardInterrupt:
        result.failure, status = {"what": "interrupted", "hint": None}, 130
    except (PenstockError, OSError) as error:
        hint = error.hint if isinstance(error, PenstockError) else None
        result.failure = {"what": str(error), "hint": hint}
        status = error.exit_code if isinstance(error, PenstockError) else 1
        print(f"error: {error}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
    finally:
        result.write(Path(config.output), time.monotonic() - start_s)
    return status


def _run(config: ExperimentConfig, result: Result) -> None:
    workload = config.experiment.workload
    if config.dataset is None:
        result.head["workload"] = workload_head(workload, None)
        _measure_management(config, result)
        return
    manifest = manifest_from_json(json.loads(Path(config.dataset.manifest).read_text()))
    result.head["workload"] = workload_head(workload, manifest)
    if manifest.layout != "files":
        result.latency_of = "read of one sample of a shard"
    access = config.store
    prefix = access.prefix.strip("/")
    with (
        Workspace(Path(config.medium)) as workspace,
        open_line(
            workspace, access, config.experiment.shape, direct=workload.kind == "read"
        ) as line,
    ):
        site = Site(
            workspace,
            line.server,
            f"{access.bucket}/{prefix}" if prefix else access.bucket,
            as_dataset(manifest, Path(config.dataset.root)),
            access.scratch_bucket,
            access.scratch_name,
        )
        ExperimentRun(config, site, manifest, line, result, _report).run()
    _report("done", 1.0)


def _measure_management(config: ExperimentConfig, result: Result) -> None:
    result.head["arm"]["version"] = __version__
    _report("measuring", 0.0)
    with Workspace(Path(config.medium)) as workspace:
        result.figures = _management_figures(workspace, config.experiment.workload)
    # What was there to measure: the first figure.
    count = next(iter(result.figures.values()))
    wanted = config.experiment.workload.count
    result.proofs.append(Proof("all-there", count == wanted, f"{count:,} of {wanted:,}"))
    _report("done", 1.0)


def _report(phase: str, done: float) -> None:
    print(json.dumps({"phase": phase, "done": round(done, 3)}), flush=True)


# -- workloads that read no data set: a catalog of many names, many declared Datasets, and random
# reads of one file. They drive Penstock's command line in a workspace of their own, and return
# figures by name.


def _management_figures(workspace: Workspace, workload: WorkloadPlan) -> dict[str, float]:
    assert workload.count is not None
    commands = _Commands(workspace)
    if workload.kind == "catalog":
        return _measure_catalog(commands, workload.count)
    if workload.kind == "random":
        return measure_random_reads(commands.run, commands.program, commands.folder, workload.count)
    return _measure_resources(commands, workload.count)


class _Commands:
    """Penstock's command line with a state folder of its own."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.folder = workspace.folder_for("m")
        state = {"PENSTOCK_STATE_DIR": str(self.folder / "state")}
        self._environment = workspace.environment(PART, state)

    def run(self, *words: str) -> bytes:
        command = [sys.executable, "-m", "penstock", *words]
        return self._workspace.run(PART, command, self._environment)

    def program(self, *words: str) -> bytes:
        return self._workspace.run("reader", list(words))

    def seconds(self, *words: str) -> float:
        started_s = time.monotonic()
        self.run(*words)
        return time.monotonic() - started_s

    def memory_bytes(self) -> int:
        pids = measure.with_descendants(self._workspace.processes(PART))
        return measure.usage(pids).memory_bytes


def _measure_catalog(penstock: _Commands, files: int) -> dict[str, float]:
    """Mount a data set a second time, from its saved catalog.

    There is no store: the names come from a manifest, and the server that they would be fetched
    from does not exist.
    """
    mountpoint, manifest = penstock.folder / "mnt", penstock.folder / "manifest.txt"
    mountpoint.mkdir()
    _write_names(manifest, files)
    mount = (
        *("mount", "http://127.0.0.1:1/", str(mountpoint), "-b", "--no-cache"),
        *(f"--manifest={manifest}", "--refresh=never"),
    )
    penstock.run(*mount)
    penstock.run("umount", str(mountpoint))
    ready_s = penstock.seconds(*mount)
    # Memory after the kernel has asked for every name, not before it has asked for any.
    subprocess.run(["find", mountpoint, "-type", "f"], stdout=subprocess.DEVNULL, check=True)
    held_bytes = penstock.memory_bytes()
    stats = json.loads(penstock.run("stats", str(mountpoint), "-o", "json"))
    penstock.run("umount", str(mountpoint))
    return {"files": stats["files"], "ready_s": ready_s, "memory_mb": held_bytes / 1e6}


def _write_names(path: Path, files: int) -> None:
    with path.open("w") as lines:
        for number in range(files):
            folder = f"n{number // _FILES_PER_CLASS:08}"
            lines.write(f"110000 train/{folder}/{folder}_{number}.JPEG\n")


def _measure_resources(penstock: _Commands, count: int) -> dict[str, float]:
    """Apply, list and delete so many Datasets. Each is a real mount of a small folder of its own,
    and takes about 60 MB of memory."""
    manifests = str(_write_manifests(penstock.folder, count))
    before = procfs.available_memory()
    apply_s = penstock.seconds("apply", "-f", manifests)
    started_s = time.monotonic()
    bound = penstock.run("get", "datasets").decode().count("Bound")
    first_get_s = time.monotonic() - started_s
    if bound != count:
        raise BenchError(f"{bound} of {count} Datasets are Bound after apply")
    get_s = statistics.median(penstock.seconds("get", "datasets") for _ in range(_REPEATS))
    get_json_s = penstock.seconds("get", "datasets", "-o", "json")
    taken = before - procfs.available_memory()
    return {
        "datasets": bound,
        "apply_s": apply_s,
        "first_get_s": first_get_s,
        "get_s": get_s,
        "get_json_s": get_json_s,
        "memory_mb_each": taken / count / 1e6,
        "delete_s": penstock.seconds("delete", "-f", manifests),
    }


def _write_manifests(folder: Path, count: int) -> Path:
    items: list[Mapping[str, object]] = []
    for number in range(count):
        name = f"set-{number:04}"
        source = folder / "sources" / name
        source.mkdir(parents=True)
        (source / "file").write_text(name)
        head = {"apiVersion": "penstock.dev/v1alpha1", "metadata": {"name": name}}
        mount = {"mountPoint": f"local://{source}", "name": name, "path": "/"}
        level = {"mediumtype": "SSD", "path": str(folder / "cache"), "quota": "16Mi"}
        items += [
            {**head, "kind": "Dataset", "spec": {"mounts": [mount]}},
            {**head, "kind": "PenstockRuntime", "spec": {"tieredstore": {"levels": [level]}}},
        ]
    path = folder / "manifests.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


if __name__ == "__main__":
    sys.exit(main(read_config(Path(sys.argv[1]))))
