"""Every example does over a mount what it does over a plain folder, at one GET for each file."""

import errno
import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from penstock.paths import state_dir
from penstock.reconcile.loop_control import is_running
from tests.support.lazy import Lazy
from tests.support.members import StartMember
from tests.support.mounts import Mount, Mounter
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

numpy = Lazy("numpy")
torch = Lazy("torch")
pandas = Lazy("pandas")
Image = Lazy("PIL.Image")
pytestmark = pytest.mark.slow  # each imports torch or its like, most of them several times
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CLASSES = ("cat", "dog", "owl")
TABLES = [[(number + row) % 3 for row in range(100)] for number in range(5)]
TRAIN = EXAMPLES / "09-resnet50/train.py"
MAKE = EXAMPLES / "09-resnet50/make_images.py"
SMALL = ("--model", "resnet10", "--width", 16, "--image-size", 32, "--workers", 1, "--lr", 0.6)


@dataclass(frozen=True)
class Stage:
    """A folder of data twice: in a bucket that is mounted, and plain."""

    mount: Mount
    plain: Path
    bucket: str

    def assert_got_once(self) -> None:
        """There was one GET for each file."""
        assert self.mount.gets() == len(read_tree(self.plain))

    def labelled(self) -> list[tuple[bytes, int]]:
        """Each image and the number of its class."""
        found = self.plain.rglob("*.jpg")
        return sorted((path.read_bytes(), CLASSES.index(path.parent.name)) for path in found)


