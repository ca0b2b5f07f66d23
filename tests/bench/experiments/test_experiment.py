"""Experiments as a run starts them, small: what is proven, what fails, and that nothing is left."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bench import measure
from penstock.bench.dataset import Dataset, Entry
from penstock.bench.experiments import proofs
from penstock.bench.experiments.datasets import scan
from penstock.bench.experiments.jobs import EpochLines
from penstock.bench.experiments.storeline import Came
from penstock.bench.experiments.systems import title_of
from penstock.bench.experiments.wire import Wire
from penstock.bench.plans.known import ARMS
from penstock.bench.plans.model import ArmPlan, DatasetPlan, Shape
from penstock.bench.programs import find_program
from penstock.bench.workspace import MARK, BenchError
from penstock.errors import UsageError
from penstock.units import KIB, MIB
from tests.support.certificates import certify
from tests.support.experiments import FILES, READ, TRAIN, Bench, BenchMaker

SIZE = FILES * 110 * KIB
COLD = ArmPlan("penstock-cold", "penstock", "cold", drops_pages=False)

needs_root = pytest.mark.skipif(not measure.can_drop_pages(), reason="dropping pages needs root")


def drops_pages(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that drops the pages of the whole machine, which other tests count on."""
    return pytest.mark.slow(pytest.mark.alone(needs_root(test)))


# A network of its own, whose only interface nobody else uses.
_OWN_NETWORK = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("ready", flush=True)
sys.stdin.read()
"""
_WAIT = """
import socket, time
while socket.socket().connect_ex(("127.0.0.1", 443)):
    time.sleep(0.02)
"""


@pytest.fixture
def tls(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same bucket, from a server with a certificate, in a network of its own."""
    certify(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["unshare", "--net", sys.executable, "-c", _OWN_NETWORK], **pipes) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        bench.prefix = ["nsenter", "--net", "--target", str(one.pid), "--"]
        keys = f"{bench.server.access_key},{bench.server.secret_key}"
        serve = [*bench.prefix, find_program("rclone"), "serve", "s3", "--config=/dev/null",
                 f"--auth-key={keys}", "--addr=127.0.0.1:443", f"--cert={tmp_path}/server.pem",
                 f"--key={tmp_path}/server.key", bench.root.parent]  # fmt: skip
        with subprocess.Popen(serve, stderr=subprocess.DEVNULL) as server:
            try:
                subprocess.run([*bench.prefix, sys.executable, "-c", _WAIT], timeout=20, check=True)
                yield "https://127.0.0.1"
            finally:
                server.kill()


@drops_pages
def test_a_cold_run_proves_that_all_of_it_came_from_the_store(bench: Bench) -> None:
    done = bench.run(COLD, replace(READ, epochs=2), Shape("far", 0.002, 100e6))
    result = done.result
    assert (done.status, result["valid"], result["failure"]) == (0, True, None)
    assert [epoch["store"]["get_bytes"] >= SIZE for epoch in result["epochs"]] == [True, False]
    assert "1.000 of the data read" in done.proof("cold-epoch-1")["said"]
    assert done.proof("pages-dropped")["said"].startswith(f"0 of {FILES * 28} pages")
    assert not result["arm"]["hinted"]
    assert result["arm"]["command"].startswith(f"penstock mount s3://{bench.bucket} ")
    assert [epoch["samples"] for epoch in result["epochs"]] == [FILES] * 2
    assert sum(done.other("series")["bytes"]) == 2 * SIZE
    assert [len(epoch["seconds"]) for epoch in done.other("latencies")["epochs"]] == [FILES] * 2
    assert done.phases[-2:] == ["epoch 2", "done"]
    keys = json.loads((bench.folder / "keys.json").read_text())
    written = [path for path in done.folder.rglob("*") if path.is_file()]
    assert len(written) > 4
    assert not any(keys["secret_key"] in path.read_text() for path in written)


def test_a_warm_run_asks_the_store_for_nothing(bench: Bench) -> None:
    done = bench.run(replace(COLD, name="warm", state="warm"), shape=Shape("far", 0.05, 1e6))
    assert (done.status, done.result["valid"]) == (0, True)
    assert "0 bytes in 0 GETs" in done.proof("warm-epoch-1")["said"]
    assert sum(done.result["epochs"][0]["hit_bytes"].values()) == SIZE


@drops_pages
def test_a_warm_run_that_was_not_warm_is_marked_invalid(bench: Bench) -> None:
    # It says warm, and has no cache that could be.
    done = bench.run(ArmPlan("liar", "rclone", "warm", 0.0))
    assert (done.status, done.result["failure"]) == (0, None)
    assert not done.result["valid"]
    assert not done.proof("warm-epoch-1")["ok"]
    assert f"{SIZE:,} bytes" in done.proof("warm-epoch-1")["said"]


