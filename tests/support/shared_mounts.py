"""Mounts that several tests of a module share, with a state folder of their own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.isolation import isolate
from tests.support.mounts import Mount, Mounter, mounting


@dataclass(frozen=True)
class Shared:
    mount: Mount
    state: Path

    def enter(self, patch: pytest.MonkeyPatch) -> Mount:
        """From now on the state folder of the test is that of the mount."""
        patch.setenv("PENSTOCK_STATE_DIR", str(self.state))
        return self.mount


@contextmanager
def sharing(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Mounter]:
    """For fixtures of a module: `folder / "state"` is the state folder while it mounts."""
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, folder / "state")
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        with mounting(folder) as mounter:
            yield mounter
