"""A data set for jobs."""

from pathlib import Path

import pytest

from penstock.api import resources as api
from tests.support.datasets import dataset, fill, mount, ours, secret
from tests.support.jobs import Jobs
from tests.support.s3 import S3


@pytest.fixture
def imagenet(server: S3, jobs: Jobs, tmp_path: Path) -> None:
    """A data set of a bucket, whose keys are in a Secret."""
    fill(server, "jobs-imagenet", {"train/a": b"alpha", "train/b": b"beta", "val/c": b"gamma"})
    root = mount(server, "jobs-imagenet", path="/")
    api.apply([secret(), dataset("imagenet", server, root), ours("imagenet", tmp_path / "cache")])
