"""Who holds a busy mount: real mounts, real processes that hold them, each in one way."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.fuse.holders import Holder, Holders, holders
from tests.support.mounts import Mount, Mounter, penstock
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

NOBODY = 65534


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one mount, mnt, for all that only hold it."""
    folder = tmp_path_factory.mktemp("held")
    program = Path("/bin/sleep").read_bytes()
    write_tree(folder / "set", {"a/file": b"x" * 10_000, "b": b"y", "sleep": program})
    (folder / "mnt").mkdir()
    environment = {**os.environ, "PENSTOCK_STATE_DIR": str(folder), "HOME": str(folder)}
    mounted = penstock(
        "mount",
        f"file://{folder / 'set'}",
        folder / "mnt",
        "-b",
        "--refresh",
        "never",
        "--allow-other",
        "--cache-dir",
        folder / "cache",
        "--mode",
        "pagecache",
        "--file-mode",
        "0555",
        env=environment,
    )
    assert mounted.returncode == 0, mounted.stderr
    yield folder
    unmounted = penstock("umount", folder / "mnt", env=environment)
    assert unmounted.returncode == 0, unmounted.stderr


@pytest.fixture
def mount(place: Path, monkeypatch: pytest.MonkeyPatch) -> Mount:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(place))
    return Mount(place / "mnt")


@contextmanager
def process(code: str, *words: str | Path, cwd: Path | None = None) -> Iterator[int]:
    """A Python that does this, says so, and then waits to be let go."""
    code += "\nimport sys; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, *map(str, words)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd or "/")
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.stdin.close()
        child.wait(20)
        child.stdout.close()


OPEN = "import sys; held = [open(word, 'rb') for word in sys.argv[1:]]"
MAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)  # mmap.mmap keeps a descriptor of its own
libc.mmap.restype = ctypes.c_void_p
descriptor = os.open(sys.argv[1], os.O_RDONLY)
mapped = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, descriptor, ctypes.c_long(0))
assert ctypes.string_at(mapped, 1) == b"x"
os.close(descriptor)
"""
AS_NOBODY = f"""
import os, pathlib, sys
from penstock.fuse.holders import holders
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
print(*holders(pathlib.Path(sys.argv[1])).lines(), sep="\\n")
"""


def only(found: Holders) -> Holder:
    (holder,) = found.processes
    return holder


def test_an_unused_mount_has_no_holders_except_mounts_inside_it(
    mount: Mount, tmp_path: Path
) -> None:
    found = holders(mount.path)
    assert (found.processes, found.mounted_inside) == ([], [])
    assert holders(tmp_path).lines() == [], "where nothing is mounted"
    inner = mount.path / "a"
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inner], check=True)
    try:
        assert holders(mount.path).lines() == [f"{inner} is mounted inside it"]
    finally:
        subprocess.run(["umount", inner], check=True)


def test_a_process_with_open_files_is_named_with_their_count(mount: Mount) -> None:
    with process(OPEN, mount.path / "a/file", mount.path / "b") as pid:
        holder = only(holders(mount.path))
    assert (holder.pid, holder.user, holder.usage) == (pid, "root", "2 open files")
    assert holder.command.startswith("python")
    assert len(str(holder).splitlines()) == 1


def test_a_working_directory_and_a_program_on_the_mount_are_named(mount: Mount) -> None:
    with process("", cwd=mount.path / "a") as pid:
        holder = only(holders(mount.path))
        assert (holder.pid, holder.usage) == (pid, "cwd")
        busy = penstock("umount", mount.path)
        assert (busy.returncode, "is in use" in busy.stderr) == (2, True)
    child = subprocess.Popen([mount.path / "sleep", "1000"])
    try:
        # It has its program before its words, for a moment.
        wait_until(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes() != b"")
        holder = only(holders(mount.path))
    finally:
        child.kill()
        child.wait(20)
    assert (holder.pid, holder.command) == (child.pid, "sleep 1000")
    assert holder.usage == "program, 1 mapped file"


def test_a_process_that_still_maps_a_closed_file_is_named(
    mount: Mount, tmp_path: Path, mounter: Mounter
) -> None:
    write_tree(tmp_path / "set", {"file": b"x" * 10_000})
    passthrough = mounter(f"file://{tmp_path / 'set'}", "--mode", "passthrough")
    (passthrough.path / "file").read_bytes()  # from now on the kernel has the cached file
    for folder, name in ((mount.path, "a/file"), (passthrough.path, "file")):
        with process(MAP, folder / name) as pid:
            holder = only(holders(folder))
        assert (holder.pid, holder.usage) == (pid, "1 mapped file")


def test_other_mounts_and_paths_with_the_same_prefix_are_not_matched(mount: Mount) -> None:
    beside = mount.path.with_name(f"{mount.path.name}-beside")
    beside.mkdir()
    (beside / "f").write_bytes(b"")
    with process(OPEN, beside / "f", cwd=beside):
        assert holders(mount.path).processes == []
        assert holders(beside).processes == [], "nothing is mounted there"


def test_a_hanging_server_does_not_block_the_search(mount: Mount) -> None:
    with process(OPEN, mount.path / "a/file") as pid:
        server = mount.stats()["pid"]
        os.kill(server, signal.SIGSTOP)
        try:
            assert only(holders(mount.path)).pid == pid
        finally:
            os.kill(server, signal.SIGCONT)


def test_an_ordinary_user_is_told_that_other_users_may_hold_the_mount(mount: Mount) -> None:
    with process(OPEN, mount.path / "b"):
        command = [sys.executable, "-c", AS_NOBODY, mount.path]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"perhaps one of \d+ process(es)? that you may not inspect\n", output)


def test_root_is_told_of_unreadable_processes_only_if_no_holder_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, perhaps = Holder(1, "cat", "root", "cwd"), "perhaps one of 2 processes"
    for uid, lines in ((0, 1), (NOBODY, 2)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert len(Holders([one], [], 2).lines()) == lines
        assert Holders([], [], 2).lines()[0].startswith(perhaps)


def test_the_first_of_many_holders_are_named_and_the_rest_counted() -> None:
    many = Holders([Holder(n, "cat", "root", "cwd") for n in range(50)], [], 0)
    assert many.lines()[0] == "pid 0  cat  (root)  cwd"
    assert many.lines()[-1] == "and 30 more processes"
