"""The image as people run it without a cluster: built once, in a podman of the session's own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.ground import FILES, ROOT, SHARED, Ground
from tests.support.podman import podman, private_podman
from tests.support.s3 import KEYS, S3


@pytest.fixture(scope="session")
def image() -> Iterator[None]:
    """`make image`, which makes nothing if its inputs are those of last time, and `podman load`."""
    with private_podman():
        subprocess.run([sys.executable, ROOT / "tools" / "build-image"], check=True)
        podman("load", "--quiet", "-i", ROOT / "build" / "penstock-image.tar")
        yield


@pytest.fixture
def ground(image: None, s3: S3, tmp_path: Path) -> Iterator[Ground]:
    """A bucket, a file with its keys, and /srv on a shared mount, as where systemd runs.

    Mounts of a test process are private to it: the machine's /srv stays as it is.
    """
    bucket = s3.bucket("bucket")
    bucket.write_all({f"images/{name}": data for name, data in FILES.items()})
    keys = {**KEYS, "AWS_ENDPOINT_URL": s3.endpoint}
    (tmp_path / "keys.env").write_text("".join(f"{one}={keys[one]}\n" for one in keys))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", SHARED.parent], check=True)
    subprocess.run(["mount", "--make-shared", SHARED.parent], check=True)
    made = Ground(tmp_path)
    try:
        yield made
    finally:
        podman("rm", "--all", "--force", "--time=0")
        podman("volume", "rm", "--all", "--force")
        for mountpoint in made.mounted():  # of a container that was killed
            subprocess.run(["umount", "--lazy", mountpoint], check=True)
        subprocess.run(["umount", "--lazy", SHARED.parent], check=True)
