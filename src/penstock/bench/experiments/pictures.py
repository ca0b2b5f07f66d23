"""JPEGs in the sizes of ImageNet's, by the thousand, without encoding thousands.

A few hundred different pictures are encoded, in classes that a network can tell apart: stripes of
a colour and a direction of the class's own below the same grain. Each file is one of them, with
JPEG comments that hold the file's number and zeros, up to the size drawn for it. So every file
is a picture that decodes and no two are the same, but pixels do repeat, and about a sixth of the
bytes are padding that a store which compresses would save.

Sizes are drawn log-normally around 110 KiB, the mean of ImageNet's training images; the spread is
ours (0.5), and so are the bounds.
"""

import io
import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.bench.dataset import make_texture
from penstock.bench.experiments.crc32c import Part
from penstock.units import KIB, MIB

if TYPE_CHECKING:
    from PIL.Image import Image

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


@dataclass(frozen=True)
class Tail:
    """A JPEG without the marker that each begins with. Many files share one."""

    data: bytes

    @cached_property
    def part(self) -> Part:
        """For checksums; takes 10 ms, and is only wanted for TFRecords."""
        return Part.of(self.data)


@dataclass(frozen=True, slots=True)
class Picture:
    """A JPEG in pieces: what is new in it, zeros between, and a tail shared with others."""

    pieces: tuple[bytes | int, ...]  # bytes, or a number of zeros
    tail: Tail
    label: int

    @property
    def size_bytes(self) -> int:
        return len(self.tail.data) + sum(
            piece if isinstance(piece, int) else len(piece) for piece in self.pieces
        )

    @property
    def data(self) -> bytes:
        head = [bytes(piece) if isinstance(piece, int) else piece for piece in self.pieces]
        return b"".join([*head, self.tail.data])


class PictureBook:
    """Pictures by number, always the same for a seed."""

    def __init__(self, seed: int, mean_bytes: int) -> None:
        self._seed = seed
        self._mean_bytes = mean_bytes
        draw = random.Random(seed)
        texture = make_texture(draw, _TEXTURE_PIXELS)
        self._tails = [
            sorted(_encode_class(label, texture, draw), key=lambda tail: len(tail.data))
            for label in range(CLASSES)
        ]
        self._sizes = [[len(tail.data) for tail in tails] for tails in self._tails]

    def picture(self, number: int) -> Picture:
        label = number % CLASSES
        draw = random.Random(f"{self._seed}/{number}")
        wanted = self._draw_size(draw)
        sizes = self._sizes[label]
        # One of the two largest that fit, which keeps the padding small.
        most = bisect_right(sizes, wanted - len(_MARKER) - _COMMENT_HEAD - _NUMBER_BYTES)
        place = max(0, most - 1 - draw.randrange(min(2, max(1, most))))
        room = wanted - len(_MARKER) - sizes[place]
        return Picture(
            pieces=(_MARKER, *_comments(number, room)),
            tail=self._tails[label][place],
            label=label,
        )

    def _draw_size(self, draw: random.Random) -> int:
        middle = math.log(self._mean_bytes) - _SPREAD**2 / 2  # so that the mean is the mean
        size = int(draw.lognormvariate(middle, _SPREAD))
        return min(max(size, _LEAST_BYTES), _MOST_BYTES)


def class_name(label: int) -> str:
    """As ImageNet's folders are called."""
    return f"n{1_440_764 + 7919 * label:08}"


def _comments(number: int, room: int) -> list[bytes | int]:
    """Comments of `room` bytes together, the number in the first of them."""
    text = f"{number:0{_NUMBER_BYTES}}".encode()
    room = max(room, _COMMENT_HEAD + len(text))
    pieces: list[bytes | int] = []
    while room >= _COMMENT_HEAD:
        size = min(room - _COMMENT_HEAD, _COMMENT_MOST)
        if 0 < room - _COMMENT_HEAD - size < _COMMENT_HEAD:
            size -= _COMMENT_HEAD  # the rest must be large enough for a comment of its own
        pieces += [b"\xff\xfe" + (size + 2).to_bytes(2, "big") + text, size - len(text)]
        room -= _COMMENT_HEAD + size
        text = b""
    return pieces


def _encode_class(label: int, texture: "Image", draw: random.Random) -> list[Tail]:
    """The pictures of a class, each somewhat larger than the one before."""
    from PIL import Image  # an extra: only who makes data sets needs it

    side = texture.width
    low, high = (math.log(scale) for scale in _SCALES)
    tails: list[Tail] = []
    for index in range(_PICTURES_PER_CLASS):
        scale = math.exp(low + (high - low) * (index + draw.random()) / _PICTURES_PER_CLASS)
        width, height = int(500 * scale), int(375 * scale)
        left, top = draw.randrange(side - width), draw.randrange(side - height)
        grain = texture.crop((left, top, left + width, top + height))
        stripes = _stripes(label, draw).resize((width, height), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        Image.blend(grain, stripes, 0.4).save(buffer, "JPEG", quality=_QUALITY)
        tails.append(Tail(buffer.getvalue()[len(_MARKER) :]))
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
