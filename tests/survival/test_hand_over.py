"""A mount outlives its server: killed, hung, crashing, upgraded. Readers see a pause."""

import errno
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.mount import mount as mount_command
from penstock.integrations.plans import open_plan
from penstock.settings import OPTION_OF_FIELD, OPTIONS, STORE_OPTIONS, TIER_OPTIONS
from tests.support.faults import Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kills import kill_again_and_again, note, reading
from tests.support.mounts import Mount, Mounter, both_modes, needs_passthrough, penstock
from tests.support.s3 import S3
from tests.support.trees import read_or_errno, write_tree
from tests.support.waiting import wait_until, wait_until_gone

FILES = {
    **{f"d{n % 7}/f{n}": random.Random(n).randbytes(20_000 + n * 300) for n in range(40)},
    **{f"large{n}": random.Random(n).randbytes(2_200_000 + n) for n in range(3)},
}


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
    [("pagecache", ()), pytest.param("passthrough", ("-o", "no_resend"), marks=needs_passthrough)],
    ids=["pagecache", "passthrough, as before Linux 6.9"],
)
def test_kills_under_sixteen_readers_cost_no_error_and_no_byte(
    mode: str,
    options: tuple[str, ...],
    kills: int,
    s3: S3,
    bucket: str,
    state: Path,
    mounter: Mounter,
) -> None:
    # A cache that holds two thirds of it: files are opened and read in every way there is.
    mount = mounter(
        bucket,
        "--endpoint",
        s3.endpoint,
        "--mode",
        mode,
        "--block-size",
        "1MiB",
        "--cache-size",
        "5MiB",
        *options,
    )
    kill_again_and_again(mount.path, FILES, state, kills=kills, readers=16, seed=3)


def read_all(mount: Mount) -> dict[str, bytes]:
    return {name: (mount.path / name).read_bytes() for name in FILES}


