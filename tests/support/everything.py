"""A bucket with a bit of everything, and a mount of it."""

import random
from dataclasses import dataclass
from pathlib import Path

from tests.support.mounts import Mount
from tests.support.s3 import ObjectPath

SAMPLES = {
    f"n{i // 20:04}/img{i:05}.jpg": random.Random(i).randbytes(10_000 + 331 * i) for i in range(100)
}
DATA = {
    **SAMPLES,
    "empty": b"",
    "labels/with space/ünï.txt": "0 katze\n1 Hündin\n".encode(),
    "labels/odd 'quotes\".csv": b"a,b\n",
}
LARGE = random.Random(20).randbytes(9 * 1024 * 1024 + 12345)
UNREAD = 9
WIDE = 1000  # more than one READDIR holds


@dataclass(frozen=True)
class Mounted:
    """A mount of data/ (DATA), large.bin (LARGE), wide/ (WIDE files), unread/ (UNREAD files)."""

    path: Path
    source: ObjectPath
    mode: str
    state: Path

    @property
    def mount(self) -> Mount:
        return Mount(self.path)
