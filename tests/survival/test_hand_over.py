"""A mount outlives its server: killed, hung, crashing, upgraded. Readers see a pause."""

import errno
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.mount import mount as mount_command
from penstock.cli.upgrade import _FIELDS
from tests.support.kills import kill_again_and_again, note, reading
from tests.support.mounts import MODES, Mount, Mounter, needs_passthrough, penstock
from tests.support.s3 import S3
from tests.support.shared_mounts import Shared, sharing
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

FILES = {
    **{f"d{n % 7}/f{n}": random.Random(n).randbytes(20_000 + n * 300) for n in range(40)},
    **{f"large{n}": random.Random(n).randbytes(2_200_000 + n) for n in range(3)},
}
both_modes = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that do not change it."""
    folder = tmp_path_factory.mktemp("set")
    write_tree(folder, FILES)
    return folder


def mount_folder(mounter: Mounter, folder: Path, mode: str = "auto", *options: str) -> Mount:
    # The watchdog is slow, so that a busy machine is not taken for a server that hangs.
    options = ("--mode", mode, "--block-size", "1MiB", "--watchdog", "60s", *options)
    return mounter(f"file://{folder}", *options)


@pytest.fixture(scope="module")
def bucket(_s3_server: S3) -> str:
    write_tree(_s3_server.bucket("kills"), FILES)
    return "s3://kills"


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("mode", "options"),
    [("pagecache", ()),
     pytest.param("passthrough", ("-o", "no_resend"), marks=needs_passthrough)],
    ids=["pagecache", "passthrough, as before Linux 6.9"],
)  # fmt: skip
def test_kills_under_sixteen_readers_cost_no_error_and_no_byte(
    mode: str, options: tuple[str, ...], kills: int, s3: S3, bucket: str, state: Path,
    mounter: Mounter,
) -> None:  # fmt: skip
    # A cache that holds two thirds of it: files are opened and read in every way there is.
    mount = mounter(
        bucket, "--endpoint", s3.endpoint, "--mode", mode, "--block-size", "1MiB",
        "--cache-size", "5MiB", *options,
    )  # fmt: skip
    kill_again_and_again(mount.path, FILES, state, kills=kills, readers=16, seed=3)


def read_all(mount: Mount) -> dict[str, bytes]:
    return {name: (mount.path / name).read_bytes() for name in FILES}


def test_a_server_that_hangs_is_replaced(source: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{source}", "--watchdog", "2s")
    before = mount.stats()
    os.kill(before["pid"], signal.SIGSTOP)
    assert read_all(mount) == FILES  # waits for the watchdog
    after = mount.stats()
    assert after["restarts"] >= 1  # on a busy machine the next one may be slow, too
    assert after["pid"] != before["pid"]
    assert "no sign of life" in after["last_end"]
    assert after["supervisor_pid"] == before["supervisor_pid"]


@both_modes
def test_files_that_are_open_stay_open_over_a_kill(
    source: Path, mounter: Mounter, mode: str
) -> None:
    """Opened before any byte was cached, opened when all was, and opened after the kill."""
    mount = mount_folder(mounter, source, mode)
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


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A source that the test may change."""
    write_tree(tmp_path / "set", {"file": b"old bytes"})
    return tmp_path / "set"


def test_a_change_that_a_killed_server_had_not_told_the_kernel_is_told_by_the_next(
    own: Path, tmp_path: Path, mounter: Mounter, state: Path
) -> None:
    mount = mount_folder(mounter, own)
    assert (mount.path / "file").read_bytes() == b"old bytes"
    (own / "file").write_bytes(b"new")
    # Another process refreshes the catalog that both share, as if ours had died in between.
    other = tmp_path / "other"
    other.mkdir()
    assert penstock("mount", f"file://{own}", other, "-b", "--no-cache").returncode == 0
    assert penstock("refresh", other).returncode == 0
    assert penstock("umount", other).returncode == 0
    os.kill(mount.stats()["pid"], signal.SIGKILL)
    # The next server serves, and tells the kernel what has changed.
    wait_until(lambda: (mount.path / "file").read_bytes() == b"new", "the kernel was not told")
    assert note(state)["restarts"] == 1


