"""Samples to train on: JPEGs in the sizes of ImageNet's, alone or in shards; written and read.

A few hundred different pictures are encoded, in classes that a network can tell apart: stripes of
a colour and a direction of the class's own below the same grain. Each file is one of them, with
JPEG comments that hold the file's number and zeros, up to the size drawn for it. So every file
is a picture that decodes and no two are the same, but pixels do repeat, and about a sixth of the
bytes are padding that a store which compresses would save. Sizes are drawn log-normally around
110 KiB, the mean of ImageNet's training images; the spread is ours (0.5), and so are the bounds.

Shards are TFRecords of tf.train.Example and WebDataset's tars, written by hand so that neither
TensorFlow nor a protobuf library is needed. A TFRecord is its length (8 bytes, little-endian), the
masked CRC-32C of those, the data, and the masked CRC-32C of the data. The Example has
`image/encoded` and `image/class/label`, which counts from 1, as ImageNet's do (0 is the
background).
"""

import io
import math
import os
import random
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from penstock.bench.readers import BUFFER_BYTES, read_whole
from penstock.units import KIB, MIB

if TYPE_CHECKING:
    from PIL.Image import Image

_MASK_DELTA = 0xA282EAD8  # of TFRecord's masked form


def crc32c(data: bytes) -> int:
    import google_crc32c  # an extra: only making TFRecords needs it

    return cast(int, google_crc32c.value(data))


def masked(crc: int) -> int:
    """Return a CRC as TFRecord stores it: a CRC of data that holds CRCs is no good check."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


CLASSES = 10
_PICTURES_PER_CLASS = 20
_SPREAD = 0.5
_LEAST_BYTES, _MOST_BYTES = 16 * KIB, 2 * MIB
_SCALES = (0.3, 1.9)  # of 500 by 375 pixels: about 10 KiB to 400 KiB
_TEXTURE_PIXELS = 1024
_QUALITY = 94
_MARKER = b"\xff\xd8"  # the start of every JPEG; comments may follow at once
_COMMENT_HEAD = 4
_COMMENT_MOST = 0xFFFF - 2
_NUMBER_BYTES = 16


@dataclass(frozen=True, slots=True)
class Picture:
    data: bytes  # a JPEG
    label: int


class PictureBook:
    """Pictures by number, always the same for a seed."""

    def __init__(self, seed: int, mean_bytes: int) -> None:
        self._seed = seed
        self._mean_bytes = mean_bytes
        draw = random.Random(seed)
        texture = make_texture(draw, _TEXTURE_PIXELS)
        self._tails = [
            sorted(_encode_class(label, texture, draw), key=len) for label in range(CLASSES)
        ]
        self._sizes = [[len(tail) for tail in tails] for tails in self._tails]

    def picture(self, number: int) -> Picture:
        label = number % CLASSES
        draw = random.Random(f"{self._seed}/{number}")
        wanted = self._draw_size(draw)
        sizes = self._sizes[label]
        # One of the two largest that fit, which keeps the padding small.
        most = bisect_right(sizes, wanted - len(_MARKER) - _COMMENT_HEAD - _NUMBER_BYTES)
        place = max(0, most - 1 - draw.randrange(min(2, max(1, most))))
        room = wanted - len(_MARKER) - sizes[place]
        return Picture(_MARKER + _comments(number, room) + self._tails[label][place], label)

    def _draw_size(self, draw: random.Random) -> int:
        middle = math.log(self._mean_bytes) - _SPREAD**2 / 2  # so that the mean is the mean
        size = int(draw.lognormvariate(middle, _SPREAD))
        return min(max(size, _LEAST_BYTES), _MOST_BYTES)


def class_name(label: int) -> str:
    """As ImageNet's folders are called."""
    return f"n{1_440_764 + 7919 * label:08}"


def _comments(number: int, room: int) -> bytes:
    """Return comments of `room` bytes together, the number in the first of them, then zeros."""
    text = f"{number:0{_NUMBER_BYTES}}".encode()
    room = max(room, _COMMENT_HEAD + len(text))
    comments = bytearray()
    while room >= _COMMENT_HEAD:
        size = min(room - _COMMENT_HEAD, _COMMENT_MOST)
        if 0 < room - _COMMENT_HEAD - size < _COMMENT_HEAD:
            size -= _COMMENT_HEAD  # the rest must be large enough for a comment of its own
        comments += b"\xff\xfe" + (size + 2).to_bytes(2, "big") + text + bytes(size - len(text))
        room -= _COMMENT_HEAD + size
        text = b""
    return bytes(comments)


