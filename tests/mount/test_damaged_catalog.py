"""A catalog that is damaged under a mount, or before there is one: what readers see, and people."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from penstock.daemon import supervisor
from penstock.daemon.server_process import LaunchSpec
from penstock.daemon.supervisor import Supervisor
from tests.support.damage import CATALOG_DAMAGES
from tests.support.faults import Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kernelcaches import forget
from tests.support.kills import note
from tests.support.mounts import Mount, Mounter, both_modes, fail, penstock, succeed
from tests.support.s3 import ObjectPath
from tests.support.trees import read_or_errno, read_tree, write_tree
from tests.support.waiting import PATIENCE_S, wait_until

FILES = {
    f"folder-{i // 100}/a-file-with-a-name-{i:04}": random.Random(i).randbytes(100 + i)
    for i in range(900)
}
SOME = [name for name in FILES if name.startswith("folder-2/")]
FIRST = "folder-5/a-file-with-a-name-0500"


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, FILES)
    return empty_bucket


@pytest.fixture
def own(proxy: FaultyProxy, mounter: Mounter, bucket: ObjectPath) -> Mounter:
    def mount(*options: str | Path) -> Mount:
        return mounter(bucket.source, "--endpoint", proxy.endpoint, "--refresh", "never", *options)

    return mount


def damage(state: Path, name: str) -> Path:
    (catalog,) = (state / "catalogs").glob("*.sqlite")
    CATALOG_DAMAGES[name](catalog, random.Random(3))
    return catalog


def wait_until_healed(mount: Mount) -> None:
    def is_healed() -> bool:
        found = mount.stats()["catalog_damage"]
        return found is not None and found["healed"]

    wait_until(is_healed, "the catalog is not made anew")


@pytest.mark.parametrize(
    ("name", "workers"),
    [("header", "1"), ("bits", "1"), ("gone", "1"), ("bits", "2"), ("half", "2"), ("text", "2")],
)
def test_readers_of_a_damaged_catalog_wait_for_the_rebuilt_one(
    own: Mounter, state: Path, name: str, workers: str
) -> None:
    mount = own("--workers", workers)
    assert read_tree(mount.path) == FILES
    damage(state, name)
    forget(mount.path)
    assert not (mount.path / "nothing").exists()
    assert read_tree(mount.path) == FILES
    wait_until_healed(mount)
    stats = mount.stats()
    assert (stats["files"], stats["errors"], stats["restarts"]) == (len(FILES), 0, 0)


@both_modes
def test_open_files_and_cached_data_are_served_while_the_store_is_away(
    own: Mounter, state: Path, proxy: FaultyProxy, mode: str
) -> None:
    mount = own("--mode", mode, "--deadline", "4s")
    assert read_tree(mount.path) == FILES
    for some in SOME:
        mount.wait_until_cached(some)
    with ExitStack() as stack:
        held = {some: stack.enter_context(open(mount.path / some, "rb", 0)) for some in SOME}
        proxy.down()
        damage(state, "leaf_page_of_an_index")  # the rows themselves are on other pages
        forget(mount.path)
        for some, file in held.items():
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read() == FILES[some]
        assert read_or_errno(mount.path / FIRST) == FILES[FIRST]
        # What cannot be known is an error, and not that there is nothing.
        for ask in (os.listdir, lambda folder: os.stat(folder / "nothing")):
            with pytest.raises(OSError, match="Input/output error"):
                ask(mount.path / "folder-5")
        assert mount.stats()["catalog_damage"]["healed"] is False
        assert "its catalog was damaged, and is not rebuilt yet" in penstock("doctor").stdout
        proxy.up()
        mount.refresh()
        assert mount.stats()["catalog_damage"]["healed"] is True
        assert read_tree(mount.path) == FILES
        for some, file in held.items():
            assert os.fstat(file.fileno()).st_ino == (mount.path / some).stat().st_ino


@pytest.mark.parametrize("workers", ["1", "2"])
def test_files_are_found_while_a_listing_that_began_before_the_damage_runs(
    own: Mounter, state: Path, proxy: FaultyProxy, workers: str
) -> None:
    mount = own("--workers", workers, "--deadline", "20s")
    assert read_tree(mount.path) == FILES
    listings = proxy.listings
    proxy.inject({}, listing_rates={Fault.STALL: 1.0}, wait_s=PATIENCE_S)
    refreshing = threading.Thread(target=mount.refresh)
    refreshing.start()
    try:
        wait_until(lambda: proxy.listings > listings)
        damage(state, "leaf_page_of_an_index")
        forget(mount.path)
        assert read_or_errno(mount.path / FIRST) == FILES[FIRST]
        assert mount.stats()["catalog_damage"]["healed"] is False
    finally:
        proxy.calm()
        refreshing.join()
    assert read_tree(mount.path) == FILES
    assert (mount.stats()["errors"], mount.stats()["restarts"]) == (0, 0)


@pytest.mark.parametrize(("name", "workers"), [("schema", "1"), ("bits", "2"), ("empty", "1")])
def test_a_server_killed_after_the_damage_is_replaced_once(
    own: Mounter, state: Path, name: str, workers: str
) -> None:
    mount = own("--workers", workers)
    assert read_tree(mount.path) == FILES
    damage(state, name)
    os.kill(note(state)["server_pid"], signal.SIGKILL)
    forget(mount.path)
    assert read_tree(mount.path) == FILES
    wait_until_healed(mount)
    assert (mount.stats()["restarts"], mount.stats()["errors"]) == (1, 0)


def test_a_refresh_repairs_the_catalog_and_stats_and_doctor_report_it(
    own: Mounter, state: Path
) -> None:
    mount = own()
    before = {path: path.stat().st_ino for path in mount.path.glob("*/*")}
    catalog = damage(state, "leaf_page_of_an_index")
    assert "900 files" in succeed("refresh", mount.path)
    assert {path: path.stat().st_ino for path in mount.path.glob("*/*")} == before
    assert "pages are damaged; rebuilt" in succeed("stats", mount.path)
    assert "its catalog was damaged" in penstock("doctor").stdout
    (log,) = (state / "logs").glob("*.log")
    assert f"it is kept as {catalog.name}.damaged" in log.read_text()


def test_a_mount_with_a_damaged_catalog_lists_the_store_or_reports_why_not(
    own: Mounter, state: Path, proxy: FaultyProxy, bucket: ObjectPath, tmp_path: Path
) -> None:
    mount = own()
    mount.umount()
    catalog = damage(state, "bits")
    damaged = catalog.read_bytes()
    proxy.down()
    arguments = (
        "mount",
        bucket.source,
        mount.path,
        "-b",
        "--endpoint",
        proxy.endpoint,
        "--deadline",
        "1s",
        "--no-cache",
    )
    output = fail(*arguments, code=3)
    assert "has to be listed again, since" in output
    assert "pages are damaged" in output
    assert Path(f"{catalog}.damaged").read_bytes() == damaged
    proxy.up()
    again = own()
    assert read_tree(again.path) == FILES
    assert again.stats()["catalog_damage"]["healed"] is True


def test_a_server_that_rebuilds_its_catalog_gets_time_and_one_that_hangs_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog of ten million files takes longer than a minute to be made anew."""
    monkeypatch.setattr(supervisor, "_protect_from_oom_killer", lambda: 0)
    monkeypatch.setattr(supervisor, "_PREPARE_WITHIN_S", 1.0)
    made = Supervisor(LaunchSpec(tmp_path, "file:///set", {}, sys.executable), Mock(end=None))
    made._note = Mock()
    works, hangs = (
        subprocess.Popen([sys.executable, "-c", what])
        for what in ("while True: pass", "import time; time.sleep(100)")
    )
    started_s = time.monotonic()
    working, hanging = (
        Mock(pid=one.pid, plan=made._plan, ready=False, killed_s=None, started_s=started_s)
        for one in (works, hangs)
    )

    def is_killed() -> bool:
        now = made._looked_s = time.monotonic()
        for child in (working, hanging):
            child.heard_s = now
            made._watch(child, now)
        return hanging.kill.called

    try:
        wait_until(is_killed)
        assert time.monotonic() - started_s > 1.0
        working.kill.assert_not_called()
    finally:
        for one in (works, hangs):
            one.kill()
            one.wait()


def test_a_mount_survives_the_removal_of_all_catalogs(own: Mounter, state: Path) -> None:
    mount = own("--workers", "2")
    assert read_tree(mount.path) == FILES
    shutil.rmtree(state / "catalogs")
    forget(mount.path)
    assert read_tree(mount.path) == FILES
    wait_until_healed(mount)
    assert (mount.stats()["errors"], mount.stats()["restarts"]) == (0, 0)