@drops_pages
def test_a_planned_run_is_hinted_and_proves_it(bench: Bench) -> None:
    done = bench.run(replace(COLD, name="planned", state="planned"), TRAIN)
    assert (done.status, done.result["valid"]) == (0, True)
    assert done.result["arm"]["hinted"]
    assert "the plans of 1 of 1 readers, with 20 files each" in done.proof("hinted")["said"]
    workload = done.result["workload"]
    assert (workload["emulated"], workload["batch"], workload["step_s"]) == (True, 8, 0.224)
    assert "resnet50_h100.yaml" in workload["published"]["source"]


@drops_pages
def test_a_cache_of_half_the_data_asks_for_the_other_half(bench: Bench) -> None:
    done = bench.run(ArmPlan("half", "penstock", "cold", 0.5), replace(READ, epochs=2))
    assert (done.status, done.result["valid"]) == (0, True)
    second = done.result["epochs"][1]
    assert second["store"]["get_bytes"] + second["hit_bytes"]["MEM"] == SIZE
    assert second["hit_bytes"]["MEM"] > 0
    assert done.proof("cache-within-its-share")["ok"]


@pytest.mark.slow
def test_the_ceiling_reads_nothing_and_is_measured_for_each_number_of_accelerators(
    bench_of: BenchMaker,
) -> None:
    bench = bench_of(DatasetPlan("tfrecord", files=4, size_bytes=2 * MIB))
    arm = ArmPlan("ceiling", "ceiling", "warm", drops_pages=False)
    done = bench.run(arm, replace(TRAIN, accelerators=(1, 2)))
    assert (done.status, done.result["valid"]) == (0, True)
    assert [run["accelerators"] for run in done.result["accelerator_runs"]] == [1, 2]
    assert done.result["epochs"][0]["store"]["gets"] == 0
    assert len(done.other("steps")["epochs"][0]["load_s"]) == 3  # of 8 samples, of about 20


@drops_pages
def test_shards_are_read_whole_through_a_mount(bench_of: BenchMaker) -> None:
    bench = bench_of(DatasetPlan("webdataset", files=4, size_bytes=4 * MIB))
    done = bench.run(ArmPlan("rclone", "rclone", "cold", 0.0))
    assert (done.status, done.result["valid"]) == (0, True)
    assert done.other("latencies")["what"] == "read of one sample of a shard"


def test_more_accelerators_than_shards_are_refused(bench_of: BenchMaker) -> None:
    bench = bench_of(DatasetPlan("webdataset", files=2, size_bytes=200 * KIB))
    arm = ArmPlan("native", "native", "warm", drops_pages=False)
    done = bench.run(arm, replace(TRAIN, accelerators=(1, 4)))
    assert done.status == 2
    assert done.result["failure"]["what"] == "4 accelerators need as many shards, and there are 2"


def test_a_system_that_is_not_installed_is_a_failure_with_a_hint(bench: Bench) -> None:
    bench.environment["PATH"] = "/nonexistent"
    done = bench.run(ArmPlan("s3fs", "s3fs", "warm", drops_pages=False))
    assert done.status == 1
    assert done.result["failure"]["what"] == "s3fs: no such program"
    assert done.result["failure"]["hint"]
    assert not done.result["valid"]


