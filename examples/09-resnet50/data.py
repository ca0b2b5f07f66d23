"""Files in class folders, read by worker processes: raw bytes for a GPU that decodes, or pixels.

A worker returns one batch as one tensor: a tensor for each image would cost a file descriptor and a
mapping for each, 256 per batch. Files that a worker cannot read or decode are reported by path in
the batch: an exception would print forty lines of traceback.
"""

import ctypes
import io
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from crops import crop_and_resize, middle_boxes, random_boxes
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

_PR_SET_PDEATHSIG = 1
ENDINGS = (".jpg", ".jpeg", ".png", ".webp")


class NoImages(Exception):
    """There is nothing to train on."""


@dataclass(frozen=True)
class Sample:
    """One undecoded file; `problem` if it cannot be read."""

    index: int
    data: bytes
    problem: str | None = None


@dataclass
class RawBatch:
    """A batch as loader workers return it."""

    indices: Tensor
    labels: Tensor  # -100: broken, ignored by the loss
    problems: list[tuple[int, str]]  # index of a file, and what is wrong with it
    data: Tensor  # the bytes of all files one after the other; or pixels, uint8 (n, 3, side, side)
    lengths: list[int] | None  # of each file; None: these are pixels

    def pin_memory(self) -> "RawBatch":
        self.data, self.labels = self.data.pin_memory(), self.labels.pin_memory()
        return self


class ImageFiles(Dataset[Sample]):
    """FOLDER/CLASS/FILE. `samples` has the path and label of each index, like torchvision's
    ImageFolder: `penstock run` finds the files of an epoch there."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self.samples = [
            (f"{folder}/{name}/{file}", label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(folder / name))
            if file.lower().endswith(ENDINGS)
        ]
        if not self.samples:
            raise NoImages(f"{folder}: no images in class folders (FOLDER/CLASS/IMAGE.jpg)")
        if limit is not None and limit < len(self.samples):
            self.samples = sorted(random.Random(0).sample(self.samples, limit))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        try:
            # Unbuffered: one read of the whole file, and no buffer in between.
            with open(self.samples[index][0], "rb", buffering=0) as file:
                return Sample(index, file.readall())
        except OSError as error:
            return Sample(index, b"", error.strerror or str(error))


class FirstBatches(BatchSampler):
    """Yields at most `steps` batches per epoch, so that nothing is read, or planned to be read,
    for batches that are not trained on."""

    def __init__(
        self, sampler: Sampler[int], batch: int, *, drop_last: bool, steps: int | None
    ) -> None:
        super().__init__(sampler, batch, drop_last)
        self.steps = steps

    def __iter__(self) -> Iterator[list[int]]:
        return islice(super().__iter__(), self.steps)

    def __len__(self) -> int:
        length = super().__len__()
        return length if self.steps is None else min(length, self.steps)


class EveryNth(Sampler[int]):
    """Yields each validation image once, on one of the ranks. DistributedSampler would repeat some
    to give all ranks the same number, and count them twice."""

    def __init__(self, length: int, rank: int, ranks: int) -> None:
        self.indices = range(rank, length, ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class Bytes:
    """Concatenates the files of a batch; the GPU decodes them."""

    def __init__(self, labels: Sequence[int]) -> None:
        self.labels = torch.tensor(labels)

    def __call__(self, samples: list[Sample]) -> RawBatch:
        indices = torch.tensor([sample.index for sample in samples])
        problems = [(sample.index, sample.problem) for sample in samples if sample.problem]
        lengths = [len(sample.data) for sample in samples]
        # One more byte, because a tensor cannot have an empty buffer.
        joined = bytearray().join([*(sample.data for sample in samples), b"\0"])
        data = torch.frombuffer(joined, dtype=torch.uint8)[:-1]
        return RawBatch(indices, self.labels[indices], problems, data, lengths)


class Pixels:
    """Decodes and crops in the worker, if no GPU can decode."""

    def __init__(self, labels: Sequence[int], side: int, smallest: float | None, seed: int) -> None:
        """`smallest`: share of an image that a crop has at least; None: the middle, not flipped."""
        self.labels = torch.tensor(labels)
        self.side, self.smallest, self.seed = side, smallest, seed
        self.random: torch.Generator | None = None

    def __call__(self, samples: list[Sample]) -> RawBatch:
        indices = torch.tensor([sample.index for sample in samples])
        problems: list[tuple[int, str]] = []
        images: list[Tensor] = []
        for sample in samples:
            image = None if sample.problem else decode(sample.data)
            if not isinstance(image, Tensor):
                problems.append((sample.index, sample.problem or image or "no image"))
                image = torch.zeros(3, 1, 1, dtype=torch.uint8)
            images.append(image)
        if self.random is None:  # in the worker: each draws its own
            worker = get_worker_info()
            self.random = torch.Generator()
            self.random.manual_seed(self.seed * 1009 + (worker.id if worker else 0))
        boxes, flips = choose_crops(images, self.smallest, self.random)
        pixels = crop_and_resize(images, boxes, flips, self.side, torch.float32)
        pixels = pixels.round_().clamp_(0, 255).to(torch.uint8).contiguous()
        return RawBatch(indices, self.labels[indices], problems, pixels, None)


def choose_crops(
    images: Sequence[Tensor], smallest: float | None, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the box and the flip of each image."""
    sizes = torch.tensor([image.shape[1:] for image in images])
    if smallest is None:
        return middle_boxes(sizes), torch.zeros(len(sizes), dtype=torch.bool)
    flips = torch.rand(len(sizes), generator=random) < 0.5
    return random_boxes(sizes, smallest, random), flips


def decode(data: bytes | Tensor) -> Tensor | str:
    """Decode on the CPU to uint8 (3, height, width), or return what is wrong. Uses PIL, which also
    reads the unusual files (CMYK, PNG named .JPEG) of which ImageNet has about two dozen."""
    import numpy
    from PIL import Image

    if isinstance(data, Tensor):
        data = data.numpy().tobytes()
    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = numpy.array(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # PIL's message names the in-memory object that it read from.
        known = "cannot identify" in str(error)
        return "not an image" if known else f"cannot be decoded: {error}"
    return torch.from_numpy(pixels).permute(2, 0, 1)


def make_loader(
    files: ImageFiles,
    collate: Bytes | Pixels,
    sampler: Sampler[int],
    *,
    batch: int,
    workers: int,
    pin: bool,
    train: bool,
    steps: int | None = None,
) -> "DataLoader[RawBatch]":
    batches = FirstBatches(sampler, batch, drop_last=train, steps=steps)
    return DataLoader(
        files,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=workers > 0,
        worker_init_fn=_begin_worker if workers else None,
        # A batch of 256 ImageNet files is 28 MB: with 8 workers 0.7 GB waits in shared memory.
        prefetch_factor=3 if workers else None,
    )


def train_sampler(files: ImageFiles, rank: int, ranks: int, seed: int) -> DistributedSampler[int]:
    """Return a distributed sampler also for one rank: the order is the same for any number."""
    return DistributedSampler(files, ranks, rank, shuffle=True, seed=seed, drop_last=True)


def _begin_worker(_number: int) -> None:
    """The trainer handles Ctrl-C and SIGTERM and has them blocked here too. A worker ends with the
    trainer, however that ends (PyTorch itself checks for it every 5 s)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
