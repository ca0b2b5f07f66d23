"""Data sets of a benchmark: made from a seed, or found in a folder, and identified by a hash.

    jpeg        pictures in class folders: one sample, one file
    tfrecord    the same pictures, in shards of 130 MB: train-00000-of-00008
    webdataset  the same again, in tars: train-00000.tar
    small       files of 110 KiB, random bytes        large   files of 128 MiB, random bytes
    given       files that exist already

Two data sets are the same if their hashes are: SHA-256 over name, size and CRC-32 of each file, by
name. Nothing is kept between runs. This module knows neither the store nor the readers.

    python -Pm penstock.bench.datasets SETTINGS.json

makes the data set of a run in a process of its own, so that it can be ended. SETTINGS is
{"plan": a DatasetPlan, "folder": the target, "manifest": the file to describe it in}. A given data
set lies at plan.path, and is copied into the folder unless it is there already. Progress goes to
stdout as JSON lines.
"""

import hashlib
import json
import os
import random
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.bench.plans.model import DatasetPlan
from penstock.bench.samples import (
    TAR_END,
    PictureBook,
    class_name,
    count_samples,
    is_tar,
    record,
    tar_members,
)
from penstock.errors import PenstockError, UsageError
from penstock.units import KIB, MIB

SMALL_BYTES = 110 * KIB  # the mean of ImageNet's training images
LARGE_BYTES = 128 * MIB
_FILES_PER_CLASS = 250
# Random bytes are made once and cut differently for each file: 1 GiB then costs what writing it
# costs, where the generator alone would take 3 s.
_POOL_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Entry:
    path: str  # below the root, with forward slashes: also the key in the bucket
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    root: Path
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def make_small(root: Path, files: int, *, seed: int = 0, size_bytes: int = SMALL_BYTES) -> Dataset:
    """Files of exactly 110 KiB of random bytes, in class folders."""
    pool = random.Random(seed).randbytes(_POOL_BYTES)
    return _write(
        root, "small", _class_paths(files, "bin"), lambda index: sized(pool, index, size_bytes)
    )


def make_large(root: Path, files: int, *, size_bytes: int = LARGE_BYTES, seed: int = 0) -> Dataset:
    """Shards of exactly `size_bytes` of random bytes, in one folder."""
    pool = random.Random(seed).randbytes(_POOL_BYTES)
    paths = [f"shards/train-{index:05}.tar" for index in range(files)]
    return _write(root, "large", paths, lambda index: sized(pool, index, size_bytes))


def sized(pool: bytes, index: int, size_bytes: int) -> bytes:
    """File number `index`: begins with its number, goes on with the pool from its own place."""
    start = index * 104_729 % len(pool)  # a prime: neighbours share no aligned block
    turned = memoryview(pool)
    content = bytearray(index.to_bytes(8, "big"))
    while len(content) < size_bytes:
        content += turned[start : start + size_bytes - len(content)]
        start = 0
    return bytes(content)


def _class_paths(files: int, suffix: str) -> list[str]:
    """Names as in ImageNet: n01440764/n01440764_000012.JPEG."""
    paths: list[str] = []
    for index in range(files):
        name = f"n{1_440_764 + 7919 * (index // _FILES_PER_CLASS):08}"
        paths.append(f"{name}/{name}_{index:06}.{suffix}")
    return paths


def _write(
    root: Path, name: str, paths: Sequence[str], content_of: Callable[[int], bytes]
) -> Dataset:
    entries: list[Entry] = []
    for folder in sorted({path.rsplit("/", 1)[0] for path in paths}):
        (root / folder).mkdir(parents=True)
    for index, path in enumerate(paths):
        content = content_of(index)
        (root / path).write_bytes(content)
        entries.append(Entry(path, len(content)))
    return Dataset(name, root, tuple(entries))


SHARD_BYTES = 130_000_000  # of tfrecord and webdataset


def planned_bytes(plan: DatasetPlan) -> int | None:
    """Return about how large it will be; None for a given one. Files are whole: 48 MiB asked for
    give one shard of 130 MB."""
    if plan.form == "given":
        return None
    count, size_bytes = count_and_size(plan)
    return count * size_bytes


