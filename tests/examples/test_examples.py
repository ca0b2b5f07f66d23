"""Every example does over a mount what it does over a plain folder, at one GET for each file."""

import importlib.util
import re
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from penstock.daemon.places import state_dir
from penstock.resources.nudge import is_running
from tests.support.examples import (
    CLASSES,
    EXAMPLES,
    SAMPLES,
    TABLES,
    Stage,
    in_this_process,
    output,
    run,
)
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # each imports torch or its like, most of them several times


@in_this_process
def test_01_a_pytorch_script_trains_alike_with_and_without_penstock_run(
    images: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    script = EXAMPLES / "01-pytorch-imagefolder/train.py"
    load(script).main(images.plain, epochs=2, workers=2)
    alone = capsys.readouterr().out
    assert "48 images" in alone
    run_by_us = output("-m", "penstock", "run", "--", sys.executable, script, images.mount.path)
    assert run_by_us == alone
    assert images.mount.gets() == images.files


def test_02_a_planned_run_goes_on_in_mid_epoch_where_it_was(images: Stage, tmp_path: Path) -> None:
    script = EXAMPLES / "02-pytorch-planned/train.py"
    whole = output(script, images.mount.path, "--state", tmp_path / "none", "--workers", 0)
    assert images.mount.gets() == images.files
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
    assert images.mount.gets() == images.files


def test_03_hugging_face_streams_tables(tables: Stage) -> None:
    found = output(EXAMPLES / "03-huggingface-datasets/tables.py", tables.mount.path)
    total = sum(sum(labels) for labels in TABLES)
    assert found == f"500 rows of 5 files, sum of labels {total}\n"
    assert tables.mount.gets() == 5


def test_04_webdataset_reads_each_shard_once(shards: Stage) -> None:
    found = output(EXAMPLES / "04-webdataset/train.py", shards.mount.path)
    samples = sorted(sha256(image + label).digest() for image, label in SAMPLES.values())
    digest = sha256(b"".join(samples)).hexdigest()[:12]
    assert found == "".join(f"epoch {epoch}: 48 samples, {digest}\n" for epoch in range(2))
    assert shards.mount.gets() == shards.files


def test_05_the_generator_for_tf_data_covers_each_epoch_and_without_it_that_is_said(
    images: Stage,
) -> None:
    script = EXAMPLES / "05-tf-data/pipeline.py"
    found = list(load(script).samples(images.mount.path, epochs=2))
    expected = sorted(
        (path.read_bytes(), CLASSES.index(path.parent.name)) for path in images.plain.rglob("*.jpg")
    )
    assert sorted(found[:48]) == sorted(found[48:]) == expected
    assert found[:48] != found[48:]
    assert images.mount.gets() == images.files
    result = run(script, images.mount.path)
    if importlib.util.find_spec("tensorflow"):
        assert "96 images in 2 epochs" in result.stdout
    else:
        assert result.stderr == "TensorFlow is not here; hint: pip install tensorflow-cpu\n"


def test_06_the_source_for_dali_covers_each_epoch_and_without_it_that_is_said(
    images: Stage,
) -> None:
    script = EXAMPLES / "06-dali/pipeline.py"
    source = load(script).PlannedFiles(images.mount.path, batch=10)
    epochs: list[list[tuple[bytes, int]]] = []
    for _ in range(2):
        batches = list(source)
        assert [len(files) for files, _ in batches] == [10, 10, 10, 10, 8]
        epochs.append([
            (data.tobytes(), int(label))
            for files, labels in batches for data, label in zip(files, labels, strict=True)
        ])  # fmt: skip
    expected = sorted(
        (path.read_bytes(), CLASSES.index(path.parent.name)) for path in images.plain.rglob("*.jpg")
    )
    assert sorted(epochs[0]) == sorted(epochs[1]) == expected
    assert epochs[0] != epochs[1]
    next(iter(source))
    files, _ = next(iter(source))  # the third epoch was left after a batch
    assert [data.tobytes() for data in files] == [
        source.paths[index].read_bytes() for index in source.order(3)[:10]
    ]
    source.close()
    assert images.mount.gets() == images.files
    result = run(script, images.mount.path)
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
        assert "epoch 1: 48 images" in result.stdout
    else:
        assert result.stderr == "DALI is not here; hint: pip install nvidia-dali-cuda120\n"


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
    filled = {
        "<BUCKET>": images.bucket, "<ENDPOINT>": s3.endpoint,
        "<ACCESS_KEY_ID>": ACCESS_KEY, "<SECRET_KEY>": SECRET_KEY,
    }  # fmt: skip
    for place, value in filled.items():
        text = text.replace(place, value)
    manifest.write_text(text)
    lines = output(EXAMPLES / "08-declared/library.py", manifest).splitlines()
    size = sum(path.stat().st_size for path in images.plain.rglob("*.jpg"))
    assert lines[:3] == [
        "secret/default/images created", "dataset/default/images created",
        "alluxioruntime/default/images created",
    ]  # fmt: skip
    assert f"{size:,} of {size:,} bytes are cached" in lines
    assert "begins with b'\\xff\\xd8\\xff'" in lines[-1]
    wait_until(lambda: not is_running(state_dir()))


def load(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{script.parent.name[:2]}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
