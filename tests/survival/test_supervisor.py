"""What happens under a supervisor must not end it, nor the mount that it holds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.daemon import supervisor
from penstock.daemon.mount_registry import serves
from penstock.daemon.server_process import LaunchSpec
from penstock.daemon.supervisor import _SECOND_CTRL_C_AFTER_S, Supervisor
from penstock.fuse.mounting import is_disconnected
from penstock.mounttable import find_mount
from penstock.paths import name_of
from tests.support.kills import note
from tests.support.liar import entry, page, serve_liar
from tests.support.mounts import Mount, Mounter, penstock
from tests.support.s3 import KEYS
from tests.support.trees import write_tree
from tests.support.users import wait_until_unserved
from tests.support.waiting import PATIENCE_S, wait_until

FILES = {"a/file": b"x" * 1000, "b": b"y" * 70_000}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("set")
    write_tree(folder, FILES)
    return f"file://{folder}"


@pytest.fixture
def mount(source: str, mounter: Mounter) -> Mount:
    return mounter(source)


def read_anew(mount: Mount) -> bytes:
    """By the server, and not from the kernel's pages."""
    descriptor = os.open(mount.path / "b", os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(descriptor, 100_000, 0)
    finally:
        os.close(descriptor)


def kill_server(state: Path) -> None:
    """The one that serves now; what the note says may be about the one before."""

    def is_there() -> bool:
        before = note(state)
        return before["server_pid"] is not None and serves(
            before["server_pid"], before["mountpoint"]
        )

    wait_until(is_there, "a server")
    os.kill(note(state)["server_pid"], signal.SIGKILL)


# -- it does not die -----------------------------------------------------------------------


def test_deleted_logs_and_an_unwritable_note_end_no_mount(mount: Mount, state: Path) -> None:
    logs = state / "logs"
    shutil.rmtree(logs)
    (file,) = (state / "mounts").glob("*.json")
    file.with_suffix(".new").mkdir()
    os.kill(mount.stats()["pid"], 40)  # a signal without a name
    assert read_anew(mount) == FILES["b"]
    assert "signal 40" in mount.stats()["last_end"]
    assert note(state)["restarts"] == 0
    logs.mkdir()
    file.with_suffix(".new").rmdir()
    os.kill(mount.stats()["pid"], signal.SIGKILL)
    assert read_anew(mount) == FILES["b"]
    wait_until(lambda: note(state)["restarts"] == 2, "it is not noted again")
    wait_until(lambda: any(logs.iterdir()), "no log is written again")


def test_a_missing_python_is_waited_for_and_commands_do_not_wait(
    source: str, tmp_path: Path, state: Path
) -> None:
    """As when its environment is built anew, or no process can be had for want of memory."""
    python, path = tmp_path / "python", tmp_path / "mnt"
    python.symlink_to(os.path.realpath(sys.executable))
    path.mkdir()
    mounted = subprocess.run(
        [str(python), "-m", "penstock", "mount", source, str(path), "-b", "--no-cache"],
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert mounted.returncode == 0, mounted.stderr
    supervisor = note(state)["pid"]

    def take_away() -> None:
        python.unlink()
        kill_server(state)
        wait_until(lambda: note(state)["state"] == "waiting", "waits")

    take_away()
    for words, code, message in (
        (("stats", path), 0, "no server could be started"),
        (("refresh", path), 1, "no server at the moment"),
        (("doctor", path), 2, "no server at the moment"),
        (("mount", source, path, "-b"), 2, "already a mount point"),
    ):
        result = penstock(*words)
        assert (result.returncode, message in result.stdout + result.stderr) == (code, True), words
    python.symlink_to(os.path.realpath(sys.executable))
    assert read_anew(Mount(path)) == FILES["b"]
    take_away()
    assert penstock("umount", path).returncode == 0
    assert not serves(supervisor, str(path))
    assert list((state / "mounts").iterdir()) == []


def test_a_folder_of_modules_with_our_names_is_not_imported(source: str, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    path.mkdir()
    write_tree(tmp_path / "project", {"queue.py": b"raise SystemExit", "penstock/x.py": b""})
    command = "import runpy; runpy.run_module('penstock', run_name='__main__')"
    mounted = subprocess.run(
        [sys.executable, "-Pc", command, "mount", source, str(path), "-b", "--no-cache"],
        cwd=tmp_path / "project",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert mounted.returncode == 0, mounted.stderr
    assert penstock("umount", path).returncode == 0


def test_a_stopped_supervisor_does_not_blame_its_stopped_server(
    source: str, mounter: Mounter, state: Path
) -> None:
    mount = mounter(source, "--watchdog", "4s")
    before = note(state)
    for pid in (before["pid"], before["server_pid"]):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4.5)  # longer than the watchdog's time
    looks = _times_it_waited(before["pid"])
    os.kill(before["pid"], signal.SIGCONT)
    wait_until(lambda: _times_it_waited(before["pid"]) > looks + 1, "it does not look at the clock")
    os.kill(before["server_pid"], signal.SIGCONT)
    assert read_anew(mount) == FILES["b"]
    assert mount.stats()["restarts"] == 0


def _times_it_waited(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


# -- nothing is left behind -------------------------------------------------------------------


def test_a_first_server_that_fails_after_mounting_leaves_no_mount(
    source: str, tmp_path: Path, state: Path
) -> None:
    path = tmp_path / "mnt"
    path.mkdir()
    # Its control socket cannot be made: the mount is there by then.
    (state / "mounts" / f"{name_of(path)}.sock").mkdir(parents=True)
    mounted = penstock("mount", source, path, "-b", "--no-cache")
    assert mounted.returncode == 1
    assert "directory" in mounted.stderr
    assert find_mount(path) is None


def test_a_cut_connection_leaves_no_dead_mount(mount: Mount, state: Path) -> None:
    supervisor = note(state)["pid"]
    with open(mount.path / "b", "rb"):
        # It is in use, so it stays; but its connection does not.
        assert subprocess.run(["umount", "-f", mount.path], capture_output=True).returncode != 0
        wait_until(lambda: not serves(supervisor, str(mount.path)), "ends")
    assert find_mount(mount.path) is None
    assert list((state / "mounts").iterdir()) == []
    mount._mounted = False


def test_a_detached_mount_does_not_touch_its_successor(
    source: str, mount: Mount, state: Path
) -> None:
    old = note(state)
    with open(mount.path / "b", "rb") as file:
        assert penstock("umount", mount.path, "--lazy").returncode == 0
        assert penstock("mount", source, mount.path, "-b").returncode == 0
        new = note(state)
        os.kill(old["server_pid"], signal.SIGKILL)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == FILES["b"]
        assert note(state) == new
        os.kill(old["pid"], signal.SIGTERM)
    wait_until(lambda: not serves(old["pid"], str(mount.path)), "ends")
    assert note(state) == new
    assert mount.stats()["supervisor_pid"] == new["pid"]
    assert read_anew(mount) == FILES["b"]


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that has got the number of one of ours."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def left(mount: Mount, state: Path, stranger: int) -> None:
    """A dead mount whose processes' numbers are others' by now."""
    before = note(state)
    for pid in (before["pid"], before["server_pid"]):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not serves(pid, str(mount.path)), "dead")
    wait_until(lambda: is_disconnected(mount.path), "its workers die with it")
    (file,) = (state / "mounts").glob("*.json")
    file.write_text(json.dumps({**before, "pid": stranger, "server_pid": stranger}))


@pytest.mark.usefixtures("left")
def test_a_reused_pid_does_not_keep_a_dead_mount(mount: Mount, source: str) -> None:
    listed = penstock("stats", "-o", "json")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
    again = penstock("mount", source, mount.path, "-b")
    assert again.returncode == 0, again.stderr
    assert "cleared away a dead mount at" in again.stderr
    assert read_anew(mount) == FILES["b"]


@pytest.mark.usefixtures("left")
def test_umount_does_not_wait_for_a_reused_pid(mount: Mount) -> None:
    started = time.monotonic()
    mount.umount()
    assert time.monotonic() - started < 30  # it would be sixty seconds


@pytest.mark.usefixtures("left")
def test_after_a_reboot_no_stale_note_is_trusted(mount: Mount, source: str, state: Path) -> None:
    subprocess.run(["umount", "-l", mount.path], check=True)
    assert json.loads(penstock("stats", "-o", "json").stdout) == []
    assert penstock("stats", mount.path).returncode != 0
    assert penstock("upgrade", mount.path).returncode == 2
    again = penstock("mount", source, mount.path, "-b")
    assert again.returncode == 0, again.stderr
    assert read_anew(mount) == FILES["b"]
    mount.umount()
    assert list((state / "mounts").iterdir()) == []


def test_a_mount_whose_supervisor_died_is_served_and_can_be_unmounted(
    source: str, mount: Mount, state: Path
) -> None:
    before = note(state)
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: not serves(before["pid"], str(mount.path)), "the supervisor lives")
    assert read_anew(mount) == FILES["b"]
    assert mount.stats()["state"] == "serving"
    for words, message in (
        (("upgrade", mount.path), "its supervisor is gone"),
        (("mount", source, mount.path, "-b"), "already a mount point"),
    ):
        result = penstock(*words)
        assert (result.returncode, message in result.stderr) == (2, True)
    # As if it had died between two servers.
    os.kill(before["server_pid"], signal.SIGKILL)
    (file,) = (state / "mounts").glob("*.json")
    file.write_text(json.dumps({**before, "state": "restarting", "server_pid": None}))
    assert "are gone" in penstock("doctor", mount.path).stdout
    for command in ("stats", "refresh", "upgrade"):
        result = penstock(command, mount.path)
        assert (result.returncode, "hint: penstock umount" in result.stderr) == (2, True)
    mount.umount()
    assert find_mount(mount.path) is None


# -- signals ---------------------------------------------------------------------------------


@contextmanager
def in_the_foreground(
    source: str, path: Path, *options: str, **more: Any
) -> Iterator["subprocess.Popen[str]"]:
    path.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "mount", source, str(path), "--no-cache", *options],
        stderr=subprocess.PIPE,
        text=True,
        **more,
    ) as process:
        try:
            wait_until(lambda: penstock("stats", path).returncode == 0, "it is not mounted")
            yield process
        finally:
            process.terminate()  # unless it has ended: a test that fails must leave no mount


