"""The ResNet-50 example: it learns, on one rank and on two, and a plan covers its epochs."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.support.examples import EXAMPLES, Stage, in_this_process, output, run

pytestmark = pytest.mark.slow  # it trains
TRAIN = EXAMPLES / "09-resnet50/train.py"
MAKE = EXAMPLES / "09-resnet50/make_images.py"
MODULES = [
    EXAMPLES / "09-resnet50/model.py", EXAMPLES / "09-resnet50/crops.py",
    EXAMPLES / "09-resnet50/data.py", EXAMPLES / "09-resnet50/batches.py",
    EXAMPLES / "09-resnet50/sources.py", EXAMPLES / "09-resnet50/ranks.py",
    EXAMPLES / "09-resnet50/figures.py",
]  # fmt: skip
SMALL = ("--model", "resnet10", "--width", 16, "--image-size", 32, "--workers", 1, "--lr", 0.6)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The example's modules, which import each other by bare names."""
    monkeypatch.syspath_prepend(str(TRAIN.parent))
    names = [path.stem for path in MODULES]
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    said = output(MAKE, folder, "--classes", 4, "--train", 24, "--val", 8, "--size", "48x40")
    assert said.startswith("128 images")
    return folder


Trainer = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def train_here(
    parts: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> Iterator[Trainer]:
    """train_here(word...) does what `python train.py WORD...` does, and returns its epochs."""
    train = importlib.import_module("train")

    def start(*words: object) -> list[dict[str, Any]]:
        train.run(train.options_of([*map(str, words)]))
        return epochs_in(capsys.readouterr().out)

    yield start
    del sys.modules["train"]


def epochs_in(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_resnet50_is_the_published_one(parts: dict[str, ModuleType]) -> None:
    model = parts["model"].make_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    model.eval()
    with torch.inference_mode():
        assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)
    assert not any(block.bn3.weight.any() for block in model.layer1)  # begins as its shortcut
    decay, rest = parts["model"].weights_and_rest(model)
    assert (len(decay), len(rest)) == (54, 107)  # convolutions and fc; biases and normalisation


def test_crops_of_a_batch_are_those_of_each_image(parts: dict[str, ModuleType]) -> None:
    crops, random = parts["crops"], torch.Generator().manual_seed(7)
    images = [
        torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=random)
        for height, width in ((80, 90), (150, 250), (15, 200), (37, 41), (1, 1))
    ]
    sizes = torch.tensor([image.shape[1:] for image in images])
    flips = torch.tensor([False, True, True, False, True])
    for boxes in (crops.random_boxes(sizes, 0.08, random), crops.middle_boxes(sizes)):
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()
        found = crops.crop_and_resize(images, boxes, flips, 32, torch.float32)
        for pixels, image, flip, (top, left, height, width) in zip(
            found, images, flips, boxes.tolist(), strict=True
        ):
            part = image[None, :, top : top + height, left : left + width].float()
            expected = torch.nn.functional.interpolate(
                part, (32, 32), mode="bilinear", antialias=True
            )[0]
            torch.testing.assert_close(pixels, expected.flip(2) if flip else expected)


@in_this_process
def test_it_learns_and_goes_on_from_its_checkpoint(
    drawn: Path, tmp_path: Path, train_here: Trainer
) -> None:
    words = (drawn, *SMALL, "--batch", 16, "--checkpoint", tmp_path / "last.pt")
    epochs = train_here(*words, "--epochs", 6, "--dawnbench", tmp_path)
    assert [epoch["epoch"] for epoch in epochs] == list(range(6))
    assert {epoch["images"] for epoch in epochs} == {96}
    assert all(0 <= epoch["data_wait_share"] <= 1 for epoch in epochs)
    assert max(epoch["top1"] for epoch in epochs[-2:]) >= 50  # of 4 classes
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    entry = json.loads((tmp_path / "dawnbench.json").read_text())
    assert entry["version"] == "v1.0"
    assert (entry["author"], entry["model"], entry["misc"]["batch"]) == ("", "resnet10", 16)
    rows = [line.split("\t") for line in (tmp_path / "dawnbench.tsv").read_text().splitlines()]
    assert rows[0] == ["epoch", "hours", "top1Accuracy", "top5Accuracy"]
    assert [int(row[0]) for row in rows[1:]] == list(range(1, 7))
    assert [float(row[2]) for row in rows[1:]] == [epoch["top1"] for epoch in epochs]
    again = ("--epochs", 7, "--steps", 2, "--dawnbench", tmp_path)
    (more,) = train_here(*words, *again)
    assert (tmp_path / "dawnbench.tsv").read_text().count("\n") == 8
    assert (more["epoch"], more["images"]) == (6, 32)
    assert more["hours"] > epochs[-1]["hours"]


@in_this_process
def test_a_broken_image_is_named_or_skipped(
    drawn: Path, tmp_path: Path, train_here: Trainer
) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    for number, path in enumerate(sorted((drawn / "val/class000").iterdir())):
        (folder / f"{number}.jpg").write_bytes(path.read_bytes()[: 200 if number == 3 else None])
    words = (tmp_path, *SMALL, "--batch", 4, "--epochs", 1)
    broken = run(TRAIN, *words)
    assert broken.returncode == 2
    assert re.search(rf"^error: {folder}/3.jpg: .*; hint: --skip-broken", broken.stderr, re.M)
    assert "Traceback" not in broken.stderr
    (epoch,) = train_here(*words, "--skip-broken")
    assert (epoch["images"], epoch["skipped"], epoch["top1"]) == (7, 1, None)


def test_penstock_run_plans_the_epochs_of_each_rank(images: Stage) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    words = [*launcher, TRAIN, images.mount.path, *SMALL, "--batch", 8, "--epochs", 2]
    result = run("-m", "penstock", "run", "--", sys.executable, *words, PENSTOCK_LOG="INFO")
    assert result.returncode == 0, result.stderr
    assert [epoch["images"] for epoch in epochs_in(result.stdout)] == [48, 48]
    assert "penstock: ImageFiles: 24 samples planned" in result.stderr
    assert "no plan" not in result.stderr
    assert images.mount.gets() == images.files
