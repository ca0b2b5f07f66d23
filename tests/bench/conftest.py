"""A workspace per test, and a small data set: as files, and in a bucket of the S3 server."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bench.datasets import Dataset, make_small
from penstock.bench.s3server import S3Server, create_bucket, upload
from penstock.bench.workspace import Workspace
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path) as opened:
        yield opened


@pytest.fixture
def medium() -> Iterator[Path]:
    """Not pytest's own folder: its long name leaves a control socket no room in 108 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Tests only read it. Its name is that of its bucket."""
    return replace(make_small(tmp_path_factory.mktemp("small"), 20), name="bench-small")


@pytest.fixture(scope="session")
def server(_s3_server: S3, small: Dataset) -> S3Server:
    """The S3 server of all tests. It has the bucket of `small`."""
    server = S3Server(_s3_server.endpoint, ACCESS_KEY, SECRET_KEY)
    create_bucket(server, small.name)
    upload(server, small.name, small.root)
    return server