def test_a_dead_node_is_kept_for_the_kernel_while_no_server_runs(
    own: Path, mounter: Mounter
) -> None:
    """Only the first user of a catalog clears it; between two servers the supervisor is one."""
    mount = mount_folder(mounter, own, "pagecache")
    with open(mount.path / "file", "rb", 0) as file:
        assert file.read(3) == b"old"
        mount.wait_until_cached("file")
        (own / "file").unlink()
        mount.refresh()
        os.kill(mount.stats()["pid"], signal.SIGKILL)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == b" bytes"  # from the cache


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


def test_a_crash_loop_backs_off_and_says_why(
    source: Path, mounter: Mounter, state: Path, tmp_path: Path
) -> None:
    mount = mount_folder(mounter, source)
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


@pytest.mark.parametrize("options", [(), pytest.param(("-o", "no_resend"), marks=pytest.mark.slow)])
def test_when_no_server_can_be_started_readers_get_eio_and_do_not_hang(
    source: Path, tmp_path: Path, state: Path, mounter: Mounter, options: tuple[str, ...]
) -> None:
    mount = mounter(f"file://{source}", "--give-up", "1s", *options)
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
def test_an_upgrade_under_readers_is_not_noticed(source: Path, mounter: Mounter, mode: str) -> None:
    mount = mount_folder(mounter, source, mode)
    before = mount.stats()
    with reading(mount.path, FILES, readers=4, seed=1) as readers:
        readers.wait_for_more()
        result = penstock("upgrade", mount.path, "--threads", "12")
        readers.wait_for_more()
    assert result.returncode == 0, result.stderr
    assert "readers waited" in result.stderr
    after = mount.stats()
    assert after["pid"] != before["pid"]
    assert (after["restarts"], after["supervisor_pid"]) == (0, before["supervisor_pid"])
    assert read_all(mount) == FILES


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with sharing(folder) as mounter:
        mount = mount_folder(mounter, source, "auto", "--cache-size", "5MiB", "--uid", "77")
        yield Shared(mount, folder / "state")


@pytest.fixture
def shared(_shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Mount:
    """A mount for tests that leave it as it was, or nearly."""
    return _shared.enter(monkeypatch)


def test_an_upgrade_that_cannot_start_leaves_the_old_server(shared: Mount) -> None:
    before = shared.stats()
    result = penstock("upgrade", shared.path, "--cache-dir", "/proc/none")
    assert result.returncode == 2
    assert "the new server could not start: cache directory /proc/none" in result.stderr
    assert "hint:" in result.stderr
    assert shared.stats()["pid"] == before["pid"]
    assert read_all(shared) == FILES


def test_what_cannot_change_while_mounted_is_refused(shared: Mount) -> None:
    for options in (
        ("--allow-other",), ("-o", "max_read=65536"), ("--endpoint", "http://127.0.0.1:1"),
    ):  # fmt: skip
        result = penstock("upgrade", shared.path, *options)
        assert result.returncode == 2, options
        assert "cannot change while it is mounted" in result.stderr


def test_an_upgrade_changes_what_was_said_and_keeps_the_rest(shared: Mount) -> None:
    assert penstock("upgrade", shared.path, "--cache-size", "7MiB").returncode == 0
    (tier,) = shared.stats()["tiers"]
    assert (tier["quota_bytes"], tier["paths"]) == (7 << 20, [str(shared.path.parent / "cache")])
    assert (shared.path / "large1").stat().st_uid == 77


# -- the processes -------------------------------------------------------------------------


def test_the_supervisor_is_small_and_is_killed_last_and_no_argument_tells_more_than_the_mount_point(
    shared: Mount,
) -> None:
    stats = shared.stats()
    for pid in (stats["pid"], stats["supervisor_pid"]):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert os.fsencode(shared.path) in words
        assert len(words) <= 6
    pages = int(Path(f"/proc/{stats['supervisor_pid']}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 30 << 20
    scores = [
        int(Path(f"/proc/{stats[name]}/oom_score_adj").read_text())
        for name in ("supervisor_pid", "pid")
    ]
    assert scores[0] < scores[1]


def test_every_option_of_a_mount_can_be_changed_by_an_upgrade_or_is_refused() -> None:
    names = {parameter.name for parameter in mount_command.params}
    assert names - {"source", "mountpoint", "in_background", "o"} == set(_FIELDS)
