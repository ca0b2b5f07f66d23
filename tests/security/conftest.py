"""A server that lies."""

from collections.abc import Iterator

import pytest

from tests.support.hostile_s3 import Hostile, hostile_s3


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with hostile_s3() as server:
        yield server
