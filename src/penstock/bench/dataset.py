"""Data to read: an ImageNet-like set of real JPEGs, and files of an exact size.

Made from a seed, so that two runs read the same bytes. Knows nothing of who serves or reads them.
"""

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.units import KIB, MIB

if TYPE_CHECKING:
    from PIL.Image import Image

SMALL_BYTES = 110 * KIB  # the mean of ImageNet's training images
LARGE_BYTES = 128 * MIB
_FILES_PER_CLASS = 250
# Random bytes are made once and cut differently for each file: 1 GiB then costs what writing it
# costs, where the generator alone would take 3 s.
_POOL_BYTES = 16 * MIB
_TEXTURE_PIXELS = 2048


@dataclass(frozen=True, slots=True)
class Entry:
    path: str  # below the root, with forward slashes: also the key in the bucket
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    root: Path
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def make_jpegs(root: Path, files: int, *, seed: int = 0) -> Dataset:
    """Pictures of 500 by 375 pixels give or take, 110 KiB in the mean, in class folders."""
    draw = random.Random(seed)
    side = _TEXTURE_PIXELS
    texture = make_texture(draw, side)

    def encode(index: int) -> bytes:
        scale = min(max(draw.lognormvariate(0, 0.22), 0.35), 2.5)
        width, height = int(500 * scale), int(375 * scale)
        left, top = draw.randrange(side - width), draw.randrange(side - height)
        buffer = io.BytesIO()
        texture.crop((left, top, left + width, top + height)).save(buffer, "JPEG", quality=94)
        return buffer.getvalue()

    return _write(root, "jpegs", _class_paths(files, "JPEG"), encode)


def make_texture(draw: random.Random, side: int) -> "Image":
    """What pictures are cut from. Photographs have broad shapes and fine grain; both matter for
    how JPEG compresses them."""
    from PIL import Image  # an extra: only who makes pictures needs it

    shapes = Image.frombytes("RGB", (32, 32), draw.randbytes(32 * 32 * 3))
    grain = Image.frombytes("RGB", (side // 2, side // 2), draw.randbytes(side * side * 3 // 4))
    return Image.blend(
        shapes.resize((side, side), Image.Resampling.BICUBIC),
        grain.resize((side, side), Image.Resampling.BILINEAR),
        0.37,
    )


def make_small(root: Path, files: int, *, seed: int = 0, size_bytes: int = SMALL_BYTES) -> Dataset:
    """Files of exactly 110 KiB of random bytes, in class folders."""
    pool = random.Random(seed).randbytes(_POOL_BYTES)
    return _write(
        root, "small", _class_paths(files, "bin"), lambda index: sized(pool, index, size_bytes)
    )


def make_large(root: Path, files: int, *, size_bytes: int = LARGE_BYTES, seed: int = 0) -> Dataset:
    """Shards of exactly `size_bytes` of random bytes, in one folder."""
    pool = random.Random(seed).randbytes(_POOL_BYTES)
    paths = [f"shards/train-{index:05}.tar" for index in range(files)]
    return _write(root, "large", paths, lambda index: sized(pool, index, size_bytes))


def sized(pool: bytes, index: int, size_bytes: int) -> bytes:
    """File number `index`: begins with its number, goes on with the pool from its own place."""
    start = index * 104_729 % len(pool)  # a prime: neighbours share no aligned block
    turned = memoryview(pool)
    content = bytearray(index.to_bytes(8, "big"))
    while len(content) < size_bytes:
        content += turned[start : start + size_bytes - len(content)]
        start = 0
    return bytes(content)


def _class_paths(files: int, suffix: str) -> list[str]:
    """Names as in ImageNet: n01440764/n01440764_000012.JPEG."""
    paths: list[str] = []
    for index in range(files):
        name = f"n{1_440_764 + 7919 * (index // _FILES_PER_CLASS):08}"
        paths.append(f"{name}/{name}_{index:06}.{suffix}")
    return paths


def _write(
    root: Path, name: str, paths: Sequence[str], content_of: Callable[[int], bytes]
) -> Dataset:
    entries: list[Entry] = []
    for folder in sorted({path.rsplit("/", 1)[0] for path in paths}):
        (root / folder).mkdir(parents=True)
    for index, path in enumerate(paths):
        content = content_of(index)
        (root / path).write_bytes(content)
        entries.append(Entry(path, len(content)))
    return Dataset(name, root, tuple(entries))
