"""A mount outlives its server: killed, hung, crashing, upgraded. Readers see a pause."""

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.mount import mount as mount_command
from penstock.cli.upgrade import _FIELDS
from tests.conftest import S3, Mount, Mounter, penstock, write_tree
from tests.mount.conftest import MODES, needs_passthrough
from tests.survival.kills import kill_again_and_again, note, wait_until

FILES = {
    **{f"d{n % 7}/f{n}": random.Random(n).randbytes(20_000 + n * 300) for n in range(150)},
    **{f"large{n}": random.Random(n).randbytes(3_000_000 + n) for n in range(3)},
}


@pytest.fixture
def mode() -> str:
    """Where the mode makes no difference; a test for which it does has it as a parameter."""
    return "auto"


both_modes = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def watchdog() -> str:
    """Long, so that a busy machine is not taken for a server that hangs."""
    return "60s"


@pytest.fixture
def mount(mode: str, watchdog: str, tmp_path: Path, mounter: Mounter) -> Mount:
    write_tree(tmp_path / "set", FILES)
    return mounter(
        f"file://{tmp_path}/set", "--mode", mode, "--block-size", "1MiB", "--watchdog", watchdog
    )


@pytest.mark.parametrize(
    ("mode", "kernel"),
    [("pagecache", "resends"),
     pytest.param("passthrough", "does not resend", marks=needs_passthrough)],
)  # fmt: skip
def test_kills_under_sixteen_readers_cost_no_error_and_no_byte(
    mode: str, kernel: str, s3: S3, tmp_path: Path, state: Path, mounter: Mounter
) -> None:
    name = f"kills-{mode}-{kernel[:4].strip()}"
    write_tree(s3.bucket(name), FILES)
    # A cache that holds two thirds of it: files are opened and read in every way there is.
    mounter(
        f"s3://{name}", "--endpoint", s3.endpoint, "--mode", mode, "--block-size", "1MiB",
        "--cache-size", "10MiB", *(() if kernel == "resends" else ("-o", "no_resend")),
    )  # fmt: skip
    found = kill_again_and_again(
        tmp_path / "mnt1", s3.folder / name, state, kills=8, readers=16, seed=3
    )
    assert (found["errors"], found["wrong"]) == ([], [])
    assert found["reads"] > 100


