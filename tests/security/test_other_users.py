"""What another user of this machine can come by: nothing of ours, and of the files only what
--allow-other opens."""

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.daemon.registry import find_note
from tests.conftest import S3, Mount, penstock, write_tree
from tests.security.conftest import AsNobody

# Tries to read, list and change each place it is given; prints what it could.
TRY = """
for path in sys.argv[1:]:
    if os.access(path, os.W_OK):
        print('writes', path)
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, 'rb').close()
    except OSError:
        continue
    print('reads', path)
"""
ASK = """
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(20)
try:
    peer.connect(sys.argv[1])
    peer.sendall(json.dumps({'verb': 'stats'}).encode() + b'\\n')
    print('answered' if peer.recv(65536) else 'closed')
except OSError as error:
    print(errno.errorcode[error.errno])
"""
READ = """
try:
    print(open(sys.argv[1]).read(), end='')
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.fixture
def state(in_the_open: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """There already, and open to be walked into: only what we make in it can protect itself."""
    folder = in_the_open / "state"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(folder))
    return folder


def mount_in(folder: Path, s3: S3, *options: str) -> Mount:
    """Mounted by someone whose umask protects nothing, onto folders that were there already."""
    bucket = s3.folder / folder.name
    write_tree(bucket, {"a/file": b"hello\n", "large": b"x" * 300_000})
    for name in ("mnt", "cache"):
        (folder / name).mkdir()
        (folder / name).chmod(0o755)
    arguments = (f"s3://{bucket.name}", folder / "mnt", "-b", "--endpoint", s3.endpoint,
                 "--cache-dir", folder / "cache", *options)  # fmt: skip
    result = penstock("mount", *arguments, umask=0)
    assert result.returncode == 0, result.stderr
    for name in ("a/file", "large"):
        (folder / "mnt" / name).read_bytes()
    return Mount(folder / "mnt", arguments, result.stderr)


@pytest.fixture
def private(in_the_open: Path, state: Path, s3: S3) -> Iterator[Mount]:
    mount = mount_in(in_the_open, s3)
    yield mount
    mount.umount()


@pytest.fixture
def opened(in_the_open: Path, state: Path, s3: S3) -> Iterator[Mount]:
    mount = mount_in(in_the_open, s3, "--allow-other")
    yield mount
    mount.umount()


def sockets(state: Path) -> list[Path]:
    found = [path for path in (state / "mounts").iterdir() if stat.S_ISSOCK(path.stat().st_mode)]
    assert found
    return found


def test_state_logs_and_catalog_are_closed_to_others(
    private: Mount, state: Path, as_nobody: AsNobody
) -> None:
    private.refresh()
    places = [state, *state.rglob("*")]
    assert {path.suffix for path in places} >= {".sqlite", ".sock", ".json", ".log"}
    tried = as_nobody(TRY, *places)
    assert (tried.stdout, tried.stderr) == (f"reads {state}\n", ""), "its folders' names, no more"


def test_the_catalog_is_closed_to_others_even_in_a_folder_that_is_open(
    private: Mount, state: Path, as_nobody: AsNobody
) -> None:
    catalogs = state / "catalogs"
    catalogs.chmod(0o755)
    tried = as_nobody(TRY, *catalogs.iterdir())
    assert (tried.stdout, tried.stderr) == ("", "")


def test_the_socket_is_closed_to_others(private: Mount, state: Path, as_nobody: AsNobody) -> None:
    for place in sockets(state):
        (state / "mounts").chmod(0o700)
        assert as_nobody(ASK, place).stdout == "EACCES\n"
        (state / "mounts").chmod(0o755)
        assert as_nobody(ASK, place).stdout == "EACCES\n", "by its own mode too"


def test_without_allow_other_nobody_else_reads_the_files(
    private: Mount, as_nobody: AsNobody
) -> None:
    assert as_nobody(READ, private.path / "a/file").stdout == "EACCES\n"
    assert as_nobody("os.listdir(sys.argv[1])", private.path).returncode != 0


def test_allow_other_opens_the_files_and_nothing_else(
    opened: Mount, in_the_open: Path, state: Path, as_nobody: AsNobody
) -> None:
    assert as_nobody(READ, opened.path / "a/file").stdout == "hello\n"
    places = [*(in_the_open / "cache" / "objects").rglob("*"), *state.rglob("*")]
    assert sum(path.is_file() for path in places) > 3
    assert as_nobody(TRY, *places).stdout == ""
    for place in sockets(state):
        assert as_nobody(ASK, place).stdout == "EACCES\n"
    result = as_nobody("os.kill(int(sys.argv[1]), 0)", str(opened.stats()["pid"]))
    assert "PermissionError" in result.stderr


def test_allow_other_opens_files_only_as_far_as_their_modes(
    in_the_open: Path, state: Path, s3: S3, as_nobody: AsNobody
) -> None:
    mount = mount_in(in_the_open, s3, "--allow-other", "--file-mode", "0440", "--dir-mode", "0551")
    try:
        assert as_nobody(READ, mount.path / "a/file").stdout == "EACCES\n"
        assert as_nobody("os.listdir(sys.argv[1])", mount.path).returncode != 0
        assert (mount.path / "a/file").read_bytes() == b"hello\n"
    finally:
        mount.umount()


def test_a_request_that_is_none_is_answered_with_an_error(private: Mount, state: Path) -> None:
    """The owner's own programs may be broken too."""
    path = find_note(private.path).socket_path
    for junk in (
        b"\n",
        b"{}\n",
        b"[1]\n",
        b'"x"\n',
        b'{"verb": []}\n',
        b"\xff\n",
        b"x" * 5_000_000,
    ):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20)
            peer.connect(str(path))
            # What is too long is not read to its end, and may be cut off before it is sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.sendall(junk)
                peer.shutdown(socket.SHUT_WR)
                assert "error" in json.loads(peer.makefile("rb").readline()), junk[:20]
    assert private.stats()["files"] == 2
    assert os.listdir(private.path)
