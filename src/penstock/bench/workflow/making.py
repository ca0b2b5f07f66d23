"""The program that makes a run's data set: a process of its own, so that it can be ended.

    python -Pm penstock.bench.workflow.making SETTINGS.json

SETTINGS: {"plan": a DatasetPlan, "folder": where to, "manifest": the file to describe it in}. What
is given lies at plan.path, and is copied into the folder unless it is there already. Says how far
it is as JSON lines on stdout, as an experiment does.
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.bench.experiments.datasets import make_dataset
from penstock.bench.plans.model import DatasetPlan
from penstock.bench.workflow.record import write_json
from penstock.errors import PenstockError

_SAY_EVERY = 0.01


def main(settings: dict[str, Any]) -> None:
    plan, folder = DatasetPlan(**settings["plan"]), Path(settings["folder"])
    if plan.form == "given":
        assert plan.path is not None
        if Path(plan.path) != folder:
            _say("copying", 0)
            shutil.copytree(plan.path, folder, dirs_exist_ok=True)
        plan = replace(plan, path=str(folder))
    said = 0.0

    def progress(done: float) -> None:
        nonlocal said
        if done - said >= _SAY_EVERY:
            said = done
            _say("making", done)

    manifest = make_dataset(plan, folder, progress)
    write_json(Path(settings["manifest"]), manifest.to_json())


def _say(phase: str, done: float) -> None:
    print(json.dumps({"phase": phase, "done": round(done, 3)}), flush=True)


if __name__ == "__main__":
    try:
        main(json.loads(Path(sys.argv[1]).read_text()))
    except PenstockError as error:
        print(f"{error}\nhint: {error.hint}" if error.hint else error, file=sys.stderr)
        sys.exit(error.exit_code)
