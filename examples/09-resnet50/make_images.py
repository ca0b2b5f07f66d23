"""Draws a small data set that a model can learn: `python make_images.py FOLDER`.

Each class has its own pattern (colours, and stripes, rings or spots of some direction and
width) under changing light, place and grain; FOLDER/train/CLASS/NUMBER.jpg and FOLDER/val/… With
--bytes the files become as large as asked, for measuring: ImageNet's are 500x375 and 110 KiB.
"""

import argparse
import io
import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy
from PIL import Image

_QUALITY = 90
_LARGEST = 1600  # pixels of a side


@dataclass(frozen=True)
class Look:
    width: int
    height: int
    grain: float  # deviation of the noise, which decides how well a JPEG compresses
    seed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--train", type=int, default=40, help="images of each class")
    parser.add_argument("--val", type=int, default=10, help="images of each class")
    parser.add_argument("--size", default="96x80", metavar="WxH", help="average size")
    parser.add_argument("--bytes", type=int, metavar="N", help="average size of a file: 112640")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    width, height = (int(number) for number in options.size.split("x"))
    if max(width, height) > _LARGEST:
        parser.error(f"--size: up to {_LARGEST} pixels")
    look = Look(width, height, grain=12.0, seed=options.seed)
    if options.bytes:
        look = with_bytes(look, options.bytes, options.classes)
    jobs = [
        (options.folder / part / f"class{label:03}" / f"{number:05}.jpg", label, first + number)
        for part, count, first in (("train", options.train, 0), ("val", options.val, 1_000_000))
        for label in range(options.classes)
        for number in range(count)
    ]
    for folder in {path.parent for path, _, _ in jobs}:
        folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.workers) as pool:
        size_bytes = sum(pool.map(partial(_write, look, options.classes), jobs, chunksize=64))
    mean_kib = size_bytes / len(jobs) / 1024
    print(f"{len(jobs):,} images, {size_bytes:,} bytes, {mean_kib:.1f} KiB each on average")


def with_bytes(look: Look, wanted: int, classes: int) -> Look:
    """Return the drawing with the grain that makes JPEGs of that size."""
    low, high = 0.0, 128.0
    for _ in range(10):
        look = Look(look.width, look.height, (low + high) / 2, look.seed)
        sizes = [len(encode(look, label % classes, classes, label)) for label in range(12)]
        if sum(sizes) / len(sizes) < wanted:
            low = look.grain
        else:
            high = look.grain
    if look.grain > 120:
        raise SystemExit(f"{look.width}x{look.height} is too small for files of {wanted:,} bytes")
    return look


def encode(look: Look, label: int, classes: int, number: int) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(draw(look, label, classes, number)).save(encoded, "JPEG", quality=_QUALITY)
    return encoded.getvalue()


def draw(look: Look, label: int, classes: int, number: int) -> numpy.ndarray:
    random = numpy.random.default_rng((look.seed, label, number))
    width = max(8, round(look.width * random.uniform(0.8, 1.2)))
    height = max(8, round(look.height * random.uniform(0.8, 1.2)))
    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.float32)
    middle = random.uniform(0.25, 0.75, 2) * (height, width)
    angle = math.pi * ((label * 0.37) % 1) + random.normal(0, 0.08)
    wave = (3 + label % 4 * 3) * 2 * math.pi / width * random.uniform(0.85, 1.15)
    along = (x - middle[1]) * math.cos(angle) + (y - middle[0]) * math.sin(angle)
    across = (y - middle[0]) * math.cos(angle) - (x - middle[1]) * math.sin(angle)
    pattern = (
        numpy.sin(along * wave),
        numpy.sin(numpy.hypot(x - middle[1], y - middle[0]) * wave),
        numpy.sin(along * wave) * numpy.sin(across * wave),
    )[label % 3]
    hue = 2 * math.pi * label / classes + numpy.array([0, 2.1, 4.2]) + random.normal(0, 0.25)
    colour = numpy.cos(hue).astype(numpy.float32) * 45
    light = random.uniform(90, 165) + random.uniform(-20, 20, 3).astype(numpy.float32)
    image = light + pattern[..., None] * (colour + random.uniform(15, 35))
    noise = _noise()
    top = random.integers(0, len(noise) - height + 1)
    left = random.integers(0, len(noise) - width + 1)
    image += noise[top : top + height, left : left + width] * numpy.float32(look.grain)
    return image.clip(0, 255).astype(numpy.uint8)


@cache
def _noise() -> numpy.ndarray:
    """Noise of which each image takes a piece: drawing it for each would take most of the time."""
    return numpy.random.default_rng(1).standard_normal((2048, 2048, 3), dtype=numpy.float32)


def _write(look: Look, classes: int, job: tuple[Path, int, int]) -> int:
    path, label, number = job
    return path.write_bytes(encode(look, label, classes, number))


if __name__ == "__main__":
    main()
