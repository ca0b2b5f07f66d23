"""Reads samples as a training does: a file whole, or a shard from its start to its end.

Nothing is decoded and no byte is kept: what is asked is whether storage keeps up. The sizes that a
file's samples have add up to the file's own, so that what was read can be held against what there
is. Standard library only. No state, any thread.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.bench.experiments.shards import RECORD_FOOT, RECORD_HEAD, TAR_BLOCK
from penstock.bench.readers import BUFFER_BYTES, read_whole

SampleReader = Callable[[str], Iterator[int]]  # the sizes of a file's samples, as they are read


def sample_reader(layout: str) -> SampleReader:
    """For one thread: it has a buffer of its own."""
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
    """A sample is all members in a row whose names are the same up to the first dot."""
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