def jpeg(seed: int) -> bytes:
    pixels = numpy.random.default_rng(seed).integers(0, 255, (40, 48, 3), dtype=numpy.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG")
    return encoded.getvalue()


def samples() -> list[tuple[bytes, bytes]]:
    return [(jpeg(i), b"%d" % (i % 3)) for i in range(48)]


def run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """`python EXAMPLE...`, as its README says; offline, and with one thread for arithmetic. `more`
    goes into its environment."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=environment,
    )


def output(*words: object) -> str:
    result = run(*words)
    assert result.returncode == 0, result.stderr
    assert "plan" not in result.stderr  # the mount took it; otherwise that is said
    return result.stdout


def load(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{script.parent.name[:2]}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "plain").mkdir()
    return tmp_path / "plain"


@pytest.fixture
def upload(s3: S3, mounter: Mounter, plain: Path) -> Callable[[], Stage]:
    """upload() copies the plain folder into a bucket, and mounts that."""

    def start() -> Stage:
        bucket = s3.bucket(f"example-{uuid4().hex}")
        write_tree(bucket, read_tree(plain))
        return Stage(mounter(bucket.source, "--endpoint", s3.endpoint), plain, bucket.bucket)

    return start


@pytest.fixture
def images(plain: Path, upload: Callable[[], Stage]) -> Stage:
    """A folder of JPEGs for each class."""
    write_tree(
        plain,
        {
            f"{name}/{number:02}.jpg": jpeg(seed * 100 + number)
            for seed, name in enumerate(CLASSES)
            for number in range(16)
        },
    )
    return upload()


@pytest.fixture
def shards(plain: Path, upload: Callable[[], Stage]) -> Stage:
    """Six tar files of eight samples."""
    for number in range(6):
        with tarfile.open(plain / f"{number:04}.tar", "w") as tar:
            for key, (image, label) in list(enumerate(samples()))[number::6]:
                for name, data in ((f"{key:04}.jpg", image), (f"{key:04}.cls", label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return upload()


@pytest.fixture
def tables(plain: Path, upload: Callable[[], Stage]) -> Stage:
    """Five Parquet files, and forty notes beside them."""
    write_tree(plain, {f"notes/{i:02}.txt": b"note %02d" % i for i in range(40)})
    for number, labels in enumerate(TABLES):
        table = pandas.DataFrame({"label": labels, "text": [f"row {row}" for row in range(100)]})
        table.to_parquet(plain / f"{number}.parquet")
    return upload()


def test_01_a_pytorch_script_trains_alike_with_and_without_penstock_run(images: Stage) -> None:
    script = EXAMPLES / "01-pytorch-imagefolder/train.py"
    alone = output(script, images.plain)
    assert "48 images" in alone
    run_by_us = output("-m", "penstock", "run", "--", sys.executable, script, images.mount.path)
    assert run_by_us == alone
    images.assert_got_once()


def test_02_a_planned_run_resumes_in_mid_epoch(images: Stage, tmp_path: Path) -> None:
    script = EXAMPLES / "02-pytorch-planned/train.py"
    whole = output(script, images.mount.path, "--state", tmp_path / "none", "--workers", 0)
    images.assert_got_once()
    state = tmp_path / "state.pt"
    stopped = output(script, images.mount.path, "--state", state, "--stop-after", 4)
    assert stopped == "epoch 0: stopped after 32 images\n"
    assert output(script, images.mount.path, "--state", state) == whole


def test_03_hugging_face_reads_images_in_a_planned_order(images: Stage) -> None:
    found = output(EXAMPLES / "03-huggingface-datasets/images.py", images.mount.path)
    decoded: list[str] = []
    for path in images.plain.rglob("*.jpg"):
        with Image.open(path) as image:
            decoded.append(sha256(image.tobytes()).hexdigest())
    digest = sha256("".join(sorted(decoded)).encode()).hexdigest()[:12]
    assert found == "".join(f"epoch {epoch}: 48 images, {digest}\n" for epoch in range(2))
    images.assert_got_once()


def test_03_hugging_face_streams_tables(tables: Stage) -> None:
    found = output(EXAMPLES / "03-huggingface-datasets/tables.py", tables.mount.path)
    total = sum(sum(labels) for labels in TABLES)
    assert found == f"500 rows of 5 files, sum of labels {total}\n"
    assert tables.mount.gets() == 5


SHUFFLE = """
import sys
from datasets import load_from_disk
rows = load_from_disk(sys.argv[1])
try:
    rows.shuffle(seed=1)
except OSError as error:
    print(error.errno)
kept = rows.shuffle(seed=1, keep_in_memory=True)
named = rows.shuffle(seed=1, indices_cache_file_name=sys.argv[2])
print(sorted(kept["number"]) == sorted(named["number"]) == list(range(100)))
"""


def test_03_hugging_face_shuffles_as_the_page_says(
    plain: Path, upload: Callable[[], Stage], tmp_path: Path
) -> None:
    import datasets

    datasets.Dataset.from_dict({"number": list(range(100))}).save_to_disk(plain)
    (tmp_path / "train.py").write_text(SHUFFLE)
    found = output(tmp_path / "train.py", upload().mount.path, tmp_path / "order.arrow")
    assert found == f"{errno.EROFS}\nTrue\n"
    page = (EXAMPLES / "03-huggingface-datasets/README.md").read_text()
    assert "keep_in_memory=True" in page
    assert "indices_cache_file_name=" in page


def test_04_webdataset_reads_each_shard_once(shards: Stage) -> None:
    found = output(EXAMPLES / "04-webdataset/train.py", shards.mount.path)
    digests = sorted(sha256(image + label).digest() for image, label in samples())
    digest = sha256(b"".join(digests)).hexdigest()[:12]
    assert found == "".join(f"epoch {epoch}: 48 samples, {digest}\n" for epoch in range(2))
    shards.assert_got_once()


def test_05_the_tf_data_generator_covers_each_epoch_and_reports_missing_tensorflow(
    images: Stage,
) -> None:
    script = EXAMPLES / "05-tf-data/pipeline.py"
    found = list(load(script).samples(images.mount.path, epochs=2))
    assert sorted(found[:48]) == sorted(found[48:]) == images.labelled()
    assert found[:48] != found[48:]
    images.assert_got_once()
    result = run(script, images.mount.path)
    if importlib.util.find_spec("tensorflow"):
        assert "96 images in 2 epochs" in result.stdout
    else:
        assert result.stderr == "TensorFlow is not installed; hint: pip install tensorflow-cpu\n"


def test_06_the_dali_source_covers_each_epoch_and_reports_missing_dali(
    images: Stage,
) -> None:
    script = EXAMPLES / "06-dali/pipeline.py"
    source = load(script).PlannedFiles(images.mount.path, batch=10)
    epochs: list[list[tuple[bytes, int]]] = []
    for _ in range(2):
        batches = list(source)
        assert [len(files) for files, _ in batches] == [10, 10, 10, 10, 8]
        epochs.append(
            [
                (data.tobytes(), int(label))
                for files, labels in batches
                for data, label in zip(files, labels, strict=True)
            ]
        )
    assert sorted(epochs[0]) == sorted(epochs[1]) == images.labelled()
    assert epochs[0] != epochs[1]
    source.close()
    images.assert_got_once()
    result = run(script, images.mount.path)
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
        assert "epoch 1: 48 images" in result.stdout
    else:
        assert result.stderr == "DALI is not installed; hint: pip install nvidia-dali-cuda120\n"


def test_07_pandas_and_fsspec_read_from_a_url(tables: Stage) -> None:
    found = output(EXAMPLES / "07-fsspec/tables.py", f"penstock://{tables.mount.path}")
    size = (tables.plain / "0.parquet").stat().st_size
    lines = found.splitlines()
    assert lines[0] == "first table: 100 rows, labels [0, 1, 2]"
    assert lines[1] == "notes: 40 files, 280 bytes"
    assert re.fullmatch(rf"version [0-9a-f]{{32}}, {size} bytes, {size} of them cached", lines[2])
    assert tables.mount.gets() == 41


def test_08_a_declared_data_set_is_loaded_and_read(images: Stage, s3: S3, tmp_path: Path) -> None:
    manifest = tmp_path / "dataset.yaml"
    text = (EXAMPLES / "08-declared/dataset.yaml").read_text()
    for place, value in (
        ("<BUCKET>", images.bucket),
        ("<ENDPOINT>", s3.endpoint),
        ("<ACCESS_KEY_ID>", ACCESS_KEY),
        ("<SECRET_KEY>", SECRET_KEY),
    ):
        text = text.replace(place, value)
    manifest.write_text(text)
    lines = output(EXAMPLES / "08-declared/library.py", manifest).splitlines()
    size = sum(path.stat().st_size for path in images.plain.rglob("*.jpg"))
    assert lines[:3] == [
        "secret/default/images created",
        "dataset/default/images created",
        "alluxioruntime/default/images created",
    ]
    assert f"{size:,} of {size:,} bytes are cached" in lines
    assert "begins with b'\\xff\\xd8\\xff'" in lines[-1]
    wait_until(lambda: not is_running(state_dir()))


def test_11_the_second_machine_takes_everything_from_the_members(
    images: Stage, s3: S3, mounter: Mounter, member: StartMember, tmp_path: Path
) -> None:
    members = f"memcached://127.0.0.1:{member()},127.0.0.1:{member()}"
    mounts = [
        mounter(f"s3://{images.bucket}", "--endpoint", s3.endpoint, "--shared", members,
                "--cache-dir", tmp_path / f"cache{number}")
        for number in range(2)
    ]  # fmt: skip
    script = EXAMPLES / "11-shared-cache/machines.py"
    size = sum(path.stat().st_size for path in images.plain.rglob("*.jpg"))
    assert output(script, *(mount.path for mount in mounts)).splitlines() == [
        f"machine 1: {size:,} bytes, 48 requests to the bucket, 0 hits",
        f"machine 2: {size:,} bytes, 0 requests to the bucket, 48 hits",
    ]


def epochs_in(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_resnet50_is_the_published_one() -> None:
    module = load(EXAMPLES / "09-resnet50/model.py")
    model = module.make_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    model.eval()
    with torch.inference_mode():
        assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)
    assert not any(block.bn3.weight.any() for block in model.layer1)  # begins as its shortcut
    decay, rest = module.weights_and_rest(model)
    assert (len(decay), len(rest)) == (54, 107)  # convolutions and fc; biases and normalisation


def test_resnet50_learns_resumes_from_its_checkpoint_and_names_a_broken_image(
    tmp_path: Path,
) -> None:
    drawn = tmp_path / "drawn"
    made = output(MAKE, drawn, "--classes", 4, "--train", 24, "--val", 8, "--size", "48x40")
    assert made.startswith("128 images")
    words = (drawn, *SMALL, "--batch", 16, "--checkpoint", tmp_path / "last.pt")
    epochs = epochs_in(output(TRAIN, *words, "--epochs", 6, "--dawnbench", tmp_path))
    assert [(epoch["epoch"], epoch["images"]) for epoch in epochs] == [(n, 96) for n in range(6)]
    assert max(epoch["top1"] for epoch in epochs[-2:]) >= 50  # of 4 classes
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    _, *rows = (tmp_path / "dawnbench.tsv").read_text().splitlines()
    assert [float(row.split("\t")[2]) for row in rows] == [epoch["top1"] for epoch in epochs]
    again = ("--epochs", 7, "--steps", 2, "--dawnbench", tmp_path)
    (more,) = epochs_in(output(TRAIN, *words, *again))
    assert (more["epoch"], more["images"]) == (6, 32)
    assert more["hours"] > epochs[-1]["hours"]
    image = next((drawn / "train").rglob("*.jpg"))
    image.write_bytes(image.read_bytes()[:200])
    broken = run(TRAIN, drawn, *SMALL, "--batch", 16, "--epochs", 1)
    assert broken.returncode == 2
    assert re.search(rf"^error: {image}: .*; hint: --skip-broken", broken.stderr, re.M)
    assert "Traceback" not in broken.stderr


def test_penstock_run_plans_the_epochs_of_each_rank(images: Stage) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    words = [*launcher, TRAIN, images.mount.path, *SMALL, "--batch", 8, "--epochs", 2]
    result = run("-m", "penstock", "run", "--", sys.executable, *words, PENSTOCK_LOG="INFO")
    assert result.returncode == 0, result.stderr
    assert [epoch["images"] for epoch in epochs_in(result.stdout)] == [48, 48]
    assert "penstock: ImageFiles: 24 samples planned" in result.stderr
    assert "no plan" not in result.stderr
    images.assert_got_once()
