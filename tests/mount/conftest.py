"""Mounts that tests share: one of a bit of everything for all tests, and those of a module."""

import random
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.everything import DATA, LARGE, UNREAD, WIDE, Mounted
from tests.support.mounts import MODES, Mounter, SharedMounts, shared_mounting
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import write_tree


@pytest.fixture(scope="session")
def _bucket(_s3_server: S3) -> ObjectPath:
    bucket = _s3_server.bucket("everything")
    write_tree(bucket / "data", DATA)
    write_tree(bucket, {"large.bin": LARGE})
    unread = {f"{i}.bin": random.Random(i).randbytes(5000) for i in range(UNREAD)}
    write_tree(bucket / "unread", unread)
    write_tree(bucket / "wide", {f"{i:04}.txt": str(i).encode() for i in range(WIDE)})
    return bucket


@pytest.fixture(scope="session", params=MODES)
def _mounted(
    request: pytest.FixtureRequest, _s3_server: S3, _bucket: ObjectPath,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mounted]:  # fmt: skip
    mode: str = request.param
    with shared_mounting(tmp_path_factory.mktemp(mode)) as shared:
        mount = shared.mounter(
            _bucket.source, "--endpoint", _s3_server.endpoint, "--mode", mode,
            "--block-size", "4MiB",
        )  # fmt: skip
        yield Mounted(mount.path, _bucket, mode, shared.state)


@pytest.fixture
def mounted(_mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(_mounted.state))
    return _mounted


@pytest.fixture(scope="module")
def empty_bucket(_s3_server: S3) -> ObjectPath:
    """A bucket for the tests of one module."""
    return _s3_server.bucket(f"module-{time.monotonic_ns()}")


@pytest.fixture(scope="module")
def _module_mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMounts]:
    with shared_mounting(tmp_path_factory.mktemp("module")) as shared:
        yield shared


@pytest.fixture
def shared(s3: S3, _module_mounts: SharedMounts, monkeypatch: pytest.MonkeyPatch) -> Mounter:
    """Mounts like `mounter`, but once for all tests of a module that give the same options. What an
    earlier test cached and counted is forgotten."""
    return partial(_module_mounts.use, monkeypatch)
