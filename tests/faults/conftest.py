"""The faulty proxy before the real S3 server, and the seed that a failing test prints."""

import os
from collections.abc import Iterator

import pytest

from tests.conftest import S3
from tests.faults.proxy import FaultyProxy


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultyProxy]:
    seed = int(os.environ.get("FAULTS_SEED", "1"))
    print(f"faults of FAULTS_SEED={seed}")
    with FaultyProxy(s3.endpoint, seed=seed) as proxy:
        yield proxy
