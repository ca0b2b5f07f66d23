"""The comparison: native, Penstock, JuiceFS, Alluxio, rclone and s3fs side by side in one run.

    python -m penstock.bench.peers [--quick] [--arms native,penstock,rclone] [--out DIR]

A system whose program this machine lacks is left out, and the run says so.

Small files and large ones; cold, cached and warm; one reader and many. Prints tables and the
targets of the design, and writes every sample as JSON. Which systems there are is known to
`arms`, how an epoch is measured to `trial`; here is only the order of things.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from penstock.bench import measure, report
from penstock.bench.alluxio import HOME_VARIABLE, Alluxio
from penstock.bench.arms import (
    Arm,
    Mount,
    Native,
    Penstock,
    PenstockPassthrough,
    Rclone,
    S3fs,
    Site,
    lacking,
)
from penstock.bench.catalog import catalog_row
from penstock.bench.datasets import LARGE_BYTES, SMALL_BYTES, Dataset, Entry, make_large, make_small
from penstock.bench.juicefs import JuiceFS, juicefs_bucket
from penstock.bench.s3server import S3Server, create_bucket, serve_s3, upload
from penstock.bench.targets import CatalogFigures, judge
from penstock.bench.trial import BARE, Sample, Trial
from penstock.bench.workspace import (
    BenchError,
    Workspace,
    choose_medium,
    exit_code_of,
    find_program,
    require_fuse,
)
from penstock.units import MIB, format_size

ARMS: dict[str, type[Arm]] = {
    arm.name: arm for arm in (Native, Penstock, PenstockPassthrough, JuiceFS, Alluxio, Rclone, S3fs)
}
_DEFAULT_ARMS = "native,penstock,juicefs,alluxio,rclone,s3fs"
_EPILOG = f"""\
programs, beside python or on the PATH:
  weed          the S3 server; without it nothing runs
  juicefs       and redis-server, else its metadata lies in SQLite
  rclone, s3fs
  java          and libfuse2, for Alluxio; {HOME_VARIABLE} names the folder
                where its jars lie below lib/
Mounts need /dev/fuse. Dropping pages, for the state cached, needs root.

examples:
  python -m penstock.bench.peers --quick --arms native,penstock,rclone
  python -m penstock.bench.peers --files 3000 --large 4 --readers 1,8,16
