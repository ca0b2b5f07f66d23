"""One mount for the tests of a module, each of which has a folder of its own on it.

A mount takes half a second of CPU, which is more than what most tests do with it. A module that
imports the fixtures says in FILES what is in each folder. One thread.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import isolate
from tests.support.mounts import Mount, gets_in, mounting
from tests.support.trees import write_tree
from tests.support.waiting import wait_until


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


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In place of that of each test: a mount is known to the state that it was made in."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        isolate(patch, folder)
        yield folder


@pytest.fixture(scope="module")
def places(
    state: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Mount, Iterator[Path]]]:
    """The mount, and where in its store the next test puts its files."""
    source = tmp_path_factory.mktemp("source")
    (source / "first").touch()
    with mounting(tmp_path_factory.mktemp("places")) as mounter:
        folders = (source / str(number) for number in count())
        yield mounter(f"file://{source}", "--mode", "pagecache"), folders


@pytest.fixture
def mount(request: pytest.FixtureRequest, places: tuple[Mount, Iterator[Path]]) -> Place:
    mount, folders = places
    source = next(folders)
    write_tree(source, request.module.FILES)
    mount.refresh()
    wait_until(lambda: mount.stats()["plans"] == [], "a plan of an earlier test is left")
    return Place(mount, mount.path / source.name, source, mount.stats())
