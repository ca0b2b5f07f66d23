"""The workspace and the S3 server of a benchmark: real, counted, and nothing of them is left."""

import contextlib
import errno
import http.client
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from penstock.bench import measure, s3server
from penstock.bench.arms import Site
from penstock.bench.bareclient import get_epoch
from penstock.bench.datasets import SMALL_BYTES, Dataset, Entry, make_large, make_small
from penstock.bench.experiments.read_epochs import Trial, settle
from penstock.bench.peers import JuiceFS, Rclone, juicefs_bucket
from penstock.bench.plans.known_arms import ARMS
from penstock.bench.readers import list_files, read_epoch
from penstock.bench.s3server import FarServer, S3Server, create_bucket, far_s3, upload
from penstock.bench.workspace import MARK, BenchError, Workspace, free_port
from penstock.units import MIB
from tests.support.bench_ground import assert_nothing_left, sockets_of
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

# A run that has a child, and one that daemonized.
ENDLESS = """
import sys, time
from pathlib import Path
from penstock.bench.workspace import Workspace
try:
    with Workspace(Path(sys.argv[1])) as workspace:
        workspace.spawn("child", ["sleep", "1000"])
        workspace.run("daemon", ["sh", "-c", "setsid sleep 1000 &"])
        print("running", flush=True)
        time.sleep(1000)
except KeyboardInterrupt:
    sys.exit(130)
"""

LATENCY_S = 0.03
BYTES_PER_S = 20e6