"""
# One reader needs long for a cold epoch and shows the same speed on a part of it: every fourth
# file, from the first to the last.
_SINGLE_READER_STRIDE = 4
_SINGLE_READER_FILES = 1000
# The rows with a target are measured twice: a cold epoch cannot be repeated on one mount.
_COLD_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Settings:
    files: int
    large: int
    readers: tuple[int, ...]
    arms: tuple[str, ...]
    out: Path
    cache_medium: Path | None
    quick: bool

    @property
    def needed_bytes(self) -> int:
        """Both data sets as files and as objects, JuiceFS's objects of both, and one cache.

        Alluxio has two: the worker's, and that of its FUSE process.
        """
        small, large = self.files * SMALL_BYTES, self.large * LARGE_BYTES
        copies = 2 + (JuiceFS.name in self.arms)
        caches = 1 + (Alluxio.name in self.arms)
        return copies * (small + large) + caches * max(small, large) + 256 * MIB


class Comparison:
    """Collects samples; an arm that fails is noted and the others go on."""

    def __init__(self, workspace: Workspace, settings: Settings) -> None:
        self._workspace = workspace
        self._settings = settings
        self._console = Console(stderr=True, highlight=False)
        self.samples: list[Sample] = []
        self.versions: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def run(self) -> None:
        self._say(f"making {self._settings.files} small and {self._settings.large} large files")
        datasets = [
            make_small(self._workspace.folder / "small", self._settings.files),
            make_large(self._workspace.folder / "large", self._settings.large),
        ]
        with serve_s3(self._workspace) as server:
            for dataset in datasets:
                if dataset.entries:
                    self._compare(dataset, server)

    def _compare(self, dataset: Dataset, server: S3Server) -> None:
        self._say(f"putting {format_size(dataset.size_bytes)} into {server.endpoint}")
        create_bucket(server, dataset.name)
        upload(server, dataset.name, dataset.root)
        if JuiceFS.name in self._settings.arms:
            create_bucket(server, juicefs_bucket(dataset.name))
        site = Site(self._workspace, server, dataset.name, dataset)
        for name in self._arm_names(dataset):
            arm = ARMS[name](site)
            try:
                self.versions.setdefault(name, arm.version())
                for sample in self._measure(arm):
                    self._say_sample(sample)
                    self.samples.append(sample)
            except (BenchError, OSError) as error:  # OSError: its mount fails a reader
                self.left_out[f"{name}, {dataset.name} files"] = str(error)
                self._console.print(
                    f"[red]{name}: left out:[/] {escape(str(error))}", soft_wrap=True
                )

    def _arm_names(self, dataset: Dataset) -> Iterator[str]:
        for name in self._settings.arms:
            yield name
            if name == Penstock.name and dataset.name == "large":
                yield PenstockPassthrough.name

    def _measure(self, arm: Arm) -> Iterator[Sample]:
        trial = Trial(arm)
        counts = self._settings.readers
        if isinstance(arm, Native):
            # Beside itself: how far its ratio is from 1 is the noise of this machine.
            with trial.running():
                yield from self._read_again(trial)
            return
        self._say(f"{arm.name} on {arm.site.dataset.name} files")
        try:
            arm.prepare()
            for readers in counts[:-1]:
                yield from self._cold(trial, readers)
            yield from self._cold_and_after(trial)
        finally:
            arm.finish()

    def _cold(self, trial: Trial, readers: int) -> Iterator[Sample]:
        for _ in range(_COLD_ROUNDS if isinstance(trial.arm, Penstock) else 1):
            with trial.running():
                yield from self._first_epoch(trial, readers)

    def _cold_and_after(self, trial: Trial) -> Iterator[Sample]:
        """The most readers, all files; what they leave in the cache is read in the other states."""
        counts = self._settings.readers
        if isinstance(trial.arm, Penstock):
            for _ in range(_COLD_ROUNDS - 1):
                with trial.running():
                    yield from self._first_epoch(trial, counts[-1])
        with trial.running():
            yield from self._first_epoch(trial, counts[-1])
            trial.settle()
            yield from self._read_again(trial)

    def _read_again(self, trial: Trial) -> Iterator[Sample]:
        if measure.can_drop_pages():
            for readers in self._settings.readers:
                yield from trial.cached(readers)
            trial.make_warm(self._settings.readers[-1])
        for readers in self._settings.readers:
            yield from trial.warm(readers)

    def _first_epoch(self, trial: Trial, readers: int) -> list[Sample]:
        entries = self._cold_entries(trial.site.dataset, readers)
        if isinstance(trial.arm, Penstock):
            return trial.cold_beside_bare(readers, entries)
        return [trial.cold(readers, entries)]

    def _cold_entries(self, dataset: Dataset, readers: int) -> Sequence[Entry]:
        entries = dataset.entries
        fills_cache = readers == self._settings.readers[-1]
        if readers > 1 or fills_cache or len(entries) < _SINGLE_READER_FILES:
            return entries
        return entries[::_SINGLE_READER_STRIDE]

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _say_sample(self, sample: Sample) -> None:
        self._say(
            f"  {sample.arm} {sample.dataset} {sample.state}, {sample.readers} reading: "
            f"{sample.files_per_s:,.0f} files/s, {sample.bytes_per_s / 1e6:,.0f} MB/s"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    settings = _parse(arguments)
    return exit_code_of(lambda: _run(settings))


def _run(settings: Settings) -> int:
    # Before anything is made: without a server there is nothing to compare.
    find_program("weed")
    absent = lacking(ARMS[name] for name in settings.arms)
    for name, why in absent.items():
        print(f"{name} is left out: {why}", file=sys.stderr)
    settings = replace(settings, arms=tuple(name for name in settings.arms if name not in absent))
    if not settings.arms:
        raise BenchError("no system is left to compare", hint="install one, or give others --arms")
    if any(issubclass(ARMS[name], Mount) for name in settings.arms):
        require_fuse()
    medium = choose_medium(settings.cache_medium, settings.needed_bytes)
    with Workspace(medium) as workspace, measure.memory_kept_in_guest():
        comparison = Comparison(workspace, settings)
        comparison.run()
        measured = "penstock" in settings.arms and not settings.quick
        catalog = catalog_row(workspace) if measured else None
    _report(settings, medium, comparison, catalog, absent)
    return 1 if comparison.left_out else 0


def _report(
    settings: Settings,
    medium: Path,
    comparison: Comparison,
    catalog: CatalogFigures | None,
    absent: Mapping[str, str],
) -> None:
    left_out = {**absent, **comparison.left_out}
    samples = comparison.samples
    machine = measure.machine()
    verdicts = judge(samples, catalog, cores=machine.cores)
    filesystem = measure.filesystem_of(medium)
    console = report.output_console()
    console.print(
        f"{machine.cores} cores ({machine.cpu}), {format_size(machine.memory_bytes)}, "
        f"Linux {machine.kernel}; data and caches on {filesystem}"
    )
    console.print(", ".join(f"{name} {text}" for name, text in comparison.versions.items() if text))
    console.print()
    sizes = {"small": format_size(SMALL_BYTES), "large": format_size(LARGE_BYTES)}
    counts = {"small": settings.files, "large": settings.large}
    for name, size in sizes.items():
        listed = [row for row in report.rows(samples) if row.dataset == name]
        if listed:
            title = f"{counts[name]:,} files of {size}"
            console.print(report.dataset_table(title, listed, comparison.versions))
    console.print(report.target_table(verdicts))
    for name, why in left_out.items():
        console.print(f"left out: {name}: {why}", soft_wrap=True, markup=False)
    path = settings.out / "peers.json"
    report.write_json(
        path,
        machine=machine,
        versions=comparison.versions,
        settings={
            "files": settings.files,
            "large": settings.large,
            "readers": settings.readers,
            "arms": settings.arms,
            "medium": filesystem,
            "yardstick": BARE,
            "catalog": asdict(catalog) if catalog else None,
        },
        samples=samples,
        verdicts=verdicts,
        left_out=left_out,
    )
    print(f"every sample: {path}", file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.bench.peers",
        description="Reads the same files through several systems and compares them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--files", type=int, help="small files of 110 KiB (10000)")
    parser.add_argument("--large", type=int, help="large files of 128 MiB (8)")
    parser.add_argument("--readers", default="1,8", help="reader counts, rising (1,8)")
    parser.add_argument(
        "--arms",
        default=_DEFAULT_ARMS,
        help=f"systems ({_DEFAULT_ARMS}); one whose program is missing is left out",
    )
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON")
    parser.add_argument("--cache-medium", type=Path, help="folder for data and caches (/dev/shm)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="1,000 small and 2 large files, and no catalog of 1.28 million",
    )
    given = parser.parse_args(arguments)
    arms = tuple(given.arms.split(","))
    for name in arms:
        if name not in ARMS:
            parser.error(f"--arms: {name!r} is not one of {', '.join(ARMS)}")
    try:
        readers = tuple(sorted({int(count) for count in given.readers.split(",")}))
    except ValueError:
        parser.error(f"--readers: {given.readers!r} is not a list of numbers")
    if not readers or readers[0] < 1:
        parser.error(f"--readers: {given.readers!r}: at least one reader is needed")
    return Settings(
        files=given.files if given.files is not None else 1000 if given.quick else 10_000,
        large=given.large if given.large is not None else 2 if given.quick else 8,
        readers=readers,
        arms=arms,
        out=given.out,
        cache_medium=given.cache_medium,
        quick=given.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
