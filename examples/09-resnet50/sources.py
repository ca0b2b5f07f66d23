"""Where the batches of an epoch come from: the files of a folder, or batches kept on the device."""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from batches import Batch, CpuBatches, FixedBatches, GpuBatches, Preparer
from data import Bytes, EveryNth, ImageFiles, NoImages, Pixels, make_loader, train_sampler
from ranks import Ranks
from torch.utils.data.distributed import DistributedSampler

_KEPT = 8  # batches on the device for the ceiling


class Batches(Protocol):
    def __iter__(self) -> Iterator[Batch]: ...
    def waited_s(self) -> float: ...
    def close(self) -> None: ...


class Source(Protocol):
    classes: int
    images: int  # of all ranks
    steps: int  # of an epoch, for each rank

    @property
    def skipped(self) -> int: ...
    def batches(self, epoch: int) -> Batches: ...
    def close(self) -> None: ...


class Files:
    """A folder that is read in each epoch."""

    def __init__(
        self,
        files: ImageFiles,
        options: argparse.Namespace,
        ranks: Ranks,
        dtype: torch.dtype,
        *,
        decode_on_gpu: bool,
        train: bool,
    ) -> None:
        self.classes, self.images = len(files.classes), len(files)
        self._device = ranks.device
        smallest = options.smallest_crop if train and not options.no_augment else None
        seed = options.seed * 1_000_003 + ranks.rank
        labels = [label for _, label in files.samples]
        side = options.image_size
        self._preparer = Preparer(
            files,
            ranks.device,
            dtype,
            side=side,
            smallest=smallest,
            seed=seed,
            skip_broken=options.skip_broken,
        )
        self._sampler = (
            train_sampler(files, ranks.rank, ranks.count, options.seed)
            if train
            else EveryNth(len(files), ranks.rank, ranks.count)
        )
        self._loader = make_loader(
            files,
            Bytes(labels) if decode_on_gpu else Pixels(labels, side, smallest, seed),
            self._sampler,
            batch=options.batch,
            workers=options.workers,
            pin=ranks.device.type == "cuda",
            train=train,
            steps=options.steps if train else None,
        )
        self.steps = len(self._loader)

    @property
    def skipped(self) -> int:
        return self._preparer.skipped

    def batches(self, epoch: int) -> Batches:
        if isinstance(self._sampler, DistributedSampler):
            self._sampler.set_epoch(epoch)
        raw = iter(self._loader)
        if self._device.type == "cuda":
            return GpuBatches(raw, self._preparer, self._device)
        return CpuBatches(raw, self._preparer)

    def close(self) -> None:
        """End the worker processes, which otherwise stay from epoch to epoch."""
        del self._loader


class Kept:
    """A few batches that are kept on the device."""

    skipped = 0

    def __init__(self, batches: list[Batch], classes: int, steps: int, ranks: Ranks) -> None:
        self._batches, self.classes, self.steps = batches, classes, steps
        self.images = steps * len(batches[0].labels) * ranks.count

    def batches(self, epoch: int) -> Batches:
        return FixedBatches(self._batches, self.steps)

    def close(self) -> None:
        pass


def training(
    options: argparse.Namespace, ranks: Ranks, dtype: torch.dtype, *, decode_on_gpu: bool
) -> Files | None:
    if options.folder is None:
        return None
    folder: Path = options.folder
    inner = folder / "train"
    files = ImageFiles(inner if inner.is_dir() else folder, options.limit_images)
    source = Files(files, options, ranks, dtype, decode_on_gpu=decode_on_gpu, train=True)
    if source.steps == 0:
        raise NoImages(
            f"{len(files):,} images are fewer than a step of {ranks.count} x {options.batch}; "
            "hint: a smaller --batch"
        )
    return source


def validation(
    options: argparse.Namespace,
    ranks: Ranks,
    dtype: torch.dtype,
    classes: int,
    *,
    decode_on_gpu: bool,
) -> Files | None:
    if options.folder is None or not (options.folder / "val").is_dir() or options.data_on_gpu:
        return None
    files = ImageFiles(options.folder / "val")
    if len(files.classes) != classes:
        raise NoImages(
            f"{options.folder / 'val'}: {len(files.classes)} classes, and train/ has {classes}"
        )
    return Files(files, options, ranks, dtype, decode_on_gpu=decode_on_gpu, train=False)


def on_device(
    options: argparse.Namespace, ranks: Ranks, dtype: torch.dtype, files: Files | None
) -> Kept:
    """Return batches of the folder if there is one: a GPU computes a little faster on noise or
    zeros than on photographs, because fewer bits change."""
    if files is None:
        random = torch.Generator(ranks.device).manual_seed(options.seed + ranks.rank)
        side, classes = options.image_size, 1000
        shape = (options.batch, 3, side, side)
        kept = [
            Batch(
                torch.randn(shape, generator=random, device=ranks.device).to(
                    dtype, memory_format=torch.channels_last
                ),
                torch.randint(classes, shape[:1], generator=random, device=ranks.device),
            )
            for _ in range(_KEPT)
        ]
        return Kept(kept, classes, options.steps or 200, ranks)
    batches = files.batches(0)
    kept = list(itertools.islice(batches, _KEPT))
    batches.close()
    files.close()
    return Kept(kept, files.classes, files.steps, ranks)
