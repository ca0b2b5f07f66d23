"""What another user of this machine can reach: nothing of ours, and of the files only what
--allow-other opens."""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.daemon.mount_registry import find_note
from penstock.ownership import why_untrusted
from penstock.paths import name_of
from tests.support.isolation import isolate
from tests.support.mounts import Mount, penstock
from tests.support.refusals import processes_that_name
from tests.support.s3 import KEYS, S3
from tests.support.shared_mounts import Shared
from tests.support.trees import write_tree
from tests.support.users import NOBODY, User

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
peer.settimeout(60)
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


# Imports come first: that user may not be able to reach this Python at all.
BECOME = f"""
import errno, json, os, pathlib, signal, socket, sys
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
"""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def as_nobody(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python code as a user who has no rights here but those of everyone."""
    return subprocess.run(
        [sys.executable, "-Sc", BECOME + code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def mounted(s3: S3, *options: str) -> Iterator[Shared]:
    """A mount by a user whose umask protects nothing, onto folders that were there already."""
    bucket = s3.bucket(f"open-{uuid4().hex}")
    write_tree(bucket, {"a/file": b"hello\n", "large": b"x" * 300_000})
    # Everyone can walk into this folder; nobody else can walk into those of pytest.
    with (
        tempfile.TemporaryDirectory(prefix="penstock-open-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(name)
        for path in (folder, folder / "mnt", folder / "cache", folder / "state"):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        isolate(patch, folder / "state")
        for name, value in KEYS.items():
            patch.setenv(name, value)
        arguments = (
            bucket.source,
            folder / "mnt",
            "-b",
            "--endpoint",
            s3.endpoint,
            "--cache-dir",
            folder / "cache",
            *options,
        )
        result = penstock("mount", *arguments, umask=0)
        assert result.returncode == 0, result.stderr
        mount = Mount(folder / "mnt", arguments, result.stderr)
        try:
            for name in ("a/file", "large"):
                (mount.path / name).read_bytes()
                mount.wait_until_cached(name)
            yield Shared(mount, folder / "state")
        finally:
            mount.umount()


@pytest.fixture(scope="module")
def _private(_s3_server: S3) -> Iterator[Shared]:
    with mounted(_s3_server) as shared:
        yield shared


@pytest.fixture
def private(_private: Shared, monkeypatch: pytest.MonkeyPatch) -> Shared:
    _private.enter(monkeypatch)
    return _private


@contextmanager
def opened_to_all(*paths: Path) -> Iterator[None]:
    """As after a careless chmod -R."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    for path in paths:
        path.chmod(0o777)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def cannot_read(mountpoint: Path) -> None:
    """Nobody else reads its files."""
    assert as_nobody(READ, mountpoint / "a/file").stdout == "EACCES\n"
    assert "PermissionError" in as_nobody("os.listdir(sys.argv[1])", mountpoint).stderr


def sockets(state: Path) -> list[Path]:
    found = [path for path in (state / "mounts").iterdir() if stat.S_ISSOCK(path.stat().st_mode)]
    assert found
    return found


def test_state_logs_catalog_and_cache_are_closed_to_others(private: Shared) -> None:
    private.mount.refresh()
    state, catalogs = private.state, private.state / "catalogs"
    cache = list((private.mount.path.parent / "cache").rglob("*"))
    assert private.mount.stats()["cached_bytes"] > 0
    places = [state, *state.rglob("*"), *cache]
    assert {path.suffix for path in places} >= {".sqlite", ".sock", ".json", ".log"}
    assert {path.name for path in cache} >= {"index.sqlite", "objects"}
    tried = as_nobody(TRY, *places)
    assert (tried.stdout, tried.stderr) == (f"reads {state}\n", ""), "its folders' names, no more"
    with opened_to_all(catalogs):
        tried = as_nobody(TRY, *catalogs.iterdir())
        assert (tried.stdout, tried.stderr) == ("", ""), "by the modes of the files too"
    cannot_read(private.mount.path)


def test_the_socket_is_closed_to_others_and_answers_no_other_user(private: Shared) -> None:
    for place in sockets(private.state):
        assert as_nobody(ASK, place).stdout == "EACCES\n"
        with opened_to_all(place.parent):
            assert as_nobody(ASK, place).stdout == "EACCES\n", "by its own mode too"
        with opened_to_all(place.parent, place):
            # Closed, with or without a reset of what was still on its way to us.
            assert as_nobody(ASK, place).stdout in ("closed\n", "ECONNRESET\n", "EPIPE\n")
    assert private.mount.stats()["files"] == 2, "its own user is answered"


def test_allow_other_opens_the_files_and_nothing_else(s3: S3) -> None:
    with mounted(s3, "--allow-other") as shared:
        folder, state = shared.mount.path.parent, shared.state
        assert as_nobody(READ, shared.mount.path / "a/file").stdout == "hello\n"
        places = [*(folder / "cache/objects").rglob("*"), *state.rglob("*")]
        assert sum(path.is_file() for path in places) > 3
        tried = as_nobody(TRY, *places)
        assert (tried.stdout, tried.stderr) == ("", "")
        for place in sockets(state):
            assert as_nobody(ASK, place).stdout == "EACCES\n"
        result = as_nobody("os.kill(int(sys.argv[1]), 0)", str(shared.mount.stats()["pid"]))
        assert "PermissionError" in result.stderr


def test_allow_other_opens_files_only_as_their_modes_allow(s3: S3) -> None:
    with mounted(s3, "--allow-other", "--file-mode", "0440", "--dir-mode", "0551") as shared:
        cannot_read(shared.mount.path)
        assert (shared.mount.path / "a/file").read_bytes() == b"hello\n"


def test_an_invalid_request_is_answered_with_an_error(private: Shared) -> None:
    """The owner's own programs may be broken too."""
    for junk in (b"\n", b"[1]\n", b'{"verb": []}\n', b"\xff\n", b"x" * 5_000_000):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(60)
            peer.connect(str(find_note(private.mount.path).socket_path))
            # What is too long is not read to its end, and may be cut off before it is sent.
            cut_off = BrokenPipeError, ConnectionResetError
            with suppress(*(cut_off if len(junk) > 1_000_000 else ())):
                peer.sendall(junk)
                peer.shutdown(socket.SHUT_WR)
                assert "error" in json.loads(peer.makefile("rb").readline())
        assert private.mount.stats()["files"] == 2


def test_the_memory_of_a_users_mount_is_unreadable(user: User, s3: S3) -> None:
    """Its processes hold keys: no core file of them is written, and no other process of the same
    user can look into them."""
    write_tree(s3.bucket("no-cores"), {"file": b"x"})
    user.mount("s3://no-cores", "--endpoint", s3.endpoint)
    pids = [int(process.split(":")[0]) for process in processes_that_name(user.mountpoint)]
    assert pids
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{NOBODY}\t" in status
        # Of a process that may not be dumped, and only then, these belong to root.
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0
        assert user.run("cat", f"/proc/{pid}/environ").returncode != 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="penstock-open-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_root_keeps_no_state_in_a_directory_of_another_user(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, victim = open_folder / "state", open_folder / "victim"
    (open_folder / "mnt").mkdir()
    (open_folder / "source").mkdir()
    (state / "logs").mkdir(parents=True)
    victim.write_text("precious\n")
    (state / "logs" / f"{name_of(open_folder / 'mnt')}.log").symlink_to(victim)
    for path in (state, state / "logs"):
        os.chown(path, NOBODY, NOBODY)
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(state))
    words = ["mount", f"file://{open_folder / 'source'}", open_folder / "mnt", "-b", "--no-cache"]
    refused = penstock(*words)
    assert (refused.returncode, victim.read_text()) == (2, "precious\n")
    assert f"state directory {state}: {state} belongs to another user" in refused.stderr
    assert "hint: " in refused.stderr
    os.chown(state, 0, 0)
    refused = penstock(*words)
    assert (refused.returncode, victim.read_text()) == (2, "precious\n")
    assert f"{state / 'logs'} belongs to another user" in refused.stderr, "what was his"
    os.chown(state / "logs", 0, 0)
    refused = penstock(*words)
    assert (refused.returncode, victim.read_text()) == (2, "precious\n")
    assert "a log is a plain file" in refused.stderr, "no log is written through a link"