def read_all(mount: Mount) -> dict[str, bytes]:
    return {name: (mount.path / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("watchdog", ["2s"])
def test_a_server_that_hangs_is_replaced(mount: Mount) -> None:
    before = mount.stats()
    os.kill(before["pid"], signal.SIGSTOP)
    assert read_all(mount) == FILES  # waits for the watchdog
    after = mount.stats()
    assert (after["restarts"], after["pid"] != before["pid"]) == (1, True)
    assert "no sign of life" in after["last_end"]
    assert after["supervisor_pid"] == before["supervisor_pid"]


@both_modes
def test_files_that_are_open_stay_open_over_a_kill(mount: Mount, mode: str) -> None:
    """Opened before any byte was cached, opened when all was, and opened after the kill."""
    path, expected = mount.path / "large1", FILES["large1"]
    with open(path, "rb") as cold:
        assert cold.read(10) == expected[:10]
        (mount.path / "large2").read_bytes()
        mount.wait_until_cached("large2")
        with open(mount.path / "large2", "rb") as cached:
            os.kill(mount.stats()["pid"], signal.SIGKILL)
            assert cold.read() == expected[10:]
            assert cached.read() == FILES["large2"]
            with open(mount.path / "large2", "rb") as again, open(path, "rb") as too:
                os.kill(mount.stats()["pid"], signal.SIGKILL)
                assert again.read() == FILES["large2"]
                assert too.read() == expected
    assert (mount.path / "large2").read_bytes() == FILES["large2"]
    assert mount.stats()["restarts"] == 2
    if mode == "passthrough":
        assert mount.stats()["passthrough_opens"] > 0


@both_modes
def test_a_change_that_a_killed_server_had_not_told_the_kernel_is_told_by_the_next(
    mount: Mount, tmp_path: Path, state: Path
) -> None:
    assert (mount.path / "d1/f1").read_bytes() == FILES["d1/f1"]
    (tmp_path / "set/d1/f1").write_bytes(b"new")
    # Another process refreshes the catalog that both share, as if ours had died in between.
    other = tmp_path / "other"
    other.mkdir()
    assert penstock("mount", f"file://{tmp_path}/set", other, "-b", "--no-cache").returncode == 0
    assert penstock("refresh", other).returncode == 0
    assert penstock("umount", other).returncode == 0
    before = note(state)["restarts"]  # on a busy machine its watchdog may have bitten already
    os.kill(mount.stats()["pid"], signal.SIGKILL)
    wait_until(
        lambda: note(state)["state"] == "serving" and note(state)["restarts"] > before, "back"
    )
    # It serves, and tells the kernel what has changed.
    wait_until(lambda: (mount.path / "d1/f1").read_bytes() == b"new", "told")


@both_modes
def test_a_dead_node_is_kept_for_the_kernel_while_no_server_runs(
    mount: Mount, tmp_path: Path
) -> None:
    """Only the first user of a catalog clears it; between two servers the supervisor is one."""
    with open(mount.path / "d1/f1", "rb") as file:
        assert file.read(5) == FILES["d1/f1"][:5]
        (tmp_path / "set/d1/f1").unlink()
        mount.refresh()
        os.kill(mount.stats()["pid"], signal.SIGKILL)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == FILES["d1/f1"][5:]  # its old bytes are in the cache


# -- crash loops --------------------------------------------------------------------------


def break_the_catalog(state: Path, tmp_path: Path) -> Callable[[], None]:
    """So that no server can start; returns what mends it."""
    # Away with its journal too: what is written there would be read instead.
    files = sorted((state / "catalogs").glob("*.sqlite*"))
    away = tmp_path / "away"
    away.mkdir()
    for file in files:
        file.rename(away / file.name)
    files[0].write_bytes(b"this is no database" * 1000)

    def mend() -> None:
        for file in files:
            (away / file.name).rename(file)

    return mend


def test_a_crash_loop_backs_off_and_says_why(mount: Mount, state: Path, tmp_path: Path) -> None:
    server = mount.stats()["pid"]
    mend = break_the_catalog(state, tmp_path)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: note(state)["state"] == "waiting", "backs off")
    found = penstock("stats", mount.path)
    assert found.returncode == 0
    said = " ".join(found.stdout.split())  # as wide as it may be
    assert "not a database" in said
    assert "again and again" in said
    told: dict[str, Any] = json.loads(penstock("stats", mount.path, "-o", "json").stdout)
    assert (told["state"], told["restarts"] >= 4) == ("waiting", True)
    (log,) = (state / "logs").glob("*.log")
    assert "not a database" in log.read_text()
    mend()
    assert read_all(mount) == FILES  # waits, and gets it


@pytest.mark.parametrize("options", [(), ("-o", "no_resend")])
def test_when_no_server_can_be_started_readers_get_eio_and_do_not_hang(
    tmp_path: Path, state: Path, mounter: Mounter, options: tuple[str, ...]
) -> None:
    write_tree(tmp_path / "set", FILES)
    mount = mounter(f"file://{tmp_path}/set", "--give-up", "1s", *options)
    names = list(FILES)
    assert (mount.path / names[0]).read_bytes() == FILES[names[0]]
    server = mount.stats()["pid"]
    mend = break_the_catalog(state, tmp_path)
    os.kill(server, signal.SIGKILL)
    with ThreadPoolExecutor(8) as readers:
        errors = list(readers.map(lambda name: error_of(mount.path / name), names[1:9]))
    assert errors == [errno.EIO] * 8
    mend()
    wait_until(lambda: note(state)["state"] == "serving", "back")
    assert read_all(mount) == FILES


def error_of(path: Path) -> int | None:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


# -- upgrades -----------------------------------------------------------------------------


@both_modes
def test_an_upgrade_under_readers_is_not_noticed(mount: Mount) -> None:
    wrong: list[str] = []
    stop = threading.Event()

    def reader() -> None:
        while not stop.is_set():
            for name in list(FILES)[::5]:
                descriptor = os.open(mount.path / name, os.O_RDONLY)
                data = os.pread(descriptor, len(FILES[name]), 0)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
                if data != FILES[name]:
                    wrong.append(name)

    readers = [threading.Thread(target=reader) for _ in range(4)]
    for one in readers:
        one.start()
    before = mount.stats()
    for threads in (8, 12, 16):
        result = penstock("upgrade", mount.path, "--threads", str(threads))
        assert result.returncode == 0, result.stderr
        assert "readers waited" in result.stderr
    stop.set()
    for one in readers:
        one.join()
    after = mount.stats()
    assert wrong == []
    assert after["pid"] != before["pid"]
    assert (after["restarts"], after["supervisor_pid"]) == (0, before["supervisor_pid"])
    assert read_all(mount) == FILES


def test_an_upgrade_that_cannot_start_leaves_the_old_server(mount: Mount, tmp_path: Path) -> None:
    before = mount.stats()
    result = penstock("upgrade", mount.path, "--cache-dir", "/proc/none")
    assert result.returncode == 2
    assert "the new server could not start: cache directory /proc/none" in result.stderr
    assert "hint:" in result.stderr
    assert mount.stats()["pid"] == before["pid"]
    assert read_all(mount) == FILES


def test_what_cannot_change_while_mounted_is_refused(tmp_path: Path, mounter: Mounter) -> None:
    write_tree(tmp_path / "set", {"a": b"a"})
    mount = mounter(f"file://{tmp_path}/set")
    for options in (
        ("--allow-other",), ("-o", "max_read=65536"), ("--endpoint", "http://127.0.0.1:1"),
    ):  # fmt: skip
        result = penstock("upgrade", mount.path, *options)
        assert result.returncode == 2, options
        assert "cannot change while it is mounted" in result.stderr


def test_an_upgrade_changes_what_was_said_and_keeps_the_rest(
    tmp_path: Path, mounter: Mounter
) -> None:
    write_tree(tmp_path / "set", {"a": b"a" * 2000})
    mount = mounter(f"file://{tmp_path}/set", "--cache-size", "5MiB", "--uid", "77")
    assert penstock("upgrade", mount.path, "--cache-size", "7MiB").returncode == 0
    (tier,) = mount.stats()["tiers"]
    assert (tier["quota_bytes"], tier["paths"]) == (7 << 20, [str(tmp_path / "cache")])
    assert (mount.path / "a").stat().st_uid == 77


# -- the processes -------------------------------------------------------------------------


def test_the_supervisor_is_small_and_is_killed_last_and_no_argument_tells_more_than_the_mount_point(
    mount: Mount,
) -> None:
    stats = mount.stats()
    for pid in (stats["pid"], stats["supervisor_pid"]):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert os.fsencode(mount.path) in words
        assert len(words) <= 6
    pages = int(Path(f"/proc/{stats['supervisor_pid']}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 30 << 20
    scores = [
        int(Path(f"/proc/{stats[name]}/oom_score_adj").read_text())
        for name in ("supervisor_pid", "pid")
    ]
    assert scores[0] < scores[1]


def test_a_mount_in_the_foreground_is_supervised_too(tmp_path: Path) -> None:
    write_tree(tmp_path / "set", FILES)
    path = tmp_path / "mnt"
    path.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "mount", f"file://{tmp_path}/set", str(path),
         "--cache-dir", str(tmp_path / "cache")], stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: penstock("stats", path).returncode == 0, "mounted, and noted as such")
        mount = Mount(path)
        stats = mount.stats()
        assert stats["supervisor_pid"] == process.pid
        os.kill(stats["pid"], signal.SIGKILL)
        digest = hashlib.sha256((path / "large1").read_bytes()).digest()
        assert digest == hashlib.sha256(FILES["large1"]).digest()
        assert mount.stats()["restarts"] == 1
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said
        assert "Traceback" not in said
    finally:
        process.terminate()  # unless it has ended: what fails must leave no mount
        process.wait(30)


def test_every_option_of_a_mount_can_be_changed_by_an_upgrade_or_is_refused() -> None:
    names = {parameter.name for parameter in mount_command.params}
    assert names - {"source", "mountpoint", "in_background", "o"} == set(_FIELDS)
