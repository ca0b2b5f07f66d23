"""A server that lies."""

from collections.abc import Iterator

import pytest

from tests.support.liar import Liar, serve_liar
from tests.support.s3 import KEYS


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Iterator[Liar]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with serve_liar() as server:
        yield server
