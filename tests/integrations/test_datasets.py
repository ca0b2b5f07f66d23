"""Data sets that load a batch at once: what torchvision's ImageFolder is, and plain files."""

import os
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import penstock
from penstock.integrations.dataset_files import files_of
from tests.support.lazy import Lazy

data = Lazy("torch.utils.data")
ours = Lazy("penstock.integrations.torch")
batch = Lazy("penstock.integrations.torch.datasets")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes; names that sort differently by folder, file and case; one that is no image."""
    root = tmp_path / "images"
    names = ("dog/b.jpg", "dog/a.JPEG", "dog/deep/c.png", "cat/1.jpg", "cat/10.jpg", "cat/2.jpg")
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = "L" if number % 2 else "RGB"
        Image.new(mode, (4, 4), 40 * number).save(
            path, format="PNG" if name.endswith("png") else "JPEG"
        )
    (root / "dog" / "notes.txt").write_text("no image")
    (root / "readme.txt").write_text("no class")
    return root


def test_an_image_folder_has_the_classes_and_samples_of_torchvision(images: Path) -> None:
    dataset = ours.PenstockImageFolder(images)
    assert dataset.classes == ["cat", "dog"]
    assert dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert [(os.path.relpath(path, images), target) for path, target in dataset.samples] == [
        ("cat/1.jpg", 0),
        ("cat/10.jpg", 0),
        ("cat/2.jpg", 0),
        ("dog/a.JPEG", 1),
        ("dog/b.jpg", 1),
        ("dog/deep/c.png", 1),
    ]
    assert dataset.targets == [0, 0, 0, 1, 1, 1]
    assert dataset.imgs is dataset.samples
    assert len(dataset) == 6
    assert files_of(dataset) == [path for path, _ in dataset.samples]
    image, target = dataset[5]
    assert (image.mode, image.size, target) == ("RGB", (4, 4), 1)


def test_transforms_loaders_and_image_suffixes_are_configurable(images: Path) -> None:
    where: set[str] = set()

    def transform(path: str) -> str:
        where.add(threading.current_thread().name)
        return path.upper()

    dataset = ours.PenstockImageFolder(
        images, transform, target_transform=lambda target: -target, loader=os.path.basename
    )
    assert dataset[4] == ("B.JPG", -1)
    assert dataset.__getitems__([5, 0, 5]) == [("C.PNG", -1), ("1.JPG", 0), ("C.PNG", -1)]
    assert where == {"MainThread"}  # they draw random numbers, in the order of the batch
    kind = ours.PenstockImageFolder
    only = kind(images, is_valid_file=lambda path: path.endswith(("1.jpg", "txt")))
    assert [os.path.basename(path) for path, _ in only.samples] == ["1.jpg", "notes.txt"]
    assert len(kind(images, extensions=(".jpg",))) == 4
    with pytest.raises(ValueError, match="cannot both be passed"):
        kind(images, extensions=(".jpg",), is_valid_file=bool)


def test_folders_without_classes_or_images_are_rejected(images: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Couldn't find any class folder in"):
        ours.PenstockImageFolder(images / "cat")
    (images / "emu").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no valid file for the classes emu\. Supported"):
        ours.PenstockImageFolder(images)
    assert ours.PenstockImageFolder(images, allow_empty=True).classes == ["cat", "dog", "emu"]
    with pytest.raises(FileNotFoundError):
        ours.PenstockImageFolder(tmp_path / "missing")


def test_plain_files_are_read_whole_in_the_requested_order(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]) * number * 1000)
    dataset = ours.PenstockFiles(tmp_path)
    assert len(dataset) == 30
    assert dataset[3] == b"\3" * 3000
    assert dataset[0] == b""
    order = [7, 29, 0, 7, *range(20, 3, -1)]
    assert dataset.__getitems__(order) == [bytes([number]) * number * 1000 for number in order]
    sizes = ours.PenstockFiles([tmp_path / "05", str(tmp_path / "02")], load=os.path.getsize)
    assert list(data.DataLoader(sizes, batch_size=2, collate_fn=list)) == [[5000, 2000]]


def test_files_of_a_batch_load_together_and_the_first_failure_is_raised(
    tmp_path: Path,
) -> None:
    together = threading.Barrier(batch.THREADS, timeout=20)  # fails unless all wait at once
    numbers = list(range(batch.THREADS))
    assert batch.load_all(lambda number: (together.wait(), number)[1], numbers) == numbers
    (tmp_path / "a").touch()
    dataset = ours.PenstockFiles([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    with pytest.raises(FileNotFoundError, match="b'"):
        dataset.__getitems__([0, 1, 2])


def pixels(image: Any) -> str:
    return sha256(image.tobytes()).hexdigest()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_load_batches_however_they_were_started(
    images: Path, method: str, workers: int
) -> None:
    folder = ours.PenstockImageFolder(images, transform=pixels)
    loaded = folder.__getitems__(range(6))  # this process has threads when it forks
    assert loaded == [(pixels(folder.loader(path)), target) for path, target in folder.samples]
    loader = data.DataLoader(
        folder, 4, collate_fn=list, num_workers=workers, multiprocessing_context=method
    )
    assert [sample for drawn in loader for sample in drawn] == loaded


def test_without_torch_the_package_imports_and_its_use_names_what_is_missing() -> None:
    code = """
from penstock.errors import UsageError
from penstock.integrations.torch import PenstockFiles, PenstockImageFolder, PlannedSampler
for kind in (PenstockFiles, PenstockImageFolder, PlannedSampler):
    try:
        kind("/somewhere")
    except UsageError as error:
        print(error, error.hint)
"""
    command = [sys.executable, "-S", "-c", code]  # without site-packages
    environment = {"PYTHONPATH": str(Path(penstock.__file__).parent.parent)}
    result = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    assert result.stdout.decode().splitlines() == [
        f"{name} needs PyTorch pip install torch"
        for name in ("PenstockFiles", "PenstockImageFolder", "PlannedSampler")
    ]
