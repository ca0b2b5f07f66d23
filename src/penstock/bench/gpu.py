"""`make bench-gpu`: a real training on a GPU, fed in five ways.

    python -m penstock.bench.gpu [--files 48000] [--latency 20ms] [--rows ceiling,tmpfs,warm]

Runs the ResNet-50 of examples/09-resnet50 on JPEGs of ImageNet's size: with batches that are on the
GPU already (the ceiling), from tmpfs, from a warm Penstock mount, from a cold one with a plan
(`penstock run`), and from a cold rclone mount, the last two from a store that is far away. What
counts is images/s, and the share of the time in which the training waited for data. In the first
epoch the workers of the loader start, too, so first epochs are compared with first ones: cold ways
have no other.

Main thread only.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from penstock.bench import measure, report
from penstock.bench.arms import Arm, Native, Penstock, Rclone, Site
from penstock.bench.datasets import SMALL_BYTES, Dataset, Entry, make_jpegs
from penstock.bench.s3server import FarServer, create_bucket, far_s3, serve_s3, upload
from penstock.bench.workspace import BenchError, Workspace, choose_medium, exit_code_of
from penstock.units import MIB, parse_duration

_BUCKET = "jpegs"
_PART = "train"
_SCRIPT = Path("examples/09-resnet50/train.py")


@dataclass(frozen=True, slots=True)
class Row:
    """One way to feed the training."""

    name: str
    title: str
    arm: type[Arm]
    epochs: int = 3
    on_gpu: bool = False
    warmed: bool = False
    planned: bool = False
    most_steps: int | None = None


ROWS = {
    row.name: row
    for row in (
        Row("ceiling", "batches already on the GPU", Native, on_gpu=True),
        Row("tmpfs", "tmpfs", Native),
        Row("warm", "Penstock, warm", Penstock, warmed=True),
        Row("planned", "Penstock, cold, with a plan (hinted)", Penstock, epochs=1, planned=True),
        Row("cold", "Penstock, cold, no plan", Penstock, epochs=1, most_steps=40),
        # At a few hundred images/s an epoch would take minutes, and say nothing more.
        Row("rclone", "rclone mount, cold", Rclone, epochs=1, most_steps=40),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    row: str
    title: str
    epochs: list[dict[str, Any]]
    gets: int
    get_bytes: int
    cpu_s_per_gb: float  # of all processes of the system, over all epochs
    memory_bytes: int

    def first(self, name: str) -> float:
        return self.epochs[0][name]

    def later(self, name: str) -> float | None:
        return statistics.mean(one[name] for one in self.epochs[1:]) if self.epochs[1:] else None


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    return exit_code_of(lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    if not given.script.is_file():
        raise BenchError(f"{given.script}: no such file", hint="run it in a checkout, or --script")
    medium = choose_medium(None, 5 * given.files * SMALL_BYTES + 512 * MIB)
    outcomes: list[Outcome] = []
    left_out: dict[str, str] = {}
    with Workspace(medium) as workspace:
        print(f"making {given.files:,} JPEGs", file=sys.stderr)
        dataset = _make_many(workspace.folder / "dataset", given.files)
        with serve_s3(workspace) as near:
            create_bucket(near, _BUCKET)
            upload(near, _BUCKET, dataset.root)
            latency_s = parse_duration(given.latency, what="--latency")
            with far_s3(
                workspace,
                near,
                latency_s=latency_s,
                bytes_per_s=math.inf,
                processes=max(1, (os.cpu_count() or 1) // 2),
            ) as far:
                site = Site(workspace, far.server, _BUCKET, dataset)
                for name in given.rows.split(","):
                    try:
                        outcome = _train(ROWS[name], site, far, given)
                    except BenchError as error:
                        left_out[ROWS[name].title] = str(error)
                        continue
                    speeds = ", ".join(f"{one['images_per_s']:,.0f}" for one in outcome.epochs)
                    print(f"{outcome.title}: {speeds} images/s", file=sys.stderr)
                    outcomes.append(outcome)
    _report(outcomes, given, dataset)
    for title, why in left_out.items():
        print(f"left out: {title}: {why}", file=sys.stderr)
    return 1 if left_out else 0


def _make_many(root: Path, files: int) -> Dataset:
    """Each of several processes makes classes of its own, from a seed of its own."""
    processes = os.cpu_count() or 1
    share = files // processes
    root.mkdir()
    with ProcessPoolExecutor(processes) as pool:
        made = [
            pool.submit(make_jpegs, root / f".part-{number}", share, seed=number)
            for number in range(processes)
        ]
        parts = [one.result() for one in made]
    entries: list[Entry] = []
    for number, part in enumerate(parts):
        for folder in sorted(part.root.iterdir()):
            folder.rename(root / f"p{number:02}-{folder.name}")
        part.root.rmdir()
        entries += [Entry(f"p{number:02}-{one.path}", one.size_bytes) for one in part.entries]
    return Dataset("jpegs", root, tuple(entries))


def _train(row: Row, site: Site, far: FarServer, given: argparse.Namespace) -> Outcome:
    arm = row.arm(site)
    version = arm.version()
    arm.prepare()
    measure.drop_pages()
    arm.start()
    try:
        if row.warmed and isinstance(arm, Penstock):
            arm.warm()
        before, used_before = far.counters(), arm.usage()
        printed = site.workspace.run(
            _PART,
            _command(row, arm.root, given),
            site.workspace.environment(_PART, arm.reader_environment()),
            timeout_s=900,
        )
        used, counted = arm.usage().since(used_before), far.counters().since(before)
    finally:
        arm.stop()
    lines = [line for line in printed.decode().splitlines() if line.startswith("{")]
    epochs: list[dict[str, Any]] = [json.loads(line) for line in lines]
    images: int = sum(one["images"] for one in epochs)
    read_bytes = images * site.dataset.size_bytes / len(site.dataset.entries)
    return Outcome(
        row=row.name,
        title=report.with_version(row.title, version),
        epochs=epochs,
        gets=counted.gets,
        get_bytes=counted.get_bytes,
        cpu_s_per_gb=used.cpu_s / read_bytes * 1e9,
        memory_bytes=used.memory_bytes,
    )


def _command(row: Row, root: Path, given: argparse.Namespace) -> list[str]:
    command = [
        *(sys.executable, str(given.script.resolve()), str(root)),
        *("--epochs", str(row.epochs), "--batch", str(given.batch)),
        *("--workers", str(given.workers)),
    ]
    if row.on_gpu:
        command.append("--data-on-gpu")
    if row.most_steps is not None:
        command += ["--steps", str(row.most_steps)]
    if given.compile:
        command.append("--compile")
    if row.planned:
        return [sys.executable, "-m", "penstock", "run", "--", *command]
    return command


def _report(outcomes: list[Outcome], given: argparse.Namespace, dataset: Dataset) -> None:
    table = Table(title=f"ResNet-50, {given.files:,} JPEGs, {given.latency} to the store")
    table.add_column("data from")
    for heading in (
        "images/s, first epoch",
        "of tmpfs",
        "data wait",
        "later epochs",
        "of tmpfs",
        "data wait",
        "GETs",
        *report.COST_COLUMNS,
    ):
        table.add_column(heading, justify="right")
    tmpfs = next((one for one in outcomes if one.row == "tmpfs"), None)
    for one in outcomes:
        cells: list[str] = []
        for of in (Outcome.first, Outcome.later):
            speed, wait = of(one, "images_per_s"), of(one, "data_wait_share")
            against = of(tmpfs, "images_per_s") if tmpfs else None
            cells += [
                f"{speed:,.0f}" if speed is not None else "",
                f"{speed / against:.3f}" if speed is not None and against else "",
                f"{wait:.1%}" if wait is not None else "",
            ]
        costs = report.cost_cells(one.cpu_s_per_gb, one.memory_bytes / 1e6)
        table.add_row(one.title, *cells, f"{one.gets:,}", *costs)
    report.output_console().print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu.json").write_text(
        json.dumps(
            {
                "machine": asdict(measure.machine()),
                "files": len(dataset.entries),
                "bytes": dataset.size_bytes,
                "latency": given.latency,
                "batch": given.batch,
                "workers": given.workers,
                "outcomes": [asdict(one) for one in outcomes],
            },
            indent=1,
        )
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.bench.gpu",
        description="Trains ResNet-50 on a GPU, fed in several ways.",
        epilog="example: python -m penstock.bench.gpu --rows ceiling,tmpfs,warm",
    )
    add = parser.add_argument
    add("--files", type=int, default=48_000, help="JPEGs of 110 KiB in the mean (48000)")
    add("--latency", default="20ms", help="of each request to the store (20ms)")
    add("--batch", type=int, default=256)
    add("--workers", type=int, default=12, help="of the DataLoader (12)")
    add("--rows", default=",".join(ROWS), help=f"what is run ({','.join(ROWS)})")
    add("--script", type=Path, default=_SCRIPT, help="the training")
    add("--compile", action="store_true", help="torch.compile")
    add("--out", type=Path, default=Path("bench-results"), help="folder for JSON")
    given = parser.parse_args(arguments)
    for name in given.rows.split(","):
        if name not in ROWS:
            parser.error(f"--rows: {name!r} is not one of {', '.join(ROWS)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
