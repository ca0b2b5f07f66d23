"""The data sets of a benchmark: made from a seed, or found in a folder, and known by a hash.

    jpeg        pictures in class folders: one sample, one file
    tfrecord    the same pictures, in shards of 130 MB: train-00000-of-00008
    webdataset  the same again, in tars: train-00000.tar
    small       files of 110 KiB, random bytes        large   files of 128 MiB, random bytes
    given       what is there

Nothing is remembered between runs. What a data set is called to be the same by is its hash: SHA-256
over name, size and CRC-32 of each file, by name.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.bench.dataset import (
    SMALL_BYTES,
    Dataset,
    Entry,
    make_large,
    make_small,
)
from penstock.bench.experiments import reading
from penstock.bench.experiments.pictures import PictureBook, class_name
from penstock.bench.experiments.shards import TAR_END, is_tar, record, tar_members
from penstock.bench.plans.model import DatasetPlan
from penstock.bench.plans.sizes import count_and_size
from penstock.errors import UsageError

Layout = Literal["files", "tfrecord", "webdataset"]
Progress = Callable[[float], object]  # how much is done, from 0 to 1

_TFRECORD_NAME = re.compile(r"\.tfrecords?$|-\d+-of-\d+$")
_HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class DatasetManifest:
    """What dataset.json says. `layout`: what a file of it is, whatever it was made as."""

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
    """Makes it below `folder`, which must be empty or missing; what is given is only described."""
    if plan.form == "given":
        if plan.path is None:
            raise UsageError("a given data set needs its path")
        return describe_dataset(plan, Path(plan.path), progress)
    folder.mkdir(parents=True, exist_ok=True)
    say: Progress = progress or (lambda done: None)
    count, size_bytes = count_and_size(plan)
    match plan.form:
        case "small":
            make_small(folder, count, seed=plan.seed, size_bytes=size_bytes)
        case "large":
            make_large(folder, count, size_bytes=size_bytes, seed=plan.seed)
        case "jpeg":
            _make_jpegs(folder, count, size_bytes, plan.seed, say)
        case "tfrecord" | "webdataset":
            _make_shards(plan, folder, count, size_bytes, say)
    return describe_dataset(plan, folder)


def describe_dataset(
    plan: DatasetPlan, folder: Path, progress: Progress | None = None
) -> DatasetManifest:
    """Reads all of it, for the hash and the samples."""
    entries = scan(folder)
    if not entries:
        raise UsageError(f"{folder}: no files", hint="give the folder that the data set lies in")
    layout = _layout_of(plan.form, folder, entries)
    digest = hashlib.sha256()
    samples = 0
    for number, entry in enumerate(entries, 1):
        path = folder / entry.path
        digest.update(f"{entry.path}\0{entry.size_bytes}\0{_crc32(path):08x}\n".encode())
        samples += reading.count_samples(path, layout)
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
    """Every file below it, by name; hidden ones are not part of a data set."""
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


def _make_jpegs(folder: Path, files: int, mean_bytes: int, seed: int, say: Progress) -> None:
    book = PictureBook(seed, mean_bytes)
    for number in range(files):
        picture = book.picture(number)
        name = class_name(picture.label)
        path = folder / name / f"{name}_{number:06}.JPEG"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture.data)
        say((number + 1) / files)


def _make_shards(
    plan: DatasetPlan, folder: Path, shards: int, shard_bytes: int, say: Progress
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
                say((shard + min(1.0, written / shard_bytes)) / shards)
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
