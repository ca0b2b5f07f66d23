"""An ordinary user mounts through fusermount3, and is told what only root can have.

The user lives in a mount namespace of its own, where /dev/fuse is open to all and this Python can
be reached even if it lies in root's home: nothing of the machine itself is changed.
"""

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock as package
from tests.cli.conftest import processes_that_name
from tests.conftest import ACCESS_KEY, S3, SECRET_KEY, write_tree

UID = 65534  # nobody
BECOME = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
SMALL = {f"a/{i}.jpg": random.Random(i).randbytes(20_000) for i in range(20)}


@dataclass(frozen=True)
class User:
    namespace: int  # the process that holds it
    home: Path
    environment: Mapping[str, str]

    @property
    def mountpoint(self) -> Path:
        return self.home / "mnt"

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._enter([*BECOME, *map(str, command)], {**self.environment, **variables})

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
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


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
        os.chown(path, UID, UID)
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _arrange(home / "stash")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n"
        yield User(
            holder.pid, home,
            {"PATH": os.environ["PATH"], "HOME": str(home), "AWS_ACCESS_KEY_ID": ACCESS_KEY,
             "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "PENSTOCK_STATE_DIR": f"{home}/state",
             "AWS_EC2_METADATA_DISABLED": "true"},
        )  # fmt: skip
    finally:
        subprocess.run(["nsenter", "-t", str(holder.pid), "-m", "umount", "-l", str(home / "mnt")],
                       capture_output=True, timeout=30, check=False)  # fmt: skip
        left = _servers_of(home / "mnt")
        holder.stdin.close()
        holder.wait(30)
        holder.stdout.close()
        shutil.rmtree(home)
        assert left == []


def _arrange(stash: Path) -> str:
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
    return "\n".join([*lines, "echo ready", "exec cat"])


def test_the_user_is_an_ordinary_one_who_can_run_this_package(user: User) -> None:
    code = "import os, penstock; print(os.geteuid(), open('/proc/self/status').read())"
    result = user.run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{UID} ")
    assert "CapEff:\t0000000000000000" in result.stdout


def test_a_user_mounts_reads_and_unmounts(user: User, s3: S3) -> None:
    write_tree(s3.bucket("of-a-user"), SMALL)
    said = user.mount("s3://of-a-user", "--endpoint", s3.endpoint)
    assert "20 files" in said
    assert "note: readahead stays at 128 KiB: raising it needs root" in said
    (entry,) = user.mounted()
    assert " - fuse.penstock s3://of-a-user " in entry
    assert f"user_id={UID},group_id={UID}" in entry
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read().hex().encode())"
    for name, data in SMALL.items():
        assert user.run(sys.executable, "-Ic", code, user.mountpoint / name).stdout == data.hex()
    listed = user.run("find", user.mountpoint, "-type", "f", "-user", str(UID), "-printf", r"%P\n")
    assert sorted(listed.stdout.split()) == sorted(SMALL)
    stats = user.penstock("stats", user.mountpoint, "-o", "json").stdout
    assert '"mode": "pagecache"' in stats
    assert '"store_bytes": 400000' in stats
    assert "raising it needs root" in user.penstock("doctor", user.mountpoint).stdout
    result = user.penstock("umount", user.mountpoint)
    assert (result.returncode, result.stderr) == (0, "")
    assert user.mounted() == []
    assert _servers_of(user.mountpoint) == []


def test_a_server_of_a_user_that_is_killed_is_replaced(user: User, s3: S3) -> None:
    write_tree(s3.bucket("killed-user"), SMALL)
    user.mount("s3://killed-user", "--endpoint", s3.endpoint)
    before = json.loads(user.penstock("stats", user.mountpoint, "-o", "json").stdout)
    assert user.run("kill", "-9", str(before["pid"])).returncode == 0
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read().hex().encode())"
    for name, data in SMALL.items():
        assert user.run(sys.executable, "-Ic", code, user.mountpoint / name).stdout == data.hex()
    assert user.penstock("upgrade", user.mountpoint).returncode == 0
    after = json.loads(user.penstock("stats", user.mountpoint, "-o", "json").stdout)
    assert (after["restarts"], after["supervisor_pid"]) == (1, before["supervisor_pid"])
    assert user.penstock("umount", user.mountpoint).returncode == 0
    assert _servers_of(user.mountpoint) == []


