"""Buckets and mounts that the tests of a module share."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.mounts import Mount, Mounter
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, ObjectPath
from tests.support.shared_mounts import sharing


@pytest.fixture(scope="module")
def empty_bucket(_s3_server: S3) -> ObjectPath:
    """A bucket for the tests of one module."""
    return _s3_server.bucket(f"module-{time.monotonic_ns()}")


@dataclass
class _Mounts:
    mounter: Mounter
    state: Path
    by_options: dict[tuple[str | Path, ...], Mount] = field(default_factory=dict)


@pytest.fixture(scope="module")
def _module_mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Mounts]:
    folder = tmp_path_factory.mktemp("module")
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with sharing(folder, keys) as mounter:
        yield _Mounts(mounter, folder / "state")


@pytest.fixture
def shared(s3: S3, _module_mounts: _Mounts, monkeypatch: pytest.MonkeyPatch) -> Mounter:
    """Mounts like `mounter`, but once for all tests of a module that give the same options. What an
    earlier test cached and counted is forgotten."""

    def use(*options: str | Path) -> Mount:
        monkeypatch.setenv("PENSTOCK_STATE_DIR", str(_module_mounts.state))
        mounts = _module_mounts.by_options
        if options not in mounts:
            mounts[options] = _module_mounts.mounter(*options)
        mounts[options].begin_test()
        return mounts[options]

    return use
