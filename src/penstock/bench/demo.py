"""`make demo`: a bucket of JPEGs, read through Penstock and through rclone, in one table.

    python -m penstock.bench.demo

Makes an ImageNet-like set of pictures, serves it from a real S3 server with real keys, mounts
it with both, reads a cold and a warm epoch through each, and leaves nothing behind. The table is
on standard output, the talk on standard error.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.bench import report
from penstock.bench.arms import Arm, Native, Penstock, Rclone, Site
from penstock.bench.datasets import make_jpegs
from penstock.bench.s3server import create_bucket, serve_s3, upload
from penstock.bench.trial import Sample, Trial
from penstock.bench.workspace import Workspace, choose_medium, exit_code_of, require_fuse
from penstock.units import MIB, format_size

_BUCKET = "imagenet"
_LARGEST_JPEG_MEAN = 120 << 10


@dataclass(frozen=True, slots=True)
class Settings:
    files: int
    readers: int
    rounds: int
    seed: int
    cache_medium: Path | None

    @property
    def needed_bytes(self) -> int:
        """The pictures as files and as objects, and one cache at a time."""
        return 4 * self.files * _LARGEST_JPEG_MEAN + 256 * MIB


def run(
    workspace: Workspace, settings: Settings, console: Console
) -> tuple[list[Sample], dict[str, str]]:
    """The samples of every arm, in the order of the table, and the arms' versions."""
    console.print(f"making {settings.files:,} JPEGs ...")
    dataset = make_jpegs(workspace.folder / "dataset", settings.files, seed=settings.seed)
    with serve_s3(workspace) as server:
        console.print(f"putting {format_size(dataset.size_bytes)} into {server.endpoint} ...")
        create_bucket(server, _BUCKET)
        upload(server, _BUCKET, dataset.root)
        site = Site(workspace, server, _BUCKET, dataset)
        samples: list[Sample] = []
        versions: dict[str, str] = {}
        for arm in (Native(site), Penstock(site), Rclone(site)):
            versions[arm.name] = arm.version()
            samples += _epochs(arm, settings, console)
        return samples, versions


def conclusion(samples: Sequence[Sample]) -> str:
    """One plain sentence, true of the figures above it."""
    rows = {(row.arm, row.state): row for row in report.rows(samples)}
    ours, theirs = rows[Penstock.name, "warm"], rows[Rclone.name, "warm"]
    times = ours.files_per_s / theirs.files_per_s
    compared = (
        f"{times:.0f} times as fast as" if times >= 1.5 else f"{times:.2f} times the speed of"
    )
    messages = ours.messages_per_epoch
    said = "" if messages is None else f" and sends its daemon {messages:,.0f} messages"
    share = ours.native_ratio or 0.0
    return (
        f"A warm epoch through Penstock reads at {share:.0%} of native speed{said}; "
        f"that is {compared} rclone mount."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    settings = _parse(arguments)
    return exit_code_of(lambda: _show(settings))


def _show(settings: Settings) -> int:
    talk = Console(stderr=True, highlight=False)
    require_fuse()
    medium = choose_medium(settings.cache_medium, settings.needed_bytes)
    with Workspace(medium) as workspace:
        samples, versions = run(workspace, settings, talk)
    console = report.output_console()
    title = f"{settings.files:,} JPEGs from S3, {settings.readers} readers"
    console.print(report.epoch_table(title, report.rows(samples), versions))
    console.print(conclusion(samples))
    return 0


def _epochs(arm: Arm, settings: Settings, console: Console) -> list[Sample]:
    trial, readers, rounds = Trial(arm), settings.readers, settings.rounds
    with trial.running():
        if isinstance(arm, Native):
            return trial.warm(readers, rounds=rounds)
        console.print(f"{arm.name}: a cold epoch ...")
        cold = trial.cold(readers, arm.site.dataset.entries)
        console.print(f"{arm.name}: a warm epoch ...")
        return [cold, *trial.warm(readers, rounds=rounds)]


def _parse(arguments: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.bench.demo",
        description="Reads a bucket of JPEGs through Penstock and through rclone.",
        epilog="example: python -m penstock.bench.demo --files 1000",
    )
    parser.add_argument("--files", type=int, default=2500, help="pictures to make (2500)")
    parser.add_argument("--readers", type=int, default=4, help="reader processes (4)")
    parser.add_argument("--rounds", type=int, default=5, help="warm epochs to measure (5)")
    parser.add_argument("--seed", type=int, default=0, help="draws other pictures (0)")
    parser.add_argument("--cache-medium", type=Path, help="folder for data and caches (/dev/shm)")
    given = parser.parse_args(arguments)
    if min(given.files, given.readers, given.rounds) < 1:
        parser.error("--files, --readers and --rounds: at least 1")
    return Settings(given.files, given.readers, given.rounds, given.seed, given.cache_medium)


if __name__ == "__main__":
    sys.exit(main())
