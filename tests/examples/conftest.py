"""The data that the examples read, in a bucket and on a mount, and how one is run."""

import io
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from PIL import Image

from tests.conftest import S3, Mount, Mounter, write_tree

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CLASSES = ("cat", "dog", "owl")
TABLES = [[(number + row) % 3 for row in range(100)] for number in range(5)]


def jpeg(seed: int) -> bytes:
    pixels = numpy.random.default_rng(seed).integers(0, 255, (40, 48, 3), dtype=numpy.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG")
    return encoded.getvalue()


SAMPLES = {f"{i:04}": (jpeg(i), b"%d" % (i % 3)) for i in range(48)}


@dataclass(frozen=True)
class Stage:
    """A folder of data twice: in a bucket that is mounted, and plain."""

    mount: Mount
    plain: Path

    @property
    def files(self) -> int:
        return sum(path.is_file() for path in self.plain.rglob("*"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For arithmetic, as in the processes of `run`: sums are the same then."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_this_process(test: Callable[..., None]) -> Callable[..., None]:
    """For a test that trains here as well: the import of torch and what its optimizers load take
    longer than what the examples learn. From Python 3.12 on, a fork beside threads warns."""
    ignore = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    return ignore(pytest.mark.usefixtures("one_thread")(test))


@pytest.fixture
def images(s3: S3, mounter: Mounter) -> Stage:
    """A folder of JPEGs for each class."""
    bucket = s3.bucket(f"images-{random.randbytes(6).hex()}")
    write_tree(bucket, {
        f"{name}/{number:02}.jpg": jpeg(seed * 100 + number)
        for seed, name in enumerate(CLASSES) for number in range(16)
    })  # fmt: skip
    return Stage(mounter(f"s3://{bucket.name}", "--endpoint", s3.endpoint), bucket)


@pytest.fixture
def shards(s3: S3, mounter: Mounter) -> Stage:
    """Six tar files of eight samples."""
    bucket = s3.bucket(f"shards-{random.randbytes(6).hex()}")
    for number in range(6):
        with tarfile.open(bucket / f"{number:04}.tar", "w") as tar:
            for key, (image, label) in list(SAMPLES.items())[number::6]:
                for name, data in ((f"{key}.jpg", image), (f"{key}.cls", label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return Stage(mounter(f"s3://{bucket.name}", "--endpoint", s3.endpoint), bucket)


@pytest.fixture
def tables(s3: S3, mounter: Mounter) -> Stage:
    """Five Parquet files, and forty notes beside them."""
    bucket = s3.bucket(f"tables-{random.randbytes(6).hex()}")
    write_tree(bucket, {f"notes/{i:02}.txt": b"note %02d" % i for i in range(40)})
    for number, labels in enumerate(TABLES):
        table = pandas.DataFrame({"label": labels, "text": [f"row {row}" for row in range(100)]})
        table.to_parquet(bucket / f"{number}.parquet")
    return Stage(mounter(f"s3://{bucket.name}", "--endpoint", s3.endpoint), bucket)


def run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """`python EXAMPLE...`, as its README says; offline, and with one thread for arithmetic. `more`
    goes into its environment."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, text=True, timeout=90, check=False, env=environment,
    )  # fmt: skip


def output(*words: object) -> str:
    result = run(*words)
    assert result.returncode == 0, result.stderr
    assert "plan" not in result.stderr  # the mount took it; otherwise that is said
    return result.stdout
