"""Many samples in one file: TFRecords of tf.train.Example, and WebDataset's tars.

Written by hand, so that neither TensorFlow nor a protobuf library is needed. Pure: pictures in,
bytes out.

A TFRecord is its length (8 bytes, little-endian), the masked CRC-32C of those, the data, and the
masked CRC-32C of the data. The Example in it has `image/encoded` and `image/class/label`, which
counts from 1, as ImageNet's do (0 is the background).
"""

import io
import tarfile
from collections.abc import Iterator

from penstock.bench.experiments.crc32c import Running, crc32c, masked
from penstock.bench.experiments.pictures import Picture

RECORD_HEAD, RECORD_FOOT = 12, 4
TAR_BLOCK = 512


def record(picture: Picture) -> Iterator[bytes]:
    """The pieces of one TFRecord."""
    before, after = _example_around(picture)
    length = (len(before) + picture.size_bytes + len(after)).to_bytes(8, "little")
    crc = Running()
    crc.add(before)
    for piece in picture.pieces:
        if isinstance(piece, int):
            crc.add_zeros(piece)
        else:
            crc.add(piece)
    crc.add_part(picture.tail.part)
    crc.add(after)
    yield length
    yield _checksum(crc32c(length))
    yield before
    yield picture.data
    yield after
    yield _checksum(crc.value)


def tar_members(number: int, picture: Picture) -> Iterator[bytes]:
    """The two members of one sample: NUMBER.jpg and NUMBER.cls, its label counted from 0."""
    yield from _member(f"{number:08}.jpg", picture.data)
    yield from _member(f"{number:08}.cls", str(picture.label).encode())


TAR_END = bytes(2 * TAR_BLOCK)


def _checksum(crc: int) -> bytes:
    return masked(crc).to_bytes(4, "little")


def _example_around(picture: Picture) -> tuple[bytes, bytes]:
    """What stands before and after the JPEG in the Example that carries it.

    Example{features=1: Features{feature=1: map<string, Feature>}}; a map's entry has its key in
    field 1 and its value in field 2; Feature has a bytes_list in 1 and an int64_list in 3, both
    with their values in field 1.
    """
    label = _field(3, _field(1, _varint(picture.label + 1)))  # packed
    label_entry = _field(1, _field(1, b"image/class/label") + _field(2, label))
    # From the inside to the outside: each head needs the length of all that it holds.
    heads, size = b"", picture.size_bytes
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
    """Whether a file that begins with these bytes is a tar."""
    try:
        with tarfile.open(fileobj=io.BytesIO(head)):
            return True
    except tarfile.TarError:
        return False
