"""Whatever ends a run, no mount, process or file of it is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench import measure
from penstock.bench.arms import Rclone, Site
from penstock.bench.dataset import Dataset
from penstock.bench.s3server import S3Server
from penstock.bench.trial import Trial
from penstock.bench.workspace import MARK, BenchError, Workspace, choose_medium
from tests.support.bench_ground import assert_nothing_left
from tests.support.waiting import wait_until

# A run that mounts, reads through the mount for ever, and also has a child that daemonized.
ENDLESS = """
import sys
from pathlib import Path
from penstock.bench.arms import Rclone, Site
from penstock.bench.dataset import Dataset
from penstock.bench.experiments.datasets import scan
from penstock.bench.readers import read_epoch
from penstock.bench.s3server import S3Server
from penstock.bench.workspace import Workspace
medium, bucket, root, *server = sys.argv[1:]
try:
    with Workspace(Path(medium)) as workspace:
        small = Dataset(bucket, Path(root), scan(Path(root)))
        arm = Rclone(Site(workspace, S3Server(*server), bucket, small))
        arm.start()
        workspace.run("daemon", ["sh", "-c", "setsid sleep 1000 &"])
        print("reading", flush=True)
        while True:
            read_epoch(workspace, arm.root, small.entries, readers=2, seed=1, passes=50)
except KeyboardInterrupt:
    sys.exit(130)
"""


def marked(medium: Path) -> list[int]:
    return measure.marked_processes(f"{MARK}={medium}/")


@pytest.fixture
def script(
    tmp_path: Path, server: S3Server, small: Dataset
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    medium = tmp_path / "medium"
    medium.mkdir()
    words = (medium, small.name, small.root, server.endpoint, server.access_key, server.secret_key)
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, *words], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    with process:
        yield process, medium
        process.terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_leaves_nothing(
    script: tuple[subprocess.Popen[bytes], Path], number: signal.Signals
) -> None:
    process, medium = script
    assert process.stdout is not None
    assert process.stdout.readline() == b"reading\n"
    (folder,) = medium.iterdir()
    assert len(measure.mounts_below(folder)) == 1
    # The mount, the daemon, and readers.
    wait_until(lambda: len(marked(medium)) >= 3, "three processes run")
    process.send_signal(number)
    process.send_signal(number)  # an impatient person: the second must not stop the cleaning
    assert process.wait(60) == 130
    assert_nothing_left(medium)


def test_an_error_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Workspace(tmp_path) as workspace:  # noqa: PT012
        workspace.spawn("sleeper", ["sleep", "1000"])
        (workspace.folder / "file").touch()
        raise ZeroDivisionError
    assert_nothing_left(tmp_path)


def test_a_program_that_ignores_a_polite_request_is_killed(workspace: Workspace) -> None:
    stubborn = "trap '' TERM; echo ready; exec sleep 1000"
    process = workspace.spawn("stubborn", ["sh", "-c", stubborn])
    wait_until(process.log.read_text, "the trap is set")
    process.terminate(timeout_s=0.3)
    assert workspace.processes("stubborn") == []


def test_a_failing_program_is_an_error_with_its_last_words(workspace: Workspace) -> None:
    with pytest.raises(BenchError, match="status 3: no luck"):
        workspace.run("part", ["sh", "-c", "echo no luck >&2; exit 3"])


def test_a_program_that_leaves_a_daemon_with_its_output_open_does_not_hold_us(
    workspace: Workspace,
) -> None:
    command = ["sh", "-c", "sleep 1000 & echo done"]
    assert workspace.run("part", command, timeout_s=100) == b"done\n"
    # In the middle of an exec it has no environment to be known by.
    wait_until(lambda: len(workspace.processes("part")) == 1, "the daemon runs")
    workspace.end_processes("part")
    assert workspace.processes("part") == []


def test_a_users_own_keys_do_not_reach_the_systems(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("RCLONE_CONFIG", "mine")
    printed = workspace.run("part", ["env"]).decode()
    assert "mine" not in printed
    assert "PATH=" in printed


def test_memory_is_the_medium_only_when_it_is_large_enough(tmp_path: Path) -> None:
    assert choose_medium(tmp_path, 1) == tmp_path
    with pytest.raises(BenchError, match="free"):
        choose_medium(tmp_path, 1 << 60)
    with pytest.raises(BenchError, match="free"):
        choose_medium(tmp_path / "missing", 1)


def test_a_mounted_peer_reads_what_is_in_the_bucket(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    trial = Trial(Rclone(Site(workspace, server, small.name, small)))
    with trial.running():
        cold = trial.cold(2, small.entries)
        trial.settle()
        (warm, *_) = trial.warm(2)
        for entry in small.entries[:5]:
            through = (trial.arm.root / entry.path).read_bytes()
            assert through == (small.root / entry.path).read_bytes()
    assert (cold.files, cold.size_bytes) == (20, small.size_bytes)
    assert cold.memory_bytes > 1_000_000
    assert cold.native_ratio is not None
    if os.geteuid() == 0:
        # The kernel counts: at least an open, a read, a flush and a release for each file.
        assert cold.messages is not None
        assert cold.messages >= 4 * 20
        assert warm.messages is not None
        assert warm.messages >= 3 * warm.files
    assert measure.mounts_below(workspace.folder) == []
    assert workspace.processes("rclone") == []
