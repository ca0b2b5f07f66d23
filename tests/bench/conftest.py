"""A workspace per test, and an S3 server over a small data set."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench.dataset import Dataset, make_small
from penstock.bench.s3server import S3Server, serve_s3
from penstock.bench.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path) as opened:
        yield opened


@pytest.fixture
def small(workspace: Workspace) -> Dataset:
    return make_small(workspace.folder / "served" / "small", 40)


@pytest.fixture
def server(workspace: Workspace, small: Dataset) -> Iterator[S3Server]:
    with serve_s3(workspace, workspace.folder / "served") as serving:
        yield serving
