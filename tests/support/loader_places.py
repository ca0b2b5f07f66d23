"""One mount for the tests of a module, each of which has a folder of its own on it.

A mount takes half a second of CPU, which is more than what most tests do with it. A module that
imports the fixtures says in FILES what is in each folder. One thread.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import isolate
from tests.support.mounts import Mount, gets_in, mounting
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

_PLACES = 20  # the most tests of a module


@dataclass(frozen=True)
class Place:
    """A folder of the mount, and what was asked of the store since the test got it."""

    mount: Mount
    path: Path
    source: Path  # the same folder in the store
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
    def __init__(self, mount: Mount, source: Path) -> None:
        self._mount, self._source, self._numbers = mount, source, count()

    def next(self) -> Place:
        name = str(next(self._numbers))
        path = self._mount.path / name
        assert path.is_dir(), "more tests than places"
        wait_until(lambda: self._mount.stats()["plans"] == [], "a plan of an earlier test is left")
        return Place(self._mount, path, self._source / name, self._mount.stats())


@contextmanager
def shared_state(folder: Path) -> Iterator[Path]:
    """In place of the fixture `state`: a mount is known to the state that it was made in."""
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, folder)
        yield folder


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with shared_state(tmp_path_factory.mktemp("state")) as folder:
        yield folder


@pytest.fixture(scope="module")
def places(
    request: pytest.FixtureRequest, state: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Places]:
    source = tmp_path_factory.mktemp("source")
    for number in range(_PLACES):
        write_tree(source / str(number), request.module.FILES)
    with mounting(tmp_path_factory.mktemp("places")) as mounter:
        yield Places(mounter(f"file://{source}", "--mode", "pagecache"), source)


@pytest.fixture
def mount(places: Places) -> Place:
    return places.next()
