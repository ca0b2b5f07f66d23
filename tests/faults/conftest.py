"""The faulty proxy before the real S3 server."""

from collections.abc import Iterator

import pytest

from tests.support.faulty_proxy import FaultyProxy
from tests.support.s3 import S3


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.endpoint, seed=1) as proxy:
        yield proxy
