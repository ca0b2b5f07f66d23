"""A workspace per test, and a small data set: as files, and in a bucket of the S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench.dataset import Dataset, make_small
from penstock.bench.s3server import S3Server, create_bucket, upload
from penstock.bench.workspace import Workspace
from tests.support.bench_ground import short_folder
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

BUCKET = "bench-small"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path) as opened:
        yield opened


@pytest.fixture
def medium() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Tests only read it. Its name is that of its bucket."""
    made = make_small(tmp_path_factory.mktemp("small"), 20)
    return Dataset(BUCKET, made.root, made.entries)


@pytest.fixture(scope="session")
def server(_s3_server: S3, small: Dataset) -> S3Server:
    """The S3 server of all tests. It has the bucket of `small`."""
    server = S3Server(_s3_server.endpoint, ACCESS_KEY, SECRET_KEY)
    create_bucket(server, small.name)
    upload(server, small.name, small.root)
    return server