def test_root_caches_nothing_in_a_directory_of_another_user(open_folder: Path) -> None:
    cache = open_folder / "cache"
    for folder in ("source", "mnt", "cache"):
        (open_folder / folder).mkdir()
    os.chown(cache, NOBODY, NOBODY)
    for option in (["--cache-dir", cache], ["--tier", f"MEM:{cache}:10MiB"]):
        mountpoint = open_folder / "mnt"
        refused = penstock("mount", f"file://{open_folder / 'source'}", mountpoint, "-b", *option)
        assert refused.returncode == 2
        assert f"cache directory {cache}: {cache} belongs to another user" in refused.stderr
    refused = penstock("cache", "clear", "--cache-dir", cache)
    assert (refused.returncode, list(cache.iterdir())) == (2, [])


@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (0, 0o755, None),
        (0, 0o1777, None),  # like /tmp: what is ours in it nobody else can move
        (0, 0o775, "other users may write to {folder}"),  # its group is not root's
        (0, 0o777, "other users may write to {folder}"),
        (NOBODY, 0o755, f"{{folder}} belongs to another user (uid {NOBODY})"),
    ],
)
@pytest.mark.parametrize("through", ["a folder", "a link"])
def test_a_parent_directory_of_another_user_counts_as_well(
    open_folder: Path, owner: int, mode: int, why: str | None, through: str
) -> None:
    folder = open_folder / "above"
    (folder / "ours").mkdir(parents=True)
    folder.chmod(mode)
    os.chown(folder, owner, NOBODY)
    path = folder / "ours"
    if through == "a link":
        path = open_folder / "link"
        path.symlink_to("above/ours")
    wanted = why and why.format(folder=folder)
    for directory in (path, path / "not yet" / "made"):
        assert why_untrusted(directory, [], may_be_sticky=False) == wanted


def test_a_sticky_directory_is_accepted_for_a_cache_but_not_for_state(open_folder: Path) -> None:
    """A tmpfs is sticky, and open to all, unless it is mounted otherwise."""
    open_folder.chmod(0o1777)
    why = f"other users may write to {open_folder}"
    assert why_untrusted(open_folder, [], may_be_sticky=False) == why
    assert why_untrusted(open_folder, [], may_be_sticky=True) is None
    (open_folder / "objects").mkdir()
    os.chown(open_folder / "objects", NOBODY, NOBODY)
    why = f"{open_folder / 'objects'} belongs to another user (uid {NOBODY})"
    assert why_untrusted(open_folder, ["index", "objects"], may_be_sticky=True) == why


def test_a_circular_symlink_belongs_to_nobody_else(open_folder: Path) -> None:
    (open_folder / "link").symlink_to("link")
    assert why_untrusted(open_folder / "link" / "below", [], may_be_sticky=True) is None
