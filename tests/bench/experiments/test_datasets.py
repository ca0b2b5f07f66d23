"""The data sets are what they say: read here by means that share nothing with what wrote them."""

import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from penstock.bench.experiments import pictures
from penstock.bench.experiments.datasets import (
    DatasetManifest,
    make_dataset,
    manifest_from_json,
    scan,
)
from penstock.bench.experiments.reading import sample_reader
from penstock.bench.plans.model import DatasetPlan
from penstock.errors import UsageError
from penstock.units import KIB, MIB

Shards = dict[str, tuple[Path, DatasetManifest]]
JPEGS = DatasetPlan("jpeg", files=80, seed=3)


def make_few_pictures(patch: pytest.MonkeyPatch) -> None:
    """Encode 2 pictures of each class instead of 20, which takes 0.8 s."""
    patch.setattr(pictures, "_PICTURES_PER_CLASS", 2)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """A set of each kind: its folder, and what is said of it."""
    made: Shards = {}
    with pytest.MonkeyPatch.context() as patch:
        make_few_pictures(patch)
        for form in ("tfrecord", "webdataset"):
            folder = tmp_path_factory.mktemp(form)
            plan = DatasetPlan(form, files=2, size_bytes=MIB // 2)  # type: ignore[arg-type]
            made[form] = folder, make_dataset(plan, folder)
    return made


def decode(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    assert picture.format == "JPEG"
    return picture


def crc32c_by_bits(data: bytes) -> int:
    """Slow and plain: the polynomial, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def is_masked_crc_of(stored: bytes, data: bytes) -> bool:
    (value,) = struct.unpack("<I", stored)
    rotated = (value - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated << 15 | rotated >> 17) & 0xFFFFFFFF) == crc32c_by_bits(data)


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message."""
    found: list[tuple[int, bytes]] = []
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(message):
        tag = varint()
        assert tag & 7 == 2
        size = varint()
        found.append((tag >> 3, message[place : place + size]))
        place += size
    assert place == len(message)
    return found


def features_of(example: bytes) -> dict[bytes, bytes]:
    ((one, features),) = fields(example)
    assert one == 1
    entries = [dict(fields(entry)) for _, entry in fields(features)]
    return {entry[1]: entry[2] for entry in entries}


def test_jpegs_decode_are_all_different_and_have_imagenets_mean_size(tmp_path: Path) -> None:
    manifest = make_dataset(JPEGS, tmp_path)
    entries = scan(tmp_path)
    assert len({entry.path.split("/")[0] for entry in entries}) == 10
    contents = {(tmp_path / entry.path).read_bytes() for entry in entries}
    assert len(contents) == manifest.files == manifest.samples == 80
    assert 95 * KIB < manifest.size_bytes / 80 < 125 * KIB
    sizes = [entry.size_bytes for entry in entries]
    assert min(sizes) < 60 * KIB < 180 * KIB < max(sizes)
    for data in sorted(contents)[::10]:
        decode(data)


def test_the_hash_depends_on_plan_and_seed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_few_pictures(monkeypatch)
    plan = replace(JPEGS, files=3)
    first = make_dataset(plan, tmp_path / "a")
    assert make_dataset(plan, tmp_path / "b") == first
    small = [
        make_dataset(DatasetPlan("small", files=2, seed=seed), tmp_path / f"small-{seed}").sha256
        for seed in (1, 2)
    ]
    assert small[0] != small[1]
    victim = tmp_path / "b" / scan(tmp_path / "b")[0].path
    data = bytearray(victim.read_bytes())
    data[-3] ^= 1
    victim.write_bytes(data)
    given = make_dataset(DatasetPlan("given", path=str(tmp_path / "b")), tmp_path / "unused")
    assert given.sha256 != first.sha256
    assert manifest_from_json(given.to_json()) == given


def test_tfrecords_carry_valid_checksums_and_labelled_jpegs(shards: Shards) -> None:
    tmp_path, manifest = shards["tfrecord"]
    labels: list[int] = []
    for entry in scan(tmp_path):
        data = (tmp_path / entry.path).read_bytes()
        place = 0
        while place < len(data):
            head = data[place : place + 8]
            (length,) = struct.unpack("<Q", head)
            body = data[place + 12 : place + 12 + length]
            if len(labels) < 1:  # bit by bit takes 0.1 s for each
                assert is_masked_crc_of(data[place + 8 : place + 12], head)
                assert is_masked_crc_of(data[place + 12 + length : place + 16 + length], body)
            features = features_of(body)
            ((_, image_list),) = fields(features[b"image/encoded"])
            ((_, image),) = fields(image_list)
            decode(image)
            ((kind, label_list),) = fields(features[b"image/class/label"])
            ((_, packed),) = fields(label_list)
            assert kind == 3
            labels.append(packed[0])
            place += 16 + length
        assert place == len(data)
    assert len(labels) == manifest.samples >= 2
    assert set(labels) <= set(range(1, 11))
    assert [entry.path for entry in scan(tmp_path)] == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]


def test_webdataset_shards_are_tars_of_pictures_and_classes(shards: Shards) -> None:
    tmp_path, manifest = shards["webdataset"]
    samples = 0
    for entry in scan(tmp_path):
        with tarfile.open(tmp_path / entry.path) as tar:
            names = tar.getnames()
            for jpg, cls in zip(names[::2], names[1::2], strict=True):
                assert jpg.removesuffix(".jpg") == cls.removesuffix(".cls")
                picture, label = tar.extractfile(jpg), tar.extractfile(cls)
                assert picture is not None
                assert label is not None
                decode(picture.read())
                assert 0 <= int(label.read()) < 10
                samples += 1
    assert samples == manifest.samples >= 2


@pytest.mark.parametrize("form", ["tfrecord", "webdataset"])
def test_the_samples_of_a_shard_add_up_to_the_file(shards: Shards, form: str) -> None:
    tmp_path, manifest = shards[form]
    read = sample_reader(manifest.layout)
    sizes = [size for entry in scan(tmp_path) for size in read(str(tmp_path / entry.path))]
    assert (len(sizes), sum(sizes)) == (manifest.samples, manifest.size_bytes)


def test_a_shard_that_is_cut_short_is_an_error(shards: Shards, tmp_path: Path) -> None:
    shard = tmp_path / "short"
    shard.write_bytes((shards["tfrecord"][0] / "train-00000-of-00002").read_bytes()[:-5])
    with pytest.raises(OSError, match="ends in the middle of a sample"):
        list(sample_reader("tfrecord")(str(shard)))


def test_a_given_folder_is_described_by_what_lies_in_it(shards: Shards, tmp_path: Path) -> None:
    for form, (folder, made) in shards.items():
        given = make_dataset(DatasetPlan("given", path=str(folder)), tmp_path)
        assert (given.form, given.layout, given.seed) == ("given", form, None)
        assert (given.sha256, given.samples) == (made.sha256, made.samples)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no files"):
        make_dataset(DatasetPlan("given", path=str(tmp_path / "empty")), tmp_path)