def test_others_cannot_read_what_a_user_has_mounted_for_itself(user: User, s3: S3) -> None:
    write_tree(s3.bucket("of-one-user"), SMALL)
    user.mount("s3://of-one-user", "--endpoint", s3.endpoint)
    result = user.as_root("ls", user.mountpoint)
    assert result.returncode != 0
    assert "Permission denied" in result.stderr


def test_passthrough_is_refused_to_a_user_with_the_reason(user: User, s3: S3) -> None:
    write_tree(s3.bucket("through-user"), SMALL)
    for words in (["-b"], []):
        result = user.penstock(
            "mount", "s3://through-user", user.mountpoint, *words, "--endpoint", s3.endpoint,
            "--mode", "passthrough",
        )  # fmt: skip
        assert result.returncode == 2
        assert result.stderr.splitlines() == [
            "penstock: --mode passthrough: it needs root",
            "hint: use --mode auto, which does without",
        ]
        assert user.mounted() == []
        assert _servers_of(user.mountpoint) == []


def test_large_files_are_read_without_passthrough_and_the_user_is_told(user: User, s3: S3) -> None:
    large = random.Random(1).randbytes(9 * 1024 * 1024)
    write_tree(s3.bucket("large-user"), {"large.bin": large})
    said = user.mount("s3://large-user", "--endpoint", s3.endpoint)
    assert "mode pagecache" in said
    assert "note: passthrough would suit these large files, but it needs root" in said
    copy = user.home / "copy"
    assert user.run("cp", user.mountpoint / "large.bin", copy).returncode == 0
    assert copy.read_bytes() == large


def test_allow_other_is_refused_with_what_root_must_do(user: User, s3: S3) -> None:
    write_tree(s3.bucket("other-user"), SMALL)
    result = user.penstock(
        "mount", "s3://other-user", user.mountpoint, "-b", "--endpoint", s3.endpoint,
        "--allow-other",
    )  # fmt: skip
    assert result.returncode == 2
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["penstock", "hint"]
    assert "user_allow_other into /etc/fuse.conf" in result.stderr
    assert user.mounted() == []


def test_without_fusermount3_a_user_is_told_what_to_install(user: User, s3: S3) -> None:
    write_tree(s3.bucket("no-fusermount"), SMALL)
    result = user.run(
        "env", "PATH=/nonexistent", sys.executable, "-m", "penstock", "mount",
        "s3://no-fusermount", user.mountpoint, "-b", "--endpoint", s3.endpoint,
    )  # fmt: skip
    assert result.returncode == 2
    assert "fusermount3" in result.stderr
    assert "hint: apt-get install fuse3" in result.stderr


def test_a_users_state_and_cache_lie_in_its_home(user: User, s3: S3) -> None:
    write_tree(s3.bucket("home-user"), SMALL)
    user.mount("s3://home-user", "--endpoint", s3.endpoint, PENSTOCK_STATE_DIR="")
    assert (user.home / ".local/state/penstock/catalogs").is_dir()
    assert (user.home / ".cache/penstock/index.sqlite").is_file()
    assert (user.home / ".cache/penstock").stat().st_mode & 0o077 == 0
    assert (user.home / ".local/state/penstock").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("words", ["stats", "mount s3://x {} --no-cache", "mount s3://x {} -b"])
def test_a_home_that_cannot_be_written_is_told_in_one_line(user: User, words: str) -> None:
    command = words.format(user.mountpoint).split()
    result = user.penstock(*command, HOME="/nonexistent", PENSTOCK_STATE_DIR="")
    assert result.returncode == 2, result.stderr
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["penstock", "hint"]
    assert "/nonexistent" in result.stderr


def _servers_of(mountpoint: Path) -> list[str]:
    """Who still serves the mount point; the kernel may need a moment to let a process go."""
    deadline = time.monotonic() + 20
    while (found := processes_that_name(mountpoint)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
