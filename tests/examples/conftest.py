"""The data that the examples read, in a bucket and on a mount."""

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pandas
import pytest
import torch

from tests.support.examples import CLASSES, SAMPLES, TABLES, Stage, jpeg
from tests.support.mounts import Mounter
from tests.support.s3 import S3
from tests.support.trees import read_tree, write_tree


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For arithmetic, as in the processes of `run`: sums are the same then."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    folder.mkdir()
    return folder


@pytest.fixture
def upload(s3: S3, mounter: Mounter, plain: Path) -> Callable[[], Stage]:
    """upload() copies the plain folder into a bucket, and mounts that."""

    def start() -> Stage:
        bucket = s3.bucket(f"example-{uuid4().hex}")
        write_tree(bucket, read_tree(plain))
        return Stage(mounter(bucket.source, "--endpoint", s3.endpoint), plain, bucket.bucket)

    return start


@pytest.fixture
def images(plain: Path, upload: Callable[[], Stage]) -> Stage:
    """A folder of JPEGs for each class."""
    write_tree(plain, {
        f"{name}/{number:02}.jpg": jpeg(seed * 100 + number)
        for seed, name in enumerate(CLASSES) for number in range(16)
    })  # fmt: skip
    return upload()


@pytest.fixture
def shards(plain: Path, upload: Callable[[], Stage]) -> Stage:
    """Six tar files of eight samples."""
    for number in range(6):
        with tarfile.open(plain / f"{number:04}.tar", "w") as tar:
            for key, (image, label) in list(SAMPLES.items())[number::6]:
                for name, data in ((f"{key}.jpg", image), (f"{key}.cls", label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return upload()


@pytest.fixture
def tables(plain: Path, upload: Callable[[], Stage]) -> Stage:
    """Five Parquet files, and forty notes beside them."""
    write_tree(plain, {f"notes/{i:02}.txt": b"note %02d" % i for i in range(40)})
    for number, labels in enumerate(TABLES):
        table = pandas.DataFrame({"label": labels, "text": [f"row {row}" for row in range(100)]})
        table.to_parquet(plain / f"{number}.parquet")
    return upload()
