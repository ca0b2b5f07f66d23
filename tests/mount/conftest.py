"""Buckets and mounts that the tests of a module share."""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.mounts import Mount, Mounter
from tests.support.s3 import KEYS, S3, ObjectPath
from tests.support.shared_mounts import sharing


@pytest.fixture(scope="module")
def empty_bucket(_s3_server: S3) -> ObjectPath:
    """A bucket for the tests of one module."""
    return _s3_server.bucket(f"module-{time.monotonic_ns()}")


@pytest.fixture(scope="module")
def _module_mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Mounter]]:
    """A state folder, and what mounts in it once for the same options."""
    folder = tmp_path_factory.mktemp("module")
    with sharing(folder, KEYS) as mounter:
        yield folder / "state", cache(mounter)


@pytest.fixture
def shared(
    s3: S3, _module_mounts: tuple[Path, Mounter], monkeypatch: pytest.MonkeyPatch
) -> Mounter:
    """Mounts like `mounter`, but once for all tests of a module that give the same options. What an
    earlier test cached and counted is forgotten."""
    state, mounter = _module_mounts

    def use(*options: str | Path) -> Mount:
        monkeypatch.setenv("PENSTOCK_STATE_DIR", str(state))
        mount = mounter(*options)
        mount.begin_test()
        return mount

    return use