def _encode_class(label: int, texture: "Image", draw: random.Random) -> list[bytes]:
    """Return the pictures of a class without their marker, each somewhat larger than the one
    before."""
    from PIL import Image  # an extra: only making data sets needs it

    side = texture.width
    low, high = (math.log(scale) for scale in _SCALES)
    tails: list[bytes] = []
    for index in range(_PICTURES_PER_CLASS):
        scale = math.exp(low + (high - low) * (index + draw.random()) / _PICTURES_PER_CLASS)
        width, height = int(500 * scale), int(375 * scale)
        left, top = draw.randrange(side - width), draw.randrange(side - height)
        grain = texture.crop((left, top, left + width, top + height))
        stripes = _stripes(label, draw).resize((width, height), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        Image.blend(grain, stripes, 0.4).save(buffer, "JPEG", quality=_QUALITY)
        tails.append(buffer.getvalue()[len(_MARKER) :])
    return tails


def _stripes(label: int, draw: random.Random) -> "Image":
    """32 by 32 pixels of what makes the class: a colour, and waves in a direction."""
    from PIL import Image

    turn = math.pi * label / CLASSES
    phase, waves = draw.random() * 2 * math.pi, 2 + label % 3
    colour = [0.5 + 0.5 * math.cos(2 * turn + shift) for shift in (0.0, 2.1, 4.2)]
    pixels = bytearray()
    for y in range(32):
        for x in range(32):
            along = (x * math.cos(turn) + y * math.sin(turn)) / 32
            light = 0.5 + 0.5 * math.sin(2 * math.pi * waves * along + phase)
            pixels += bytes(int(255 * light * part) for part in colour)
    return Image.frombytes("RGB", (32, 32), bytes(pixels))


def make_texture(draw: random.Random, side: int) -> "Image":
    """Return the image that pictures are cut from. Photographs have broad shapes and fine grain;
    both matter for how JPEG compresses them."""
    from PIL import Image  # an extra: only making pictures needs it

    shapes = Image.frombytes("RGB", (32, 32), draw.randbytes(32 * 32 * 3))
    grain = Image.frombytes("RGB", (side // 2, side // 2), draw.randbytes(side * side * 3 // 4))
    return Image.blend(
        shapes.resize((side, side), Image.Resampling.BICUBIC),
        grain.resize((side, side), Image.Resampling.BILINEAR),
        0.37,
    )


RECORD_HEAD, RECORD_FOOT = 12, 4
TAR_BLOCK = 512


def record(picture: Picture) -> Iterator[bytes]:
    """Yield the pieces of one TFRecord."""
    before, after = _example_around(picture)
    data = before + picture.data + after
    length = len(data).to_bytes(8, "little")
    yield length
    yield _checksum(length)
    yield data
    yield _checksum(data)


def tar_members(number: int, picture: Picture) -> Iterator[bytes]:
    """Yield the two members of one sample: NUMBER.jpg, and NUMBER.cls with its label from 0."""
    yield from _member(f"{number:08}.jpg", picture.data)
    yield from _member(f"{number:08}.cls", str(picture.label).encode())


TAR_END = bytes(2 * TAR_BLOCK)


def _checksum(data: bytes) -> bytes:
    return masked(crc32c(data)).to_bytes(4, "little")


def _example_around(picture: Picture) -> tuple[bytes, bytes]:
    """Return what stands before and after the JPEG in its Example.

    Example{features=1: Features{feature=1: map<string, Feature>}}; a map's entry has its key in
    field 1 and its value in field 2; Feature has a bytes_list in 1 and an int64_list in 3, both
    with their values in field 1.
    """
    label = _field(3, _field(1, _varint(picture.label + 1)))  # packed
    label_entry = _field(1, _field(1, b"image/class/label") + _field(2, label))
    # From the inside to the outside: each head needs the length of all that it holds.
    heads, size = b"", len(picture.data)
    for number in (1, 1):  # the value, the bytes_list
        head = _head(number, size)
        heads, size = head + heads, size + len(head)
    head = _field(1, b"image/encoded") + _head(2, size)
    heads, size = head + heads, size + len(head)
    head = _head(1, size)
    heads, size = head + heads, size + len(head)
    return _head(1, size + len(label_entry)) + heads, label_entry


def _field(number: int, content: bytes) -> bytes:
    return _head(number, len(content)) + content


def _head(number: int, size_bytes: int) -> bytes:
    return bytes([number << 3 | 2]) + _varint(size_bytes)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _member(name: str, content: bytes) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    # The plain old format: one block, whatever the name; no time, so that bytes do not differ.
    yield info.tobuf(tarfile.USTAR_FORMAT)
    yield content
    yield bytes(-len(content) % TAR_BLOCK)


def is_tar(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a tar."""
    try:
        with tarfile.open(fileobj=io.BytesIO(head)):
            return True
    except tarfile.TarError:
        return False


SampleReader = Callable[[str], Iterator[int]]  # the sizes of a file's samples, as they are read


def sample_reader(layout: str) -> SampleReader:
    """Return a reader for one thread: it has a buffer of its own."""
    if layout == "tfrecord":
        return _records
    if layout == "webdataset":
        return _tar_samples
    buffer = [bytearray(BUFFER_BYTES)]

    def whole_file(path: str) -> Iterator[int]:
        yield read_whole(path, buffer)

    return whole_file


def count_samples(path: Path, layout: str) -> int:
    if layout == "files":
        return 1
    return sum(1 for _ in sample_reader(layout)(os.fspath(path)))


def _records(path: str) -> Iterator[int]:
    with open(path, "rb", buffering=BUFFER_BYTES) as file:
        while head := _take(file, RECORD_HEAD, path, may_end=True):
            length = int.from_bytes(head[:8], "little") + RECORD_FOOT
            _take(file, length, path)
            yield RECORD_HEAD + length


def _tar_samples(path: str) -> Iterator[int]:
    """Yield samples: adjacent members whose names are the same up to the first dot."""
    sample, size_bytes = b"", 0
    with open(path, "rb", buffering=BUFFER_BYTES) as file:
        while head := _take(file, TAR_BLOCK, path, may_end=True):
            if not any(head):  # the end of the archive, and what pads it
                size_bytes += TAR_BLOCK
                continue
            stem = head[:100].rstrip(b"\0").split(b".", 1)[0]
            if sample and stem != sample:
                yield size_bytes
                size_bytes = 0
            sample = stem
            length = int(head[124:136].rstrip(b"\0 "), 8)
            length += -length % TAR_BLOCK
            _take(file, length, path)
            size_bytes += TAR_BLOCK + length
    if size_bytes:
        yield size_bytes


def _take(file: BinaryIO, size_bytes: int, path: str, *, may_end: bool = False) -> bytes:
    data = file.read(size_bytes)
    if len(data) != size_bytes and (data or not may_end):
        raise OSError(f"{path}: ends in the middle of a sample")
    return data