def count_and_size(plan: DatasetPlan) -> tuple[int, int]:
    """Return how many files there are, and their mean size."""
    usual = {"small": SMALL_BYTES, "jpeg": SMALL_BYTES, "large": LARGE_BYTES}
    size_bytes = usual.get(plan.form, SHARD_BYTES)
    if plan.files is not None and plan.size_bytes is not None:
        return plan.files, max(1, plan.size_bytes // plan.files)
    if plan.files is not None:
        return plan.files, size_bytes
    if plan.size_bytes is not None:
        return max(1, round(plan.size_bytes / size_bytes)), size_bytes
    raise UsageError("a data set to be made needs a number of files, or a size")


Layout = Literal["files", "tfrecord", "webdataset"]
Progress = Callable[[float], object]  # how much is done, from 0 to 1

_TFRECORD_NAME = re.compile(r"\.tfrecords?$|-\d+-of-\d+$")
_HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class DatasetManifest:
    """The content of datasets/NAME.json. `layout`: what a file is, whatever it was made as."""

    form: str
    files: int
    size_bytes: int
    sha256: str
    seed: int | None  # None: given
    samples: int
    layout: Layout = "files"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def manifest_from_json(value: Mapping[str, Any]) -> DatasetManifest:
    known = DatasetManifest.__dataclass_fields__
    return DatasetManifest(**{name: value[name] for name in value if name in known})


def make_dataset(
    plan: DatasetPlan, folder: Path, progress: Progress | None = None
) -> DatasetManifest:
    """Make it below `folder`, which must be empty or missing; a given one is only described."""
    if plan.form == "given":
        if plan.path is None:
            raise UsageError("a given data set needs its path")
        return describe_dataset(plan, Path(plan.path), progress)
    folder.mkdir(parents=True, exist_ok=True)
    report: Progress = progress or (lambda done: None)
    count, size_bytes = count_and_size(plan)
    match plan.form:
        case "small":
            make_small(folder, count, seed=plan.seed, size_bytes=size_bytes)
        case "large":
            make_large(folder, count, size_bytes=size_bytes, seed=plan.seed)
        case "jpeg":
            _make_jpegs(folder, count, size_bytes, plan.seed, report)
        case "tfrecord" | "webdataset":
            _make_shards(plan, folder, count, size_bytes, report)
    return describe_dataset(plan, folder)


def describe_dataset(
    plan: DatasetPlan, folder: Path, progress: Progress | None = None
) -> DatasetManifest:
    """Read all of it, for the hash and the samples."""
    entries = scan(folder)
    if not entries:
        raise UsageError(f"{folder}: no files", hint="give the folder that the data set lies in")
    layout = _layout_of(plan.form, folder, entries)
    digest = hashlib.sha256()
    samples = 0
    for number, entry in enumerate(entries, 1):
        path = folder / entry.path
        digest.update(f"{entry.path}\0{entry.size_bytes}\0{_crc32(path):08x}\n".encode())
        samples += count_samples(path, layout)
        if progress is not None:
            progress(number / len(entries))
    return DatasetManifest(
        form=plan.form,
        files=len(entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        sha256=digest.hexdigest(),
        seed=None if plan.form == "given" else plan.seed,
        samples=samples,
        layout=layout,
    )


def scan(folder: Path) -> tuple[Entry, ...]:
    """Return every file below it, by name; hidden ones are not part of a data set."""
    found: list[Entry] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(place, folder)
        for name in names:
            if not name.startswith("."):
                path = name if below == "." else f"{below}/{name}"
                found.append(Entry(path, os.stat(os.path.join(place, name)).st_size))
    return tuple(sorted(found, key=lambda entry: entry.path))


def as_dataset(manifest: DatasetManifest, root: Path) -> Dataset:
    return Dataset(manifest.form, root, scan(root))


def _make_jpegs(folder: Path, files: int, mean_bytes: int, seed: int, report: Progress) -> None:
    book = PictureBook(seed, mean_bytes)
    for number in range(files):
        picture = book.picture(number)
        name = class_name(picture.label)
        path = folder / name / f"{name}_{number:06}.JPEG"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture.data)
        report((number + 1) / files)


def _make_shards(
    plan: DatasetPlan, folder: Path, shards: int, shard_bytes: int, report: Progress
) -> None:
    in_tars = plan.form == "webdataset"
    book = PictureBook(plan.seed, SMALL_BYTES)
    number = 0
    for shard in range(shards):
        name = f"train-{shard:05}.tar" if in_tars else f"train-{shard:05}-of-{shards:05}"
        written = 0
        with (folder / name).open("wb") as file:
            while written < shard_bytes:
                picture = book.picture(number)
                for piece in tar_members(number, picture) if in_tars else record(picture):
                    written += file.write(piece)
                number += 1
                report((shard + min(1.0, written / shard_bytes)) / shards)
            if in_tars:
                file.write(TAR_END)


def _layout_of(form: str, folder: Path, entries: tuple[Entry, ...]) -> Layout:
    if form in ("tfrecord", "webdataset"):
        return "tfrecord" if form == "tfrecord" else "webdataset"
    if form == "given":
        if all(_TFRECORD_NAME.search(entry.path) for entry in entries):
            return "tfrecord"
        if all(_begins_as_tar(folder / entry.path) for entry in entries):
            return "webdataset"
    return "files"


def _begins_as_tar(path: Path) -> bool:
    if path.suffix != ".tar":
        return False
    with path.open("rb") as file:
        return is_tar(file.read(1 << 20))


def _crc32(path: Path) -> int:
    crc = 0
    for block in _blocks(path):
        crc = zlib.crc32(block, crc)
    return crc


def _blocks(path: Path) -> Iterator[memoryview]:
    buffer = bytearray(_HASHED_AT_ONCE)
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(buffer):
            yield memoryview(buffer)[:got]


_REPORT_EVERY = 0.01


def main(settings: dict[str, Any]) -> None:
    plan, folder = DatasetPlan(**settings["plan"]), Path(settings["folder"])
    if plan.form == "given":
        assert plan.path is not None
        if Path(plan.path) != folder:
            _report_progress("copying", 0)
            shutil.copytree(plan.path, folder, dirs_exist_ok=True)
        plan = plan.model_copy(update={"path": str(folder)})
    reported = 0.0

    def progress(done: float) -> None:
        nonlocal reported
        if done - reported >= _REPORT_EVERY:
            reported = done
            _report_progress("making", done)

    manifest = make_dataset(plan, folder, progress)
    Path(settings["manifest"]).write_text(json.dumps(manifest.to_json(), indent=2) + "\n")


def _report_progress(phase: str, done: float) -> None:
    print(json.dumps({"phase": phase, "done": round(done, 3)}), flush=True)


if __name__ == "__main__":
    try:
        main(json.loads(Path(sys.argv[1]).read_text()))
    except PenstockError as error:
        print(f"{error}\nhint: {error.hint}" if error.hint else error, file=sys.stderr)
        sys.exit(error.exit_code)
