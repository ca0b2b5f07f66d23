"""A data set of ImageNet's size, mounted again from its saved catalog.

Nothing is read, so there is no store: the names come from a manifest of 1.28 million lines, and
the server they would be fetched from does not exist.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from penstock.bench import measure
from penstock.bench.targets import CatalogFigures
from penstock.bench.workspace import Workspace

PART = "penstock-catalog"
FILES = 1_281_167
_FILES_PER_CLASS = 1300


def catalog_row(workspace: Workspace, files: int = FILES) -> CatalogFigures:
    place = workspace.folder_for(PART)
    mountpoint, manifest = place / "mnt", place / "manifest.txt"
    mountpoint.mkdir()
    _write_manifest(manifest, files)
    environment = workspace.environment(PART, {"PENSTOCK_STATE_DIR": str(place / "state")})

    def penstock(*words: str) -> bytes:
        return workspace.run(PART, [sys.executable, "-m", "penstock", *words], environment)

    def mount() -> float:
        started = time.monotonic()
        penstock(
            "mount",
            "http://127.0.0.1:1/",
            str(mountpoint),
            "-b",
            "--no-cache",
            f"--manifest={manifest}",
            "--refresh=never",
        )
        return time.monotonic() - started

    mount()
    penstock("umount", str(mountpoint))
    ready_s = mount()
    # Memory after the kernel has asked for every name, not before it has asked for any.
    subprocess.run(["find", mountpoint, "-type", "f"], stdout=subprocess.DEVNULL, check=True)
    held = measure.usage(measure.with_descendants(workspace.processes(PART)))
    stats = json.loads(penstock("stats", str(mountpoint), "-o", "json"))
    penstock("umount", str(mountpoint))
    return CatalogFigures(stats["files"], ready_s, held.memory_bytes)


def _write_manifest(path: Path, files: int) -> None:
    with path.open("w") as lines:
        for number in range(files):
            folder = f"n{number // _FILES_PER_CLASS:08}"
            lines.write(f"110000 train/{folder}/{folder}_{number}.JPEG\n")
