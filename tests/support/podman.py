"""podman for tests: what it keeps is in a folder of the test's own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.mounttable import mount_table

PACKAGES = ("podman", "runc", "catatonit")
# Limits of its own would be more than a container that we may be in has; crun does not know
# machines that have both versions of cgroups; locks in shared memory would be the machine's. Tests'
# servers are on the loopback interface.
_CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
lock_type = "file"
tmp_dir = "{folder}/tmp"
"""


@contextmanager
def private_podman(driver: str = "overlay") -> Iterator[None]:
    """podman, as this process and its children call it, has an empty storage of its own."""
    if os.geteuid() != 0 or not all(map(shutil.which, PACKAGES)):
        pytest.skip(f"root, and the packages {', '.join(PACKAGES)}, are needed")
    folder = Path(tempfile.mkdtemp(prefix="podman-", dir="/var/tmp"))
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    (folder / "containers.conf").write_text(_CONTAINERS_CONF.format(folder=folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        try:
            yield
            assert podman("ps", "-aq") == "", "a test left a container"
        finally:
            podman("rm", "--all", "--force", "--time=0")
            for entry in reversed(mount_table()):
                if entry.mountpoint.startswith(f"{folder}/"):
                    subprocess.run(["umount", "--lazy", entry.mountpoint], check=True)
            subprocess.run(["rm", "-rf", folder], check=True)


def podman(*words: str | Path, data: bytes | None = None) -> str:
    """Run one command of podman; return what it prints."""
    return shell(["podman", *map(str, words)], data=data)


def logs(container: str) -> str:
    """Return all that a container has printed."""
    return shell(["bash", "-c", f"podman logs {container} 2>&1"])


def shell(command: Sequence[str], *, data: bytes | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(command, input=data or b"", cwd=cwd, capture_output=True)
    assert done.returncode == 0, f"{command}\n{done.stdout.decode()}{done.stderr.decode()}"
    return done.stdout.decode()
