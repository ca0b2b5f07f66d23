"""Batches that are ready on the device, and how long the training waited for them.

On a GPU, a thread takes raw batches from the loader, decodes, crops and normalises them on a
separate stream and keeps two ahead, while the training's stream computes. On a CPU the next batch
is prepared on demand, from what the loader's workers have ready.

Threading: one epoch at a time; the trainer calls `__next__`, and `close` ends the thread.
"""

import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from crops import crop_and_resize, normalise
from data import ImageFiles, RawBatch, choose_crops, decode
from torch import Tensor

_AHEAD = 2  # one ready, one being decoded: more only costs memory (0.4 GB each)


class BrokenImage(Exception):
    """A file that cannot be read or decoded."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


@dataclass(frozen=True)
class Batch:
    images: Tensor  # normalised, channels-last
    labels: Tensor  # -100: broken, ignored by the loss


class Preparer:
    """Turns a raw batch into one that is ready on the device. For one thread at a time."""

    def __init__(
        self,
        files: ImageFiles,
        device: torch.device,
        dtype: torch.dtype,
        *,
        side: int,
        smallest: float | None,
        seed: int,
        skip_broken: bool,
    ) -> None:
        self._files, self._device, self._dtype = files, device, dtype
        self._side, self._smallest = side, smallest
        self._random = torch.Generator().manual_seed(seed)
        self._skip_broken = skip_broken
        self._told = False
        self.skipped = 0

    def prepare(self, raw: RawBatch) -> Batch:
        if raw.lengths is None:
            pixels = raw.data.to(self._device, non_blocking=True)
        else:
            pixels = self._decode(raw, raw.data.split(raw.lengths))
        self._judge(raw)
        labels = raw.labels.to(self._device, non_blocking=True)
        return Batch(normalise(pixels, self._dtype), labels)

    def _decode(self, raw: RawBatch, encoded: tuple[Tensor, ...]) -> Tensor:
        images = decode_on_gpu(encoded, self._device) if not raw.problems else None
        if images is None:  # which one is it?
            if not self._told and not raw.problems:
                self._told = True
                print(
                    "GPU cannot decode a batch; retrying each image",
                    file=sys.stderr,
                    flush=True,
                )
            images = [
                self._decode_one(raw, index, data)
                for index, data in zip(raw.indices.tolist(), encoded, strict=True)
            ]
        boxes, flips = choose_crops(images, self._smallest, self._random)
        return crop_and_resize(images, boxes, flips, self._side, self._dtype)

    def _decode_one(self, raw: RawBatch, index: int, data: Tensor) -> Tensor:
        alone = decode_on_gpu((data,), self._device) if len(data) else None
        if alone is not None:
            return alone[0]
        image = decode(data) if len(data) else "empty"
        if isinstance(image, str):
            if index not in dict(raw.problems):
                raw.problems.append((index, image))
            image = torch.zeros(3, 1, 1, dtype=torch.uint8)
        return image.to(self._device)

    def _judge(self, raw: RawBatch) -> None:
        """Keep a broken image in its batch, black and without a label: compiled kernels and the
        other ranks rely on the size of batches."""
        if not raw.problems:
            return
        broken = [self._files.samples[index][0] for index, _ in raw.problems]
        if not self._skip_broken:
            raise BrokenImage(broken[0], raw.problems[0][1])
        self.skipped += len(broken)
        for path, (index, problem) in zip(broken, raw.problems, strict=True):
            print(f"skipped {path}: {problem}", file=sys.stderr, flush=True)
            raw.labels[raw.indices == index] = -100


def decode_on_gpu(encoded: tuple[Tensor, ...], device: torch.device) -> list[Tensor] | None:
    """Decode all images; None if one is broken or of a kind that nvJPEG does not support."""
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        return decode_jpeg(list(encoded), ImageReadMode.RGB, device)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError):
        return None


def can_decode_on_gpu(device: torch.device) -> bool:
    """Try it. This also loads nvJPEG, which saves half a second in the first epoch."""
    if device.type != "cuda":
        return False
    try:
        from torchvision.io import encode_jpeg

        small = encode_jpeg(torch.zeros(3, 64, 64, dtype=torch.uint8))
    except (ImportError, RuntimeError):
        return False
    return decode_on_gpu((small,), device) is not None


class CpuBatches:
    """The wait is the time from the request for a batch until it is ready."""

    def __init__(self, raw: Iterator[RawBatch], preparer: Preparer) -> None:
        self._raw, self._preparer = raw, preparer
        self._waited_s = 0.0

    def __iter__(self) -> "CpuBatches":
        return self

    def __next__(self) -> Batch:
        asked = time.perf_counter()
        try:
            return self._preparer.prepare(next(self._raw))
        finally:
            self._waited_s += time.perf_counter() - asked

    def waited_s(self) -> float:
        return self._waited_s

    def close(self) -> None:
        pass


class GpuBatches:
    """The wait is the time in which the training's stream was idle because no batch was ready.

    The trainer's Python runs ahead of the GPU, so the time that it blocks here means nothing: the
    GPU may still be busy with the previous step. And a batch whose decoding is only enqueued would
    cost no time here, but much later. So the thread returns a batch only when the GPU has finished
    it, and two events in the training's stream enclose the request: the first is reached when the
    previous step is done, the second when the batch is ready. If data arrives in time, both are
    reached within microseconds; if not, the GPU was idle between them.
    """

    def __init__(self, raw: Iterator[RawBatch], preparer: Preparer, device: torch.device) -> None:
        self._raw, self._preparer, self._device = raw, preparer, device
        self._ready: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
        self._places = threading.Semaphore(_AHEAD)
        self._closed = False
        self._asked: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._thread = threading.Thread(target=self._make, name="batches", daemon=True)
        self._thread.start()

    def __iter__(self) -> "GpuBatches":
        return self

    def __next__(self) -> Batch:
        stream = torch.cuda.current_stream(self._device)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record(stream)
        ready = self._ready.get()
        after.record(stream)
        self._asked.append((before, after))
        if isinstance(ready, BaseException):
            raise ready
        if ready is None:
            raise StopIteration
        # Allocated on the other stream, which must not reuse the memory before we are done.
        ready.images.record_stream(stream)
        ready.labels.record_stream(stream)
        self._places.release()
        return ready

    def waited_s(self) -> float:
        torch.cuda.synchronize(self._device)
        return sum(before.elapsed_time(after) for before, after in self._asked) / 1000

    def close(self) -> None:
        self._closed = True
        self._places.release()
        self._thread.join(5)  # takes longer only if storage hangs; then it ends with the process

    def _make(self) -> None:
        torch.cuda.set_device(self._device)
        stream: Any = torch.cuda.Stream(self._device)
        last: BaseException | None = None
        try:
            with torch.cuda.stream(stream):
                for raw in self._raw:
                    self._places.acquire()
                    if self._closed:
                        return
                    batch = self._preparer.prepare(raw)
                    # Also for the decoder, which writes from its own stream into memory that
                    # work still queued on ours may be reading (torchvision pull request 9606).
                    stream.synchronize()
                    self._ready.put(batch)
                    del batch, raw
        except BaseException as error:  # noqa: BLE001 (re-raised in the trainer)
            last = error
        self._ready.put(last)


class FixedBatches:
    """The ceiling: the same few batches, kept on the device, again and again."""

    def __init__(self, batches: list[Batch], steps: int) -> None:
        self._batches, self._steps, self._step = batches, steps, 0

    def __iter__(self) -> "FixedBatches":
        return self

    def __next__(self) -> Batch:
        if self._step == self._steps:
            raise StopIteration
        self._step += 1
        return self._batches[self._step % len(self._batches)]

    def waited_s(self) -> float:
        return 0.0

    def close(self) -> None:
        pass
