"""The data sets are what they say: read here by means that share nothing with what wrote them."""

import io
import struct
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from penstock.bench import samples
from penstock.bench.datasets import (
    Dataset,
    DatasetManifest,
    make_dataset,
    make_large,
    make_small,
    manifest_from_json,
    scan,
)
from penstock.bench.plans.model import DatasetPlan
from penstock.bench.samples import crc32c, masked, sample_reader
from penstock.errors import UsageError
from penstock.units import KIB, MIB

Shards = dict[str, tuple[Path, DatasetManifest]]


def make_few_pictures(patch: pytest.MonkeyPatch) -> None:
    """Encode 2 pictures of each class instead of 20, which takes 0.8 s."""
    patch.setattr(samples, "_PICTURES_PER_CLASS", 2)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """A set of each kind: its folder, and what is said of it."""
    made: Shards = {}
    with pytest.MonkeyPatch.context() as patch:
        make_few_pictures(patch)
        for form in ("tfrecord", "webdataset"):
            folder = tmp_path_factory.mktemp(form)
            plan = DatasetPlan(form=form, files=2)  # type: ignore[arg-type]
            plan = plan.model_copy(update={"size_bytes": MIB // 2})
            made[form] = folder, make_dataset(plan, folder)
    return made


def decode(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    assert picture.format == "JPEG"
    return picture


def test_jpegs_decode_are_all_different_and_have_imagenets_mean_size(tmp_path: Path) -> None:
    make_dataset(DatasetPlan(form="jpeg", files=80), tmp_path)
    entries = scan(tmp_path)
    contents = {(tmp_path / entry.path).read_bytes() for entry in entries}
    assert len(contents) == len(entries) == 80
    sizes = [entry.size_bytes for entry in entries]
    assert 95 * KIB < sum(sizes) / 80 < 125 * KIB
    assert min(sizes) < 70 * KIB < 160 * KIB < max(sizes)
    for data in sorted(contents)[::10]:
        decode(data)


@pytest.mark.parametrize(
    ("make", "size_bytes", "folders"),
    [
        (make_small, 110 * KIB, {"n01440764": 3}),
        (make_small, 8, {"n01440764": 250, "n01448683": 1}),
        (make_large, 17 * MIB + 5, {"shards": 2}),
    ],
)
def test_files_have_the_exact_size_and_all_differ(
    tmp_path: Path, make: Callable[..., Dataset], size_bytes: int, folders: dict[str, int]
) -> None:
    made = make(tmp_path, sum(folders.values()), size_bytes=size_bytes)
    assert sorted(made.entries, key=lambda entry: entry.path) == list(scan(tmp_path))
    assert {entry.size_bytes for entry in made.entries} == {size_bytes}
    assert Counter(entry.path.split("/")[0] for entry in made.entries) == folders
    contents = {(tmp_path / entry.path).read_bytes() for entry in made.entries}
    assert len(contents) == len(made.entries)


def test_the_hash_depends_on_plan_and_seed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_few_pictures(monkeypatch)
    plan = DatasetPlan(form="jpeg", files=3, seed=3)
    first = make_dataset(plan, tmp_path / "a")
    assert make_dataset(plan, tmp_path / "b") == first
    small = [
        make_dataset(
            DatasetPlan(form="small", files=2, seed=seed), tmp_path / f"small-{seed}"
        ).sha256
        for seed in (1, 2)
    ]
    assert small[0] != small[1]
    victim = tmp_path / "b" / scan(tmp_path / "b")[0].path
    data = bytearray(victim.read_bytes())
    data[-3] ^= 1
    victim.write_bytes(data)
    given = make_dataset(DatasetPlan(form="given", path=str(tmp_path / "b")), tmp_path / "unused")
    assert given.sha256 != first.sha256
    assert manifest_from_json(given.to_json()) == given


def test_tfrecords_carry_valid_checksums_and_labelled_jpegs(shards: Shards) -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert (masked(0), masked(1 << 15)) == (0xA282EAD8, 0xA282EAD9)
    tmp_path, manifest = shards["tfrecord"]
    samples = 0
    for entry in scan(tmp_path):
        data = (tmp_path / entry.path).read_bytes()
        place = 0
        while place < len(data):
            head = data[place : place + 8]
            (length,) = struct.unpack("<Q", head)
            body = data[place + 12 : place + 12 + length]
            stored = data[place + 8 : place + 12] + data[place + 12 + length : place + 16 + length]
            assert struct.unpack("<II", stored) == (masked(crc32c(head)), masked(crc32c(body)))
            assert body.count(b"image/encoded") == body.count(b"image/class/label") == 1
            decode(body[body.index(b"\xff\xd8") :])
            samples += 1
            place += 16 + length
        assert place == len(data)
    assert samples == manifest.samples >= 2


def test_webdataset_shards_are_tars_of_pictures_and_classes(shards: Shards) -> None:
    tmp_path, manifest = shards["webdataset"]
    samples = 0
    for entry in scan(tmp_path):
        with tarfile.open(tmp_path / entry.path) as tar:
            members = iter(tar)
            for jpg, cls in zip(members, members, strict=True):
                assert jpg.name.removesuffix(".jpg") == cls.name.removesuffix(".cls")
                picture, label = tar.extractfile(jpg), tar.extractfile(cls)
                assert picture is not None
                assert label is not None
                decode(picture.read())
                assert 0 <= int(label.read()) < 10
                samples += 1
    assert samples == manifest.samples >= 2


@pytest.mark.parametrize("form", ["tfrecord", "webdataset"])
def test_samples_add_up_to_the_file_and_a_given_folder_is_described_by_what_lies_in_it(
    shards: Shards, tmp_path: Path, form: str
) -> None:
    folder, made = shards[form]
    read = sample_reader(made.layout)
    sizes = [size for entry in scan(folder) for size in read(str(folder / entry.path))]
    assert (len(sizes), sum(sizes)) == (made.samples, made.size_bytes)
    if form == "tfrecord":
        (tmp_path / "short").write_bytes((folder / scan(folder)[0].path).read_bytes()[:-5])
        with pytest.raises(OSError, match="ends in the middle of a sample"):
            list(read(str(tmp_path / "short")))
    given = make_dataset(DatasetPlan(form="given", path=str(folder)), tmp_path)
    assert (given.form, given.layout, given.seed) == ("given", form, None)
    assert (given.sha256, given.samples) == (made.sha256, made.samples)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no files"):
        make_dataset(DatasetPlan(form="given", path=str(tmp_path / "empty")), tmp_path)
