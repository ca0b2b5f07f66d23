"""One mount for the tests of a module, each of which has a folder of its own on it.

A mount takes a second to start and to end, which is longer than what most tests do with it. Who
imports the fixtures says in FILES what is in each folder. One thread.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import (
    ACCESS_KEY,
    S3,
    SECRET_KEY,
    Mount,
    gets_in,
    isolate,
    mounting,
    write_tree,
)  # fmt: skip
from tests.survival.kills import wait_until

_PLACES = 20  # the most tests of a module


@dataclass(frozen=True)
class Place:
    """A folder of the mount, and what was asked for since a test has it."""

    mount: Mount
    path: Path
    bucket: Path  # the same folder there
    before: Mapping[str, Any]

    def gets(self) -> int:
        return self.mount.gets() - gets_in(self.before)

    def requests(self) -> Counter[str]:
        return Counter(self.mount.stats()["requests"]) - Counter(self.before["requests"])

    def store_bytes(self) -> int:
        return self.mount.stats()["store_bytes"] - self.before["store_bytes"]

    def stats(self) -> dict[str, Any]:
        return self.mount.stats()


class Places:
    def __init__(self, mount: Mount, bucket: Path) -> None:
        self._mount, self._bucket, self._numbers = mount, bucket, count()

    def next(self) -> Place:
        name = str(next(self._numbers))
        path = self._mount.path / name
        assert path.is_dir(), "more tests than places"
        wait_until(lambda: self._mount.stats()["plans"] == [], "no plan of an earlier test is left")
        return Place(self._mount, path, self._bucket / name, self._mount.stats())


@contextmanager
def shared_state(folder: Path) -> Iterator[Path]:
    """In place of the fixture `state`: a mount is known to the state that it was made in."""
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, folder)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        yield folder


@contextmanager
def shared_mount(s3: S3, folder: Path, files: Mapping[str, bytes]) -> Iterator[Places]:
    """Places with these files in each."""
    bucket = s3.bucket(f"places-{uuid4().hex}")
    for number in range(_PLACES):
        write_tree(bucket / str(number), dict(files))
    with mounting(folder) as mounter:
        yield Places(mounter(f"s3://{bucket.name}", "--endpoint", s3.endpoint), bucket)


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with shared_state(tmp_path_factory.mktemp("state")) as folder:
        yield folder


@pytest.fixture(scope="module")
def places(
    request: pytest.FixtureRequest,
    _s3_server: S3,
    state: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("places")
    with shared_mount(_s3_server, folder, request.module.FILES) as shared:
        yield shared


@pytest.fixture
def mount(places: Places) -> Place:
    return places.next()
