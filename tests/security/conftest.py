"""A server that lies."""

from collections.abc import Iterator

import pytest

from tests.support.hostile_s3 import Hostile, hostile_s3
from tests.support.s3 import KEYS


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with hostile_s3() as server:
        yield server
