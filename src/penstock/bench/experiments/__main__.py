"""One experiment as a process: CONFIG.json in, result.json and its companions out.

Exit status 0: the result is there, valid or marked invalid. Else result.json and stderr have the
failure: 1 a failure of the run, 2 a mistake in the plan, 3 the store, 130 interrupted.
"""

import json
import sys
import time
from pathlib import Path

from penstock.bench.arms import Site
from penstock.bench.datasets import as_dataset, manifest_from_json
from penstock.bench.experiments.management import measure_management
from penstock.bench.experiments.proofs import Proof
from penstock.bench.experiments.results import Result, head_of, workload_head
from penstock.bench.experiments.running import ExperimentRun
from penstock.bench.experiments.storeline import open_line
from penstock.bench.plans.experiments import ExperimentConfig, read_config
from penstock.bench.workspace import Workspace
from penstock.errors import PenstockError
from penstock.release import __version__


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
            workspace, access, config.experiment.shape, direct=workload.kind == "states"
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
        result.figures = measure_management(workspace, config.experiment.workload)
    count = result.figures.get("files", result.figures.get("datasets"))
    wanted = config.experiment.workload.count
    result.proofs.append(Proof("all-there", count == wanted, f"{count:,} of {wanted:,}"))
    _report("done", 1.0)


def _report(phase: str, done: float) -> None:
    print(json.dumps({"phase": phase, "done": round(done, 3)}), flush=True)


if __name__ == "__main__":
    sys.exit(main(read_config(Path(sys.argv[1]))))
