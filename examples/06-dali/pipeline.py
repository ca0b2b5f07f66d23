"""Feed NVIDIA DALI from a mount, in a planned order: `python pipeline.py FOLDER`."""

import argparse
import random
from collections.abc import Generator, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy

from penstock.integrations.ordered import read_in_order

Batch = tuple[list[numpy.ndarray], list[numpy.ndarray]]


class PlannedFiles:
    """A source for `fn.external_source`: encoded files and labels, a batch at a time.

    Each iter() is one epoch, shuffled by (seed, epoch). One plan covers all epochs, so the mount
    fetches the beginning of the next epoch while the last batches are decoded.
    Needs no DALI.
    """

    def __init__(self, folder: Path, batch: int, seed: int = 0) -> None:
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.paths = [path for name in self.classes for path in sorted((folder / name).glob("*"))]
        self._batch, self._seed, self._epoch = batch, seed, -1
        self._left = 0  # files of this epoch that were not returned yet
        self._files: Generator[tuple[int, bytes], None, None] | None = None

    def order(self, epoch: int) -> list[int]:
        return random.Random(f"{self._seed} {epoch}").sample(
            range(len(self.paths)), len(self.paths)
        )

    def __iter__(self) -> Iterator[Batch]:
        self._epoch += 1
        if self._left and self._files is not None:  # the previous epoch was not finished
            self._files.close()
            self._files = None
        if self._files is None:
            orders = map(self.order, count(self._epoch))
            self._files = read_in_order(self.paths, chain.from_iterable(orders), label="DALI")
        self._left = len(self.paths)
        return self

    def __next__(self) -> Batch:
        if not self._left or self._files is None:
            raise StopIteration
        images, labels = [], []
        for _ in range(min(self._batch, self._left)):
            index, data = next(self._files)
            images.append(numpy.frombuffer(data, numpy.uint8))
            labels.append(numpy.array(self.classes.index(self.paths[index].parent.name)))
        self._left -= len(images)
        return images, labels

    def close(self) -> None:
        if self._files is not None:
            self._files.close()


def pipeline(source: PlannedFiles, batch: int, device_id: int | None) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=2, device_id=device_id)
    def decoded() -> Any:
        files, labels = fn.external_source(source, num_outputs=2, cycle="raise")
        device = "cpu" if device_id is None else "mixed"  # mixed: the GPU decodes
        images = fn.decoders.image(files, device=device)
        return fn.resize(images, size=(32, 32)), fn.cast(labels, dtype=types.INT64)

    return decoded()


def main(folder: Path, epochs: int, batch: int, device_id: int | None) -> None:
    source = PlannedFiles(folder, batch)
    try:
        steps = pipeline(source, batch, device_id)
    except ModuleNotFoundError as error:
        if error.name not in ("nvidia", "nvidia.dali"):
            raise
        raise SystemExit("DALI is not installed; hint: pip install nvidia-dali-cuda120") from None
    steps.build()
    for epoch in range(epochs):
        seen, total = 0, 0.0
        while True:
            try:
                images, _labels = steps.run()
            except StopIteration:
                break
            pixels = images.as_cpu().as_array()
            seen += len(pixels)
            total += float(pixels.mean()) * len(pixels)
        print(f"epoch {epoch}: {seen} images, mean {total / seen:.2f}")
        steps.reset()
    source.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument(
        "--gpu",
        type=int,
        default=None,
        help="GPU that decodes; default: the CPU decodes",
    )
    options = parser.parse_args()
    main(options.folder, options.epochs, options.batch, options.gpu)
