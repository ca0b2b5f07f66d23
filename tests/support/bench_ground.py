"""What must be gone when a benchmark has ended."""

import json
import os
from pathlib import Path

from penstock.bench import measure
from penstock.bench.workspace import MARK


def assert_nothing_left(medium: Path) -> None:
    """No mount, process or file of the benchmarks that ran in `medium`."""
    assert measure.mounts_below(medium) == []
    assert measure.marked_processes(f"{MARK}={medium}/") == []
    assert os.listdir(medium) == []


def sockets_of(folder: Path) -> list[Path]:
    """The sockets in /tmp of the running S3 servers whose folders lie below `folder`."""
    running = Path("/proc/net/unix").read_text()  # a file may be left from a machine that crashed
    return [
        path
        for ports in folder.rglob("ports.json")
        for port in json.loads(ports.read_text()).values()
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")
        if f" {path}\n" in running
    ]