def test_a_second_ctrl_c_ends_a_busy_mount_at_once(source: str, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    with in_the_foreground(source, path, "--grace", "1h") as process:
        descriptor = os.open(path / "b", os.O_RDONLY)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: find_mount(path) is None, "it is not detached")
        # Sooner it would be taken for the same; and a third could meet an interpreter that ends.
        time.sleep(_SECOND_CTRL_C_AFTER_S + 0.1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        with suppress(OSError):  # closing tells that nobody is there
            os.close(descriptor)
        assert (process.returncode, "Traceback" in stderr) == (0, False)


def test_nohup_keeps_a_foreground_mount_when_its_terminal_closes(
    source: str, tmp_path: Path, state: Path
) -> None:
    mount = Mount(tmp_path / "mnt")
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with in_the_foreground(source, mount.path, **ignore) as process:
        assert process.stderr is not None
        process.stderr.close()  # nobody reads its words any more
        process.send_signal(signal.SIGHUP)
        assert note(state)["pid"] == process.pid
        kill_server(state)
        assert read_anew(mount) == FILES["b"]
        assert mount.stats()["restarts"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


# -- upgrades --------------------------------------------------------------------------------


def test_new_keys_are_kept_and_not_mixed_with_old_ones(
    mounter: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signed_with() -> tuple[str, str]:
        mount.refresh()
        headers = server.requests[-1].headers
        key = headers["authorization"].partition("Credential=")[2].split("/")[0]
        return key, headers.get("x-amz-security-token", "")

    old = {"AWS_ACCESS_KEY_ID": "old", "AWS_SECRET_ACCESS_KEY": "old", "AWS_SESSION_TOKEN": "old"}
    new = {"AWS_ACCESS_KEY_ID": "new", "AWS_SECRET_ACCESS_KEY": "new"}
    for name, value in old.items():
        monkeypatch.setenv(name, value)
    with serve_liar() as server:
        server.answer = lambda _query: page([entry("file")])
        mount = mounter("s3://b", "--endpoint", server.endpoint)
        assert signed_with() == ("old", "old")
        os.kill(mount.stats()["pid"], signal.SIGKILL)
        wait_until(lambda: mount.stats()["restarts"] == 1)
        assert signed_with() == ("old", "old")
        for name in old:
            monkeypatch.delenv(name)
        for name, value in new.items():
            monkeypatch.setenv(name, value)
        assert penstock("upgrade", mount.path).returncode == 0
        assert signed_with() == ("new", "")
        for name in new:
            monkeypatch.delenv(name)
        assert penstock("upgrade", mount.path).returncode == 0
        assert signed_with() == ("new", "")
        mount.umount()


def test_a_mount_command_killed_while_it_lists_ends_at_once(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the listing makes no progress that anybody could be told of."""
    asked, may_answer = threading.Event(), threading.Event()

    def hang(_query: dict[str, str]) -> str:
        asked.set()
        may_answer.wait(PATIENCE_S)
        return page([])

    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with serve_liar() as server:
        server.answer = hang
        words = ["mount", "s3://b", mountpoint, "-b", "--no-cache", "--endpoint", server.endpoint]
        command = subprocess.Popen([sys.executable, "-m", "penstock", *words])
        try:
            assert asked.wait(PATIENCE_S)
            command.kill()
            command.wait()
            wait_until_unserved(mountpoint)
            assert not may_answer.is_set()
        finally:
            may_answer.set()
    log = (state / "logs" / f"{name_of(mountpoint)}.log").read_text()
    assert "the command that started this mount is gone" in log


@pytest.fixture
def leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """A supervisor that has got SIGTERM, over a mount that can be unmounted."""
    monkeypatch.setattr(supervisor, "_protect_from_oom_killer", lambda: 0)
    made = Supervisor(LaunchSpec(tmp_path, "file:///set", {}, sys.executable), Mock(end=None))
    made._mount = mount = Mock(is_kept=False, keeper=None)
    mount.is_over = lambda: mount.unmount.called
    made._server = Mock(unmounted=False)
    os.write(made._wake_writer, bytes([signal.SIGTERM]))
    made._on_wake()
    return made


def test_a_mount_reported_after_its_server_was_killed_is_unmounted(
    leaving: Supervisor,
) -> None:
    server = leaving._server
    assert isinstance(server, Mock)
    server.kill.assert_called_once()
    leaving._mount.is_kept = True  # its message was on the way
    leaving._on_server_end(server)
    leaving._mount.unmount.assert_called_once()
    assert leaving._exit_code == 128 + signal.SIGTERM, "it was never ready"


def test_a_mount_that_is_over_is_not_unmounted_again(leaving: Supervisor) -> None:
    """Another may be at its place by now, with the same device number."""
    leaving._note = Mock()
    leaving._on_server_end(Mock(unmounted=True))
    leaving._mount.unmount.assert_not_called()
    assert leaving._exit_code == 0


def test_another_request_is_not_taken_for_a_second_ctrl_c(leaving: Supervisor) -> None:
    leaving._signals = [signal.SIGINT]
    leave_by_s = leaving._end_by_s = time.monotonic() + leaving._plan.grace_s - 10
    os.write(leaving._wake_writer, b"\0")
    leaving._on_wake()
    assert leaving._end_by_s == leave_by_s
