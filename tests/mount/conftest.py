"""One bucket with a bit of everything, mounted once in each mode for all that only reads it."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ACCESS_KEY, S3, SECRET_KEY, Mount, penstock, write_tree

SAMPLES = {
    f"n{i // 20:04}/img{i:05}.jpg": random.Random(i).randbytes(10_000 + 331 * i) for i in range(100)
}
DATA = {
    **SAMPLES,
    "empty": b"",
    "labels/with space/ünï.txt": "0 katze\n1 Hündin\n".encode(),
    "labels/odd 'quotes\".csv": b"a,b\n",
}
LARGE = random.Random(20).randbytes(20 * 1024 * 1024 + 12345)
WIDE = 3000


@dataclass(frozen=True)
class Mounted:
    """A mount of: data/ (DATA), large.bin (LARGE), wide/ (WIDE files), unread/*.bin."""

    path: Path
    source: Path  # the folder behind the S3 server
    mode: str
    state: Path

    @property
    def mount(self) -> Mount:
        return Mount(self.path)


def why_no_passthrough() -> str | None:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if os.geteuid() != 0:
        return "passthrough needs root"
    return None if release >= (6, 9) else "passthrough needs kernel 6.9 or later"


needs_passthrough = pytest.mark.skipif(
    why_no_passthrough() is not None, reason=why_no_passthrough() or ""
)
MODES = ["pagecache", pytest.param("passthrough", marks=needs_passthrough)]


@pytest.fixture(scope="session")
def _bucket(_s3_server: S3) -> Path:
    folder = _s3_server.bucket("everything")
    write_tree(folder / "data", DATA)
    write_tree(folder, {"large.bin": LARGE})
    write_tree(folder / "unread", {f"{i}.bin": random.Random(i).randbytes(5000) for i in range(9)})
    write_tree(folder / "wide", {f"{i:04}.txt": str(i).encode() for i in range(WIDE)})
    return folder


@pytest.fixture(scope="session", params=MODES)
def _mounted(
    request: pytest.FixtureRequest, _s3_server: S3, _bucket: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mounted]:  # fmt: skip
    mode: str = request.param
    folder = tmp_path_factory.mktemp(mode)
    mounted = Mounted(folder / "mnt", _bucket, mode, folder / "state")
    mounted.path.mkdir()
    environment = {
        **os.environ, "PENSTOCK_STATE_DIR": str(mounted.state), "HOME": str(folder),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }  # fmt: skip
    environment.pop("AWS_PROFILE", None)
    result = penstock(
        "mount", "s3://everything", mounted.path, "-b", "--mode", mode, "--endpoint",
        _s3_server.endpoint, "--cache-dir", folder / "cache", "--block-size", "4MiB",
        env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    try:
        yield mounted
    finally:
        result = penstock("umount", mounted.path, env=environment)
        if result.returncode:
            penstock("umount", mounted.path, "--lazy", env=environment)
        assert result.returncode == 0, result.stderr


@pytest.fixture
def mounted(_mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(_mounted.state))
    return _mounted