@pytest.fixture(scope="module")
def far(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarServer]:
    with (
        Workspace(tmp_path_factory.mktemp("far")) as workspace,
        far_s3(workspace, server, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def bucket(far: FarServer, small: Dataset) -> ObjectPath:
    return S3(far.server.endpoint).open(small.name)


def keys(server: S3Server, bucket: str) -> set[str]:
    return {path.key for path in S3(server.endpoint).open(bucket).rglob()}


def test_a_server_has_the_files_that_were_put_into_it_and_leaves_nothing(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        root = workspace.folder / "dataset"
        small = make_small(root / "small", 2)
        large = make_large(root / "large", 1, size_bytes=17 * MIB + 5)  # in two parts
        with s3server.serve_s3(workspace) as server:
            create_bucket(server, "data")
            upload(server, "data", root)
            store = S3Store(
                "data",
                endpoint=server.endpoint,
                region=server.region,
                access_key_id=server.access_key,
                secret_access_key=server.secret_key,
                client_options={"allow_http": True},
            )
            listed = {meta["path"] for page in obstore.list(store) for meta in page}
            assert listed == {f"{one.name}/{e.path}" for one in (small, large) for e in one.entries}
            for key in listed:
                assert bytes(obstore.get(store, key).bytes()) == (root / key).read_bytes()
            sockets = sockets_of(workspace.folder)
            assert sockets != []
        assert workspace.processes(s3server.PART) == []
        assert not any(path.exists() for path in sockets)
        with socket.socket() as probe:
            host, port = s3server.host_and_port(server.endpoint).split(":")
            assert probe.connect_ex((host, int(port))) == errno.ECONNREFUSED
    assert os.listdir(tmp_path) == []


def test_an_upload_stops_when_told_to_or_refused_and_what_is_below_a_prefix_is_removed(
    server: S3Server, small: Dataset, tmp_path: Path
) -> None:
    checked = 0

    def stop_at_the_third() -> None:
        nonlocal checked
        checked += 1
        if checked == 3:
            raise KeyError("stop")

    create_bucket(server, "bench-stopped")
    with pytest.raises(KeyError, match="stop"):
        upload(server, "bench-stopped", small.root, stop_at_the_third)
    assert len(keys(server, "bench-stopped")) < len(small.entries)
    with pytest.raises(BenchError, match=r"was not put into the bucket bench-stopped: [\s\S]*403"):
        upload(replace(server, secret_key="wrong"), "bench-stopped", small.root)
    write_tree(tmp_path, dict.fromkeys(("run-1/a", "run-1/b/c", "run-10/a", "run-1.txt"), b"x"))
    create_bucket(server, "bench-removal")
    upload(server, "bench-removal", tmp_path)
    assert s3server.remove_objects(server, "bench-removal", "run-1") == 2
    assert keys(server, "bench-removal") == {"run-10/a", "run-1.txt"}
    assert s3server.remove_objects(server, "bench-removal", "run-1") == 0


def test_a_free_port_refuses_until_its_server_listens_and_is_nobody_elses() -> None:
    port = free_port()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):  # also a second time, when the first has ended
        with socket.create_server(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port)).close()


def test_every_object_comes_whole_and_only_gets_of_objects_are_counted_as_gets(
    server: S3Server, far: FarServer, bucket: ObjectPath, small: Dataset
) -> None:
    before = far.counts()
    for entry in small.entries[:5]:
        assert (bucket / entry.path).read_bytes() == (small.root / entry.path).read_bytes()
    counted = far.counts().since(before)
    assert (counted.gets, counted.get_bytes, counted.other_requests) == (5, 5 * SMALL_BYTES, 0)
    before = far.counts()
    assert len(bucket.rglob()) == len(small.entries)
    key = small.entries[0].path
    assert (bucket / key).exists()
    counted = far.counts().since(before)
    assert (counted.gets, counted.get_bytes, counted.other_requests) == (0, 0, 2)
    # Some clients add a query to a GET of an object.
    connection = http.client.HTTPConnection("127.0.0.1", far.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", f"/{small.name}/{key}?x-id=GetObject")
        assert connection.getresponse().status == 403  # it is not signed
    assert far.counts().since(before).gets == 1
    # What is written through it arrives.
    near = S3(server.endpoint).open(small.name) / "new/object.bin"
    content = bytes(range(256)) * 1000
    (bucket / near.key).write_bytes(content)
    assert near.read_bytes() == content
    (bucket / near.key).unlink()
    assert not near.exists()


def test_an_answer_takes_the_latency_and_the_time_of_its_bytes(
    bucket: ObjectPath, small: Dataset
) -> None:
    start = time.monotonic()
    assert (bucket / small.entries[0].path).exists()
    assert time.monotonic() - start >= LATENCY_S
    start = time.monotonic()
    with ThreadPoolExecutor(len(small.entries)) as pool:  # which share one bandwidth
        read = pool.map(lambda entry: len((bucket / entry.path).read_bytes()), small.entries)
        assert sum(read) == small.size_bytes
    # 5 ms may be made up for: what a late wake-up of its thread took.
    assert time.monotonic() - start >= LATENCY_S + small.size_bytes / BYTES_PER_S - 0.005


def test_several_processes_count_together_and_end_together(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    with far_s3(workspace, server, latency_s=0.0, bytes_per_s=math.inf, processes=3) as far:
        bucket = S3(far.server.endpoint).open(small.name)
        # Each GET has a connection of its own, so that all three get some.
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda entry: (bucket / entry.path).read_bytes(), small.entries[:12]))
        assert far.counts().gets == 12
        assert len(workspace.processes("s3-server")) == 3
    wait_until(lambda: not workspace.processes("s3-server"), "three processes have ended")
    # What is not measured goes by at once, and is counted. A day for this object: only a line that
    # is free gives it in the time of a test.
    with far_s3(workspace, server, latency_s=0, bytes_per_s=1000 / 864) as far, far.unshaped():
        bucket = S3(far.server.endpoint).open(small.name)
        assert len((bucket / small.entries[0].path).read_bytes()) == SMALL_BYTES
        assert far.counts().gets == 1


@pytest.mark.parametrize("readers", [2, 50])
def test_every_file_is_listed_and_is_read_once_in_a_pass(
    workspace: Workspace, small: Dataset, readers: int
) -> None:
    assert sorted(list_files(small.root)) == sorted(entry.path for entry in small.entries)
    write_tree(workspace.folder / "juicefs", {".control": b"", "a/b": b""})
    assert list_files(workspace.folder / "juicefs") == ["a/b"]
    epoch = read_epoch(workspace, small.root, small.entries, readers=readers, seed=1, passes=3)
    assert (epoch.files, epoch.size_bytes) == (3 * 20, 3 * small.size_bytes)
    assert epoch.cpu_s > 0


@pytest.mark.parametrize(
    ("change", "path", "error"), [(-1, None, "{}"), (1, None, "{}"), (0, "no/such", "No such file")]
)
def test_a_file_of_another_size_or_a_missing_one_is_an_error(
    workspace: Workspace, small: Dataset, change: int, path: str | None, error: str
) -> None:
    victim = small.entries[17]
    wrong = Entry(path or victim.path, victim.size_bytes + change)
    with pytest.raises(BenchError, match=error.format(victim.path)):
        read_epoch(workspace, small.root, [*small.entries[:17], wrong], readers=2, seed=1)


def test_the_bare_client_gets_every_object_once_and_large_ones_by_blocks(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    epoch = get_epoch(workspace, server, small.name, small.entries, readers=8)
    assert (epoch.files, epoch.size_bytes) == (20, small.size_bytes)
    large = make_large(workspace.folder / "large", 2, size_bytes=3 * MIB + 1)
    create_bucket(server, "bench-large")
    upload(server, "bench-large", large.root)
    with far_s3(workspace, server, latency_s=0, bytes_per_s=math.inf) as far:
        epoch = get_epoch(
            workspace,
            far.server,
            "bench-large",
            large.entries,
            readers=1,
            block_bytes=MIB,
            parallel=3,
        )
        counted = far.counts()
    assert (epoch.files, epoch.size_bytes) == (2, large.size_bytes)
    assert (counted.gets, counted.get_bytes) == (2 * 4, large.size_bytes)
    with pytest.raises(BenchError, match="bare-client"):
        get_epoch(workspace, server, small.name, [Entry("no/such", 5)], readers=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", ENDLESS, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            wait_until(
                lambda: len(measure.marked_processes(f"{MARK}={tmp_path}/")) == 2,
                "the child and the daemon run",
            )
        finally:
            process.send_signal(number)
            process.send_signal(number)  # an impatient person: this must not stop the cleaning
        assert process.wait(60) == 130
    assert_nothing_left(tmp_path)


def test_a_program_ends_when_it_is_killed_or_has_failed(workspace: Workspace) -> None:
    stubborn = "trap '' TERM; echo ready; exec sleep 1000"
    process = workspace.spawn("stubborn", ["sh", "-c", stubborn])
    wait_until(process.log.read_text, "the trap is set")
    process.terminate(timeout_s=0.3)
    assert workspace.processes("stubborn") == []
    # One that fails is an error, and one that leaves a daemon does not hold us.
    with pytest.raises(BenchError, match="status 3: no luck"):
        workspace.run("part", ["sh", "-c", "echo no luck >&2; exit 3"])
    # The daemon has its output open.
    command = ["sh", "-c", "sleep 1000 & echo done"]
    assert workspace.run("part", command, timeout_s=100) == b"done\n"
    # In the middle of an exec it has no environment to be known by.
    wait_until(lambda: len(workspace.processes("part")) == 1, "the daemon runs")
    workspace.end_processes("part")
    assert workspace.processes("part") == []


def test_a_system_costs_what_all_of_its_processes_cost(workspace: Workspace) -> None:
    # A child with no environment at all, and a grandchild of the first process.
    script = "env -i sh -c 'sleep 1000; true' & wait"
    process = workspace.spawn("part", ["sh", "-c", script])
    marked = [process.popen.pid]
    wait_until(
        lambda: (
            len(measure.with_descendants(marked)) == 3 and workspace.processes("part") == marked
        ),
        "all have started",
    )
    tree = measure.with_descendants(marked)
    parts = [measure.usage([pid]).memory_bytes for pid in tree]
    assert min(parts) > 0
    assert measure.usage(tree).memory_bytes > max(parts)
    for pid in tree:  # parents first: one whose child has ended ends by itself
        os.kill(pid, signal.SIGKILL)
    process.popen.wait()
    # What has ended is not there any more, and costs nothing.
    assert measure.usage(marked) == measure.Usage(0.0, 0)
    later = measure.Usage(2.0, 5)
    assert later.since(measure.Usage(0.5, 9)) == measure.Usage(1.5, 5)
    assert later.since(measure.Usage(3.0, 9)) == measure.Usage(0.0, 5)


def test_a_users_own_keys_do_not_reach_the_systems(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("RCLONE_CONFIG", "mine")
    printed = workspace.run("part", ["env"]).decode()
    assert "mine" not in printed
    assert "PATH=" in printed


def test_a_mounted_peer_is_measured_cold_and_warm(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    trial = Trial(Rclone(Site(workspace, server, small.name, small), ARMS["rclone-cold"][0]))
    with trial.running():
        cold = trial.cold(2, small.entries)
        settle(trial.arm)
        (warm, *_) = trial.warm(2)
    assert (cold.files, cold.size_bytes) == (20, small.size_bytes)
    assert cold.used.memory_bytes > 1_000_000
    assert cold.native_ratio is not None
    if os.geteuid() == 0:
        # The kernel counts: at least an open, a read, a flush and a release for each file.
        assert cold.messages is not None
        assert cold.messages >= 4 * 20
        assert warm.messages is not None
        assert warm.messages >= 3 * warm.files
    assert measure.mounts_below(workspace.folder) == []
    assert workspace.processes("rclone") == []


def test_juicefs_is_filled_once_and_then_mounted_read_only(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    create_bucket(server, juicefs_bucket(small.name))
    bucket = juicefs_bucket(small.name)
    arm = JuiceFS(Site(workspace, server, small.name, small, bucket), ARMS["juicefs"][0])
    trial = Trial(arm)
    try:
        arm.prepare()
        with trial.running():
            assert "--read-only" in arm.command
            assert trial.cold(2, small.entries).files == 20
            settle(arm)
            with pytest.raises(OSError, match="Read-only"):
                (arm.root / "new").touch()
            # It is two processes, and a killed one does not remove its socket.
            processes = workspace.processes(arm.name)
            sockets = [Path(f"/tmp/fuse_fd_comm.{pid}") for pid in processes]
            assert [path.exists() for path in sockets] == [True, False]
            for pid in processes:
                os.kill(pid, signal.SIGKILL)
    finally:
        arm.finish()
    assert not any(path.exists() for path in sockets)
    assert measure.mounts_below(workspace.folder) == []
    assert workspace.processes(arm.name) == workspace.processes("juicefs-redis") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes a parameter of the kernel")
def test_free_memory_is_kept_from_the_host_only_while_a_benchmark_runs(tmp_path: Path) -> None:
    setting = tmp_path / "page_reporting_order"
    setting.write_text("9\n")
    with measure.memory_kept_in_guest(setting):
        assert setting.read_text() == "10"
    assert setting.read_text() == "9\n"
    with measure.memory_kept_in_guest(tmp_path / "missing"):
        assert not (tmp_path / "missing").exists()
