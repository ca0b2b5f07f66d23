"""Real programs over a mount whose store fails: they end well, with the right bytes."""

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import PASSING
from tests.support.faulty_proxy import FaultyProxy
from tests.support.mounts import MODES, Mount, Mounter
from tests.support.s3 import S3
from tests.support.trees import read_tree, write_tree

SAMPLES = {
    f"n{i // 20:04}/img{i:05}.jpg": random.Random(i).randbytes(3_000 + 331 * i) for i in range(60)
}
# Fetched block by block, as ranges: what a range lacks is its own kind of trouble.
LARGE = {f"large/{i}.bin": random.Random(-i).randbytes(3 * 1024 * 1024 + i) for i in range(1, 3)}
DATA = {**SAMPLES, **LARGE}
SHARE = 0.18  # of all requests for data; every kind alike

# Each program in one mode, and in each mode two programs.
in_pagecache = pytest.mark.parametrize("failing", MODES[:1], indirect=True)
in_passthrough = pytest.mark.parametrize("failing", MODES[1:], indirect=True)


@pytest.fixture(scope="module")
def source(_s3_server: S3) -> str:
    bucket = _s3_server.bucket("programs")
    write_tree(bucket, DATA)
    return bucket.source


@pytest.fixture
def failing(
    request: pytest.FixtureRequest, source: str, proxy: FaultyProxy, mounter: Mounter
) -> Iterator[Mount]:
    """A mount of DATA, nothing of it cached yet, behind a store that fails all the time."""
    mode: str = request.param
    mount = mounter(
        source, "--endpoint", proxy.endpoint, "--mode", mode, "--block-size", "1MiB",
        "--deadline", "60s",
    )  # fmt: skip
    proxy.inject(dict.fromkeys(PASSING, SHARE / len(PASSING)), wait_s=0.2)
    yield mount
    assert proxy.injected.total() > 5, "nothing failed: this has shown nothing"
    stats = mount.stats()
    assert stats["errors"] == 0
    assert stats["store_retries"] > 0


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@in_pagecache
def test_rsync_by_checksum_copies_everything_while_the_store_fails(
    failing: Mount, tmp_path: Path
) -> None:
    command = ("rsync", "-a", "-c", "--itemize-changes", f"{failing.path}/", f"{tmp_path}/to/")
    assert sum(line.startswith(">f") for line in run(*command).splitlines()) == len(DATA)
    assert read_tree(tmp_path / "to") == DATA
    assert run(*command) == ""


@in_passthrough
def test_tar_packs_everything_while_the_store_fails(failing: Mount, tmp_path: Path) -> None:
    run("tar", "cf", tmp_path / "packed.tar", "-C", failing.path, ".")
    (tmp_path / "to").mkdir()
    run("tar", "xf", tmp_path / "packed.tar", "-C", tmp_path / "to")
    assert read_tree(tmp_path / "to") == DATA


@pytest.mark.slow
@in_pagecache
def test_sha256sum_finds_every_sum_right_while_the_store_fails(
    failing: Mount, tmp_path: Path
) -> None:
    sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in DATA.items()]
    (tmp_path / "sums").write_text("".join(sums))
    said = run("sha256sum", "--strict", "-c", tmp_path / "sums", cwd=failing.path)
    assert said.splitlines() == [f"{name}: OK" for name in DATA]


@pytest.mark.slow
@in_passthrough
def test_a_pytorch_loader_reads_every_sample_while_the_store_fails(failing: Mount) -> None:
    script = Path(__file__).parents[1] / "mount/train.py"
    said = run(sys.executable, "-W", "error", script, failing.path, "fork")
    epoch = {name: hashlib.sha256(data).hexdigest() for name, data in SAMPLES.items()}
    assert json.loads(said) == [epoch, epoch]