def test_a_hanging_server_is_replaced(source: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{source}", "--watchdog", "2s")
    before = mount.stats()
    os.kill(before["pid"], signal.SIGSTOP)
    assert read_all(mount) == FILES  # waits for the watchdog
    after = mount.stats()
    assert after["restarts"] >= 1  # on a busy machine the next one may be slow, too
    assert after["pid"] != before["pid"]
    assert "no message for" in after["last_end"]
    assert after["supervisor_pid"] == before["supervisor_pid"]


@both_modes
def test_open_files_stay_open_over_a_kill(source: Path, mounter: Mounter, mode: str) -> None:
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


def test_a_change_not_yet_sent_to_the_kernel_is_sent_by_the_next_server(
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


@pytest.mark.parametrize("end", ["killed", "upgraded"])
def test_the_next_server_starts_while_the_killed_one_cannot_die_yet(
    s3: S3, mounter: Mounter, state: Path, end: str
) -> None:
    """One of its threads waits in the kernel for a page. That page is locked by a read that only
    the next server answers: whoever waits for the end of the killed one waits for ever."""
    bucket = f"half-dead-{end}"
    write_tree(s3.bucket(bucket), {"a": b"some" * 1000, "b": b"more" * 1000})
    # The cache is full of another file: the killed server still holds the locks of its directory.
    # Neither the watchdog nor the deadline is what ends the wait. Without any memory to spare, the
    # plan drops each file behind its readers.
    proxy = FaultyProxy(s3.endpoint, seed=1)
    mount = mounter(
        f"s3://{bucket}",
        "--endpoint",
        proxy.endpoint,
        "--mode",
        "pagecache",
        "--watchdog",
        "100s",
        "--deadline",
        "100s",
        "--cache-size=6000B",
        "--page-cache",
        "0",
    )
    (mount.path / "b").read_bytes()
    mount.wait_until_cached("b")
    with proxy, open_plan([str(mount.path / "a")], label="half dead") as plan:

        def plan_value(name: str) -> Any:
            return mount.stats()["plans"][0][name]

        plan.extend([0])
        wait_until(lambda: plan_value("fetched") == 1, "pushed")
        plan.reached(1)
        wait_until(lambda: plan_value("dropped") == 1, "dropped behind the cursor")
        proxy.script([Fault.STALL], wait_s=100)
        reader = subprocess.Popen(["cat", mount.path / "a"], stdout=subprocess.PIPE)
        wait_until(lambda: mount.stats()["fetching"] == 1, "a reader has locked its page")
        server = note(state)["server_pid"]
        plan.extend([0])
        wait_until(lambda: plan_value("ahead") == 2, "planned again")
        plan.reached(2)
        wait_until(lambda: _waits_for_a_page(server), "the server waits for that page")
        if end == "killed":
            os.kill(server, signal.SIGKILL)
        else:
            assert penstock("upgrade", mount.path).returncode == 0
        wait_until(lambda: note(state)["server_pid"] not in (None, server), "taken over")
        proxy.calm()
        assert reader.communicate(timeout=30)[0] == b"some" * 1000
        assert mount.stats()["restarts"] == (1 if end == "killed" else 0)
        assert plan_value("label") == "half dead"
        wait_until_gone(server)


def _waits_for_a_page(pid: int) -> bool:
    try:
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except OSError:  # a thread has ended meanwhile
        return False
    return "D" in states


# -- crash loops --------------------------------------------------------------------------


def leave_no_place_for_catalogs(state: Path, tmp_path: Path) -> Callable[[], None]:
    """So that no server can start; returns what mends it."""
    catalogs = (state / "catalogs").rename(tmp_path / "away")
    (state / "catalogs").write_text("this is no folder")

    def mend() -> None:
        (state / "catalogs").unlink()
        catalogs.rename(state / "catalogs")

    return mend


@pytest.mark.parametrize("options", [(), pytest.param(("-o", "no_resend"), marks=pytest.mark.slow)])
def test_a_crash_loop_backs_off_logs_the_reason_and_gives_readers_eio(
    source: Path, tmp_path: Path, state: Path, mounter: Mounter, options: tuple[str, ...]
) -> None:
    mount = mounter(f"file://{source}", "--give-up", "1s", *options)
    names = list(FILES)
    assert (mount.path / names[0]).read_bytes() == FILES[names[0]]
    server = mount.stats()["pid"]
    mend = leave_no_place_for_catalogs(state, tmp_path)
    os.kill(server, signal.SIGKILL)
    with ThreadPoolExecutor(8) as readers:
        errors = list(readers.map(lambda name: read_or_errno(mount.path / name), names[1:9]))
    assert errors == [errno.EIO] * 8
    wait_until(lambda: note(state)["state"] == "waiting", "backs off")
    found = penstock("stats", mount.path)
    assert found.returncode == 0
    output = " ".join(found.stdout.split())  # as wide as it may be
    assert "Not a directory" in output
    assert "keeps crashing" in output
    reported: dict[str, Any] = json.loads(penstock("stats", mount.path, "-o", "json").stdout)
    assert (reported["state"], reported["restarts"] >= 4) == ("waiting", True)
    (log,) = (state / "logs").glob("*.log")
    assert "Not a directory" in log.read_text()
    mend()
    wait_until(lambda: note(state)["state"] == "serving", "back")
    assert read_all(mount) == FILES


# -- upgrades -----------------------------------------------------------------------------


@both_modes
def test_an_upgrade_is_invisible_to_readers(source: Path, mounter: Mounter, mode: str) -> None:
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


def test_an_upgrade_changes_the_given_options_or_leaves_the_old_server(
    source: Path, mounter: Mounter
) -> None:
    mount = mount_folder(mounter, source, "auto", "--cache-size", "5MiB", "--uid", "77")
    before = mount.stats()
    for options, message in (
        (("--cache-dir", "/proc/none"), "could not start: cache directory /proc/none"),
        (("--allow-other",), "cannot change while it is mounted"),
        (("-o", "max_read=65536"), "cannot change while it is mounted"),
        (("--endpoint", "http://127.0.0.1:1"), "cannot change while it is mounted"),
    ):
        result = penstock("upgrade", mount.path, *options)
        assert (result.returncode, message in result.stderr) == (2, True), options
    assert mount.stats()["pid"] == before["pid"]
    assert read_all(mount) == FILES
    assert penstock("upgrade", mount.path, "--cache-size", "7MiB").returncode == 0
    (tier,) = mount.stats()["tiers"]
    assert (tier["quota_bytes"], tier["paths"]) == (7 << 20, [str(mount.path.parent / "cache")])
    assert (mount.path / "large1").stat().st_uid == 77


# -- the processes -------------------------------------------------------------------------


def test_the_supervisor_is_small_killed_last_and_has_only_the_mount_point_in_its_arguments(
    source: Path, mounter: Mounter
) -> None:
    mount = mount_folder(mounter, source)
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


def test_every_mount_option_can_be_changed_by_an_upgrade_or_is_rejected() -> None:
    names = {(parameter.name or "").replace("_", "-") for parameter in mount_command.params}
    assert names - {"source", "mountpoint", "in-background", "o"} == set(OPTIONS)
    changeable = [*OPTION_OF_FIELD.values(), *STORE_OPTIONS.values(), *TIER_OPTIONS]
    assert {option.name for option in changeable if option.name} == set(OPTIONS)