def wait_for_first_epoch(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["phase"] == "epoch 1":
            return
    pytest.fail("it ended before its first epoch")


@drops_pages
def test_a_mount_that_dies_is_a_failure_and_leaves_nothing(bench: Bench) -> None:
    # Slow enough to be alive when it is killed.
    config = bench.config(ArmPlan("rclone", "rclone", "cold", 0.0), READ, Shape("far", 0.2, 1e6))
    with bench.start(config) as process:
        wait_for_first_epoch(process)
        (place,) = bench.medium.iterdir()
        for pid in measure.marked_processes(f"{MARK}={place}/rclone\0"):
            os.kill(pid, signal.SIGKILL)
        output, errors = process.communicate(timeout=60)
    done = bench.outcome(config, process.returncode, output, errors)
    assert done.status == 1
    assert "readers ended with status 1" in done.result["failure"]["what"]
    assert done.result["epochs"] == []


@drops_pages
def test_an_interrupted_experiment_says_so_and_leaves_nothing(bench: Bench) -> None:
    config = bench.config(ArmPlan("rclone", "rclone", "cold", 0.0), READ, Shape("far", 0.2, 1e6))
    with bench.start(config) as process:
        wait_for_first_epoch(process)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    done = bench.outcome(config, process.returncode, output, errors)
    assert (done.status, done.result["failure"]["what"]) == (130, "interrupted")


@drops_pages
def test_native_files_prove_that_their_pages_are_gone_or_there(bench: Bench) -> None:
    dataset = Dataset("small", bench.root, scan(bench.root))
    assert proofs.pages_dropped(dataset, native=True).ok
    assert not proofs.pages_resident(dataset).ok
    for entry in dataset.entries:
        (dataset.root / entry.path).read_bytes()
    assert proofs.pages_resident(dataset).ok


def test_a_proof_fails_by_its_figures(tmp_path: Path) -> None:
    (tmp_path / "left").write_bytes(b"data")
    assert not proofs.cache_empty(tmp_path).ok
    assert proofs.cache_empty(tmp_path / "missing").ok
    assert proofs.whole(0, 20, SIZE, (20, SIZE)).ok
    assert not proofs.whole(0, 19, SIZE, (20, SIZE)).ok
    assert not proofs.whole(0, 20, SIZE - 1, (20, SIZE)).ok
    of_ten = Dataset("small", tmp_path, (Entry("a", 1000),))
    assert not proofs.from_the_store(Came(2, 999, 0), of_ten, 0).ok
    assert not proofs.nothing_from_the_store(Came(1, 0, 0), of_ten, 0).ok
    assert proofs.nothing_from_the_store(Came(None, 10, None), of_ten, 0).ok
    assert not proofs.nothing_from_the_store(Came(None, 11, None), of_ten, 0).ok


@drops_pages
@pytest.mark.parametrize(
    ("arm", "proof", "holds"),
    [(COLD, "cold-epoch-1", True),
     (ArmPlan("liar", "rclone", "warm", 0.0), "warm-epoch-1", False)],
)  # fmt: skip
def test_bytes_of_a_store_that_speaks_tls_are_counted_at_the_network(
    bench: Bench, tls: str, arm: ArmPlan, proof: str, holds: bool
) -> None:
    done = bench.run(arm, endpoint=tls)
    assert (done.result["failure"], done.result["valid"]) == (None, holds)
    assert done.proof(proof)["ok"] == holds
    assert "bytes (the store speaks TLS)" in done.proof(proof)["said"]
    store = done.result["epochs"][0]["store"]
    assert store["gets"] is None
    assert (store["get_bytes"] >= SIZE) == (arm.state == "cold" or not holds)


def test_the_interface_is_the_one_by_which_the_kernel_would_send() -> None:
    before = Wire("https://localhost:9").received_bytes()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(1000), ("127.0.0.1", 9))
    assert Wire("https://127.0.0.1:9").received_bytes() - before >= 1000
    with pytest.raises(UsageError, match=r"https://no-such-host\.invalid"):
        Wire("https://no-such-host.invalid")


def test_each_epoch_that_a_job_prints_is_taken_once_and_when_its_line_is_whole(
    tmp_path: Path,
) -> None:
    logs = [tmp_path / "launcher.log", tmp_path / "worker-0.log"]
    rest = '"images_per_s": 20, "data_wait_share": 0.25, "seconds": 2}'
    lines = EpochLines()

    def grow(log: Path, text: str, *, ended: bool = False) -> list[int]:
        with log.open("a") as file:
            file.write(text)
        return [said["epoch"] for said in lines.new(logs, ended=ended)]

    logs[0].touch()
    assert grow(logs[1], f'[0] {{"epoch": 1, {rest}\n{{"epoch": 2, ') == [1]
    # Found later, though its log comes first.
    assert grow(logs[0], f'{{"epoch": 0, {rest}\n') == [0]
    assert grow(logs[1], f'{rest}\n{{"epoch": 2, {rest}\n') == [2]
    logs[1].write_text("--- 300 bytes are missing here ---\n")
    assert grow(logs[1], f'{{"epoch": 2, {rest}\n{{"epoch": 3, {rest}') == []
    assert grow(logs[0], "", ended=True) == [3]
    for torn in ('{"epoch": 4, {"epoch": 5}', '{"epoch": 4}'):
        with pytest.raises(BenchError, match="the job printed an epoch"):
            grow(logs[0], f"{torn}\n")


def test_every_arm_has_a_title_of_its_own() -> None:
    titles = [title_of(plan) for plan, _ in ARMS.values()]
    assert len(set(titles)) == len(titles) > 1
    tuned = ArmPlan("tuned", "penstock", "cold", options={"block-size": "1MiB"})
    assert title_of(tuned) == "Penstock, cold, tuned"
