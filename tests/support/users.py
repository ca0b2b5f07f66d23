"""Other users of the machine, and the mounts that they make.

The `user` fixture lives in a mount namespace of its own, where /dev/fuse is open to all and this
Python can be reached even if it lies in root's home: nothing of the machine itself is changed.

A plugin for pytest. No state.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock as package
from tests.support.refusals import processes_that_name
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.waiting import wait_until

NOBODY = 65534
_BECOME = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@dataclass(frozen=True)
class User:
    namespace: int  # the process that holds it
    home: Path
    environment: Mapping[str, str]

    @property
    def mountpoint(self) -> Path:
        return self.home / "mnt"

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._enter([*_BECOME, *map(str, command)], {**self.environment, **variables})

    def penstock(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "penstock", *words, **variables)

    def mount(self, source: str, *words: str, **variables: str) -> str:
        result = self.penstock("mount", source, self.mountpoint, "-b", *words, **variables)
        logs = [log.read_text() for log in self.home.glob("**/logs/*.log")]
        assert result.returncode == 0, [result.stderr, *logs]
        return result.stderr

    def mounted(self) -> list[str]:
        table = self._enter(["cat", "/proc/self/mountinfo"], self.environment).stdout
        return [line for line in table.splitlines() if f" {self.mountpoint} " in line]

    def as_root(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return self._enter([str(word) for word in command], self.environment)

    def _enter(
        self, command: list[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "--target", str(self.namespace), "--mount", "--", *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def user(s3: S3) -> Iterator[User]:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    if shutil.which("fusermount3") is None:
        pytest.skip("fusermount3 (package fuse3) is missing")
    home = Path(tempfile.mkdtemp(prefix="penstock-user-"))
    (home / "mnt").mkdir()
    (home / "stash").mkdir()
    for path in (home, home / "mnt"):
        path.chmod(0o755)
        os.chown(path, NOBODY, NOBODY)
    holder = subprocess.Popen(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            f"{arrange(home / 'stash')}\necho ready\nexec cat",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n"
        yield User(
            holder.pid,
            home,
            {
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "PENSTOCK_STATE_DIR": f"{home}/state",
                "AWS_EC2_METADATA_DISABLED": "true",
            },
        )
    finally:
        subprocess.run(
            ["nsenter", "-t", str(holder.pid), "-m", "umount", "-l", str(home / "mnt")],
            capture_output=True,
            timeout=30,
            check=False,
        )
        wait_until_unserved(home / "mnt")
        holder.stdin.close()
        holder.wait(30)
        holder.stdout.close()
        shutil.rmtree(home)


def arrange(stash: Path) -> str:
    """The shell's words that open /dev/fuse and the way to this Python, for this namespace."""
    lines = [
        f"mount -t tmpfs -o mode=755 tmpfs {stash}",
        f"mknod -m 666 {stash}/fuse c 10 229; mount --bind {stash}/fuse /dev/fuse",
        f"touch {stash}/fuse.conf",
        f"test ! -e /etc/fuse.conf || mount --bind {stash}/fuse.conf /etc/fuse.conf",
    ]
    hidden: set[Path] = set()
    needed = [Path(sys.base_prefix), Path(sys.prefix), Path(package.__file__).parent]
    for number, path in enumerate(needed):
        closed = [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
        if not closed:
            continue
        kept = f"{stash}/{number}"
        lines.append(f"mkdir {kept}; mount --bind {shlex.quote(str(path))} {kept}")
        hidden.add(closed[-1])  # the topmost
    lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(path))}" for path in hidden]
    for number, path in enumerate(needed):
        if any(path.is_relative_to(top) for top in hidden):
            place = shlex.quote(str(path))
            lines.append(f"mkdir -p {place}; mount --bind {stash}/{number} {place}")
    return "\n".join(lines)


def wait_until_unserved(mountpoint: Path) -> None:
    """Wait until no process names this mount point: the kernel may need a moment to end one."""
    wait_until(lambda: not processes_that_name(mountpoint), "processes of the mount still run")
