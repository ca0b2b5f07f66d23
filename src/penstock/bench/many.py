"""Many declared data sets on one machine: how long `apply` and `get` take, and what they cost.

    python -m penstock.bench.many --datasets 200

Each is a real mount of a small folder of its own. About 60 MB of memory go to each.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import click

from penstock import procfs
from penstock.bench.workspace import Workspace, exit_code_of

_PART = "penstock-many"
_REPEATS = 5


@click.command()
@click.option("--datasets", default=200, show_default=True)
def main(datasets: int) -> None:
    sys.exit(exit_code_of(lambda: _run(datasets)))


def _run(datasets: int) -> int:
    with Workspace(Path(tempfile.gettempdir())) as workspace:
        folder = workspace.folder_for(_PART)
        environment = workspace.environment(_PART, {"PENSTOCK_STATE_DIR": str(folder / "state")})

        def penstock(*words: str) -> tuple[float, bytes]:
            started_s = time.monotonic()
            out = workspace.run(_PART, [sys.executable, "-m", "penstock", *words], environment)
            return time.monotonic() - started_s, out

        before = procfs.available_memory()
        _write(folder, datasets)
        apply_s, _ = penstock("apply", "-f", str(folder / "manifests.json"))
        cold_s, out = penstock("get", "datasets")
        bound = out.decode().count("Bound")
        took = [penstock("get", "datasets")[0] for _ in range(_REPEATS)]
        wide_s, _ = penstock("get", "datasets", "-o", "json")
        taken = before - procfs.available_memory()
        delete_s, _ = penstock("delete", "-f", str(folder / "manifests.json"))
        print(
            json.dumps(
                {
                    "datasets": datasets,
                    "bound": bound,
                    "apply_s": round(apply_s, 2),
                    "first_get_s": round(cold_s, 3),
                    "get_s": round(statistics.median(took), 3),
                    "get_json_s": round(wide_s, 3),
                    "delete_s": round(delete_s, 2),
                    "memory_of_each_bytes": taken // datasets,
                },
                indent=2,
            )
        )
        return 0 if bound == datasets else 1


def _write(folder: Path, datasets: int) -> None:
    items: list[object] = []
    for number in range(datasets):
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
    manifests = {"apiVersion": "v1", "kind": "List", "items": items}
    (folder / "manifests.json").write_text(json.dumps(manifests))


if __name__ == "__main__":
    main()
