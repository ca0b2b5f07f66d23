"""Experiments as a run starts them, small: what is proven, what fails, and that nothing is left."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import measure
from penstock.bench.arms import Native, Site
from penstock.bench.datasets import Dataset, make_dataset, scan
from penstock.bench.experiments import proofs
from penstock.bench.experiments.programs import EpochLines
from penstock.bench.experiments.storeline import StoreCounts, Wire
from penstock.bench.plans import experiments
from penstock.bench.plans.known_arms import ARMS, ArmPlan
from penstock.bench.plans.model import (
    DatasetPlan,
    Form,
    JobPlan,
    Shape,
    WorkloadPlan,
)
from penstock.bench.s3server import S3Server, create_bucket, upload
from penstock.bench.workspace import MARK, BenchError, Workspace
from penstock.errors import UsageError
from penstock.units import KIB, MIB
from tests.support.bench_ground import assert_nothing_left
from tests.support.certificates import certify
from tests.support.rclone import rclone_serves


def far(latency_s: float, bytes_per_s: float) -> Shape:
    return Shape(name="far", latency_s=latency_s, bytes_per_s=bytes_per_s)


def plan_of(form: Form, files: int, size_bytes: int) -> DatasetPlan:
    """A data set of few bytes, where a plan has either a number of files or a size."""
    return DatasetPlan(form=form, files=files).model_copy(update={"size_bytes": size_bytes})


FILES = 20
SIZE = FILES * 110 * KIB
READ = WorkloadPlan(name="read", readers=[2], rounds=1, states=["cold", "warm"])
# A fiftieth of an H100: 8 samples in a step of 0.224 s.
TRAIN = WorkloadPlan(
    name="resnet50", kind="emulated", model="resnet50", accelerator="h100", epochs=1, scale=0.02
)
TWICE = TRAIN.model_copy(update={"epochs": 2})
FAR = far(0.2, 1e6)
COLD = ArmPlan(name="penstock-cold")

needs_root = pytest.mark.skipif(not measure.can_drop_pages(), reason="dropping pages needs root")


def drops_pages(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that drops the pages of the whole machine, which other tests count on."""
    return pytest.mark.slow(pytest.mark.alone(needs_root(test)))


@dataclass
class Outcome:
    status: int
    result: dict[str, Any]
    phases: list[str]
    folder: Path

    @property
    def states(self) -> list[str]:
        return [epoch["state"] for epoch in self.result["epochs"]]

    def proof(self, name: str) -> dict[str, Any]:
        return next(proof for proof in self.result["proofs"] if proof["name"] == name)

    def other(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / "output" / f"{name}.json").read_text())


@dataclass
class Bench:
    """A bucket with a data set, and what experiments on it need."""

    server: S3Server
    bucket: str
    folder: Path
    medium: Path
    runs: int = 0

    @property
    def root(self) -> Path:
        """The files. The folder above could be served as a store with this one bucket."""
        return self.folder / "served" / self.bucket

    def run(
        self,
        arm: ArmPlan,
        workload: WorkloadPlan = TRAIN,
        shape: Shape | None = None,
        *,
        endpoint: str = "",
        in_first_epoch: Callable[[subprocess.Popen[str]], None] | None = None,
    ) -> Outcome:
        """One experiment as a run starts it: a process."""
        self.runs += 1
        place = self.folder / str(self.runs)
        for name in ("output", "logs"):
            (place / name).mkdir(parents=True)
        keys = self.folder / "keys.json"
        keys.touch(mode=0o600)
        keys.write_text(
            json.dumps({"access_key": self.server.access_key, "secret_key": self.server.secret_key})
        )
        named = f"{arm.name}-{self.runs}"
        config = experiments.ExperimentConfig(
            run="test",
            experiment=experiments.Experiment(
                named, arm, workload, shape or Shape(name="plain"), "data", 0, 0, 7
            ),
            store=experiments.StoreAccess(
                True,
                endpoint or self.server.endpoint,
                self.server.region,
                self.bucket,
                "",
                str(keys),
                f"{self.bucket}-scratch",
                f"volume{self.runs}",
            ),
            dataset=experiments.DatasetAccess(str(self.folder / "dataset.json"), str(self.root)),
            output=str(place / "output"),
            logs=str(place / "logs"),
            medium=str(self.medium),
        )
        config.write(place / "config.json")
        command = [sys.executable, "-Pm", "penstock.bench.experiments", str(place / "config.json")]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
            if in_first_epoch is not None:
                assert process.stdout is not None
                assert any(json.loads(line)["phase"] == "epoch 1" for line in process.stdout)
                in_first_epoch(process)
            output, _ = process.communicate(timeout=100)
        assert_nothing_left(self.medium)
        result = json.loads((place / "output" / "result.json").read_text())
        phases = [json.loads(line)["phase"] for line in output.splitlines()]
        return Outcome(process.returncode, result, phases, place)


BenchMaker = Callable[[DatasetPlan], Bench]
_numbers = itertools.count()


@pytest.fixture
def bench_of(on_disk: Path, medium: Path, server: S3Server) -> BenchMaker:
    """bench_of(plan) makes a data set and puts it into a bucket of its own."""

    def make(plan: DatasetPlan) -> Bench:
        bench = Bench(server, f"bench-experiment-{next(_numbers)}", on_disk, medium)
        manifest = make_dataset(plan, bench.root)
        (on_disk / "dataset.json").write_text(json.dumps(manifest.to_json()))
        create_bucket(server, bench.bucket)
        upload(server, bench.bucket, bench.root)
        return bench

    return make


@pytest.fixture
def bench(bench_of: BenchMaker) -> Bench:
    return bench_of(DatasetPlan(form="small", files=FILES))


@drops_pages
def test_a_cold_run_proves_that_all_of_it_came_from_the_store(bench: Bench) -> None:
    done = bench.run(COLD, TWICE, far(0.002, 100e6))
    result = done.result
    assert (done.status, result["valid"], result["failure"]) == (0, True, None)
    assert [epoch["store"]["get_bytes"] >= SIZE for epoch in result["epochs"]] == [True, False]
    assert done.states == ["cold", "warm"]
    assert "1.000 of the data read" in done.proof("cold-epoch-1")["detail"]
    assert done.proof("pages-dropped")["detail"].startswith(f"0 of {FILES * 28} pages")
    assert not result["arm"]["hinted"]
    assert result["arm"]["command"].startswith(f"penstock mount s3://{bench.bucket} ")
    assert [epoch["samples"] for epoch in result["epochs"]] == [FILES] * 2
    assert [sum(one) for one in done.other("series")["bytes"]] == [SIZE] * 2
    assert [len(epoch["seconds"]) for epoch in done.other("latencies")["epochs"]] == [FILES] * 2
    assert done.phases[-2:] == ["epoch 2", "done"]
    keys = json.loads((bench.folder / "keys.json").read_text())
    written = [path for path in done.folder.rglob("*") if path.is_file()]
    assert len(written) > 4
    assert not any(keys["secret_key"] in path.read_text() for path in written)


def test_a_warm_run_asks_the_store_for_nothing_and_its_pages_are_resident(bench: Bench) -> None:
    done = bench.run(ArmPlan(name="penstock-warm"), TWICE, far(0.05, 1e6))
    assert (done.status, done.result["valid"]) == (0, True)
    assert "0 bytes in 0 GETs" in done.proof("warm-epoch-1")["detail"]
    assert done.proof("pages-resident")["detail"].startswith(f"{FILES * 28} of {FILES * 28} pages")
    assert done.states == ["warm", "warm"]
    # Not one byte came from the local cache: the kernel had all of them.
    assert [sum(epoch["hit_bytes"].values()) for epoch in done.result["epochs"]] == [0, 0]


@pytest.mark.counts_pages
def test_files_are_read_cold_and_warm_each_beside_its_neighbours(bench: Bench) -> None:
    done = bench.run(COLD, READ)
    assert (done.status, done.result["failure"], done.result["valid"]) == (0, None, True)
    found = [(one["arm"], one["state"], one["readers"]) for one in done.result["epochs"]]
    bare = ("bare client", "cold", 2)
    assert found == [bare, ("penstock-cold", "cold", 2), bare, ("penstock-cold", "warm", 2)]
    _, cold, _, warm = done.result["epochs"]
    assert (cold["passes"], cold["samples"], cold["bytes"]) == (1, FILES, SIZE)
    assert cold["native_ratio"] > 0
    assert cold["bare_ratio"] > 0
    # A warm epoch of so little is read again and again, to last long enough to be timed.
    assert warm["passes"] > 1
    assert warm["samples"] == warm["passes"] * FILES
    assert warm["store"]["get_bytes"] == 0
    assert "1.000 of the data read" in done.proof("cold-2-reading")["detail"]
    assert done.proof("warm-2-reading")["ok"]
    assert done.proof("cache-empty")["ok"]
    lengths = [len(one["seconds"]) for one in done.other("latencies")["epochs"]]
    assert lengths == [0, FILES, 0, min(1000, warm["samples"])]


def test_readers_that_tell_the_mount_their_order_are_hinted_and_prove_it(bench: Bench) -> None:
    done = bench.run(ArmPlan(name="penstock-planned"), READ)
    assert (done.status, done.result["failure"], done.result["valid"]) == (0, None, True)
    assert done.states == ["planned", "warm"]
    assert "the plans of 2 of 2 readers" in done.proof("hinted")["detail"]
    assert "1.000 of the data read" in done.proof("planned-2-reading")["detail"]


@drops_pages
def test_a_warm_run_that_was_not_warm_is_marked_invalid(bench_of: BenchMaker) -> None:
    bench = bench_of(plan_of("webdataset", 4, 4 * MIB))
    # It says warm, and has no cache that could be.
    done = bench.run(ArmPlan(name="liar", system="rclone", state="warm", cache_share=0.0))
    assert (done.status, done.result["failure"]) == (0, None)
    assert not done.result["valid"]
    assert not done.proof("warm-epoch-1")["ok"]
    size_bytes = sum(entry.size_bytes for entry in scan(bench.root))
    fetched, _, rest = done.proof("warm-epoch-1")["detail"].partition(" bytes in ")
    assert rest.endswith("came from the store")
    # rclone asks for a range twice when a reader keeps it waiting.
    assert int(fetched.replace(",", "")) >= size_bytes
    assert done.other("latencies")["what"] == "read of one sample of a shard"


@drops_pages
def test_a_planned_run_is_hinted_and_proves_it(bench: Bench) -> None:
    done = bench.run(ArmPlan(name="penstock-planned"), TRAIN)
    assert (done.status, done.result["valid"]) == (0, True)
    assert done.result["arm"]["hinted"]
    assert "the plans of 1 of 1 readers, with 20 files each" in done.proof("hinted")["detail"]
    workload = done.result["workload"]
    assert (workload["emulated"], workload["batch"], workload["step_s"]) == (True, 8, 0.224)
    assert "resnet50_h100.yaml" in workload["published"]["source"]


@drops_pages
def test_a_cache_of_half_the_data_asks_for_the_other_half(bench: Bench) -> None:
    done = bench.run(ArmPlan(name="penstock-50"), TWICE)
    assert (done.status, done.result["valid"]) == (0, True)
    second = done.result["epochs"][1]
    assert second["store"]["get_bytes"] + second["hit_bytes"]["MEM"] == SIZE
    assert second["hit_bytes"]["MEM"] > 0
    assert done.states == ["cold", "partial"]
    assert done.proof("cache-within-its-share")["ok"]


@pytest.mark.slow
def test_the_ceiling_reads_nothing_and_is_measured_for_each_number_of_accelerators(
    bench_of: BenchMaker,
) -> None:
    bench = bench_of(plan_of("tfrecord", 4, 2 * MIB))
    arm = ArmPlan(name="ceiling")
    done = bench.run(arm, TRAIN.model_copy(update={"accelerators": [1, 2]}))
    assert (done.status, done.result["valid"]) == (0, True)
    assert [epoch["readers"] for epoch in done.result["epochs"]] == [1, 2]
    assert done.result["epochs"][0]["store"]["gets"] == 0
    done = bench.run(ArmPlan(name="native"), TRAIN.model_copy(update={"accelerators": [1, 8]}))
    assert (done.status, done.result["valid"]) == (2, False)
    assert done.result["failure"]["what"] == "8 accelerators need as many shards, and there are 4"


@drops_pages
def test_a_mount_that_dies_and_an_interrupt_are_failures_and_leave_nothing(bench: Bench) -> None:
    def kill_mount(process: subprocess.Popen[str]) -> None:
        (place,) = bench.medium.iterdir()
        for pid in measure.marked_processes(f"{MARK}={place}/rclone\0"):
            os.kill(pid, signal.SIGKILL)

    # Slow enough to be alive when it is killed.
    arm = ArmPlan(name="rclone")
    done = bench.run(arm, TRAIN, FAR, in_first_epoch=kill_mount)
    assert done.status == 1
    assert "readers ended with status 1" in done.result["failure"]["what"]
    assert done.result["epochs"] == []
    done = bench.run(arm, TRAIN, FAR, in_first_epoch=subprocess.Popen.terminate)
    assert (done.status, done.result["failure"]["what"]) == (130, "interrupted")


@drops_pages
def test_native_files_prove_that_their_pages_are_gone_or_there(bench: Bench) -> None:
    dataset = Dataset("small", bench.root, scan(bench.root))
    assert proofs.pages_dropped(dataset, native=True).ok
    arm = Native(Site(Workspace(bench.medium), bench.server, "", dataset), ARMS["native"][0])
    arm.start()
    before = proofs.pages_resident(dataset, arm)
    for entry in dataset.entries:
        (dataset.root / entry.path).read_bytes()
    after = proofs.pages_resident(dataset, arm)
    assert before is not None
    assert after is not None
    assert (before.ok, after.ok) == (False, True)


def test_a_proof_fails_by_its_figures(tmp_path: Path) -> None:
    (tmp_path / "left").write_bytes(b"data")
    assert not proofs.cache_empty(tmp_path).ok
    assert proofs.cache_empty(tmp_path / "missing").ok
    assert proofs.whole(0, 20, SIZE, (20, SIZE)).ok
    assert not proofs.whole(0, 19, SIZE, (20, SIZE)).ok
    assert not proofs.whole(0, 20, SIZE - 1, (20, SIZE)).ok
    assert not proofs.from_the_store("cold-epoch-1", StoreCounts(2, 999, 0), 1000).ok
    for counts, ok in (
        (StoreCounts(0, 0, 9), True),
        (StoreCounts(1, 0, 0), False),
        # Of a network's bytes a hundredth may be another's.
        (StoreCounts(None, 10, None), True),
        (StoreCounts(None, 11, None), False),
    ):
        assert proofs.nothing_from_the_store("warm-epoch-1", counts, 1000).ok == ok


@drops_pages
def test_bytes_of_a_store_that_speaks_tls_are_counted_at_the_network(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    options = (
        f"--cert={tmp_path}/server.pem",
        f"--key={tmp_path}/server.key",
        f"--auth-key={bench.server.access_key},{bench.server.secret_key}",
    )
    with rclone_serves("s3", bench.root.parent, *options) as address:
        done = bench.run(COLD, endpoint=f"https://{address}")
    assert (done.result["failure"], done.result["valid"]) == (None, True)
    assert "bytes (the store speaks TLS)" in done.proof("cold-epoch-1")["detail"]
    store = done.result["epochs"][0]["store"]
    assert store["gets"] is None
    assert store["get_bytes"] >= SIZE


def test_what_the_network_brings_is_counted_on_its_side_of_the_machine() -> None:
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


def job(command: str) -> JobPlan:
    """Before a cold job the pages of the whole machine are dropped, so jobs here are warm."""
    spec = {
        "trainer": "mpi",
        "launch": "launcher",
        "command": command,
        "data": [{"dataset": "imagenet", "mountPath": "/data"}],
    }
    manifest = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "resnet"},
        "spec": spec,
    }
    return JobPlan(name="job", kind="job", epochs=2, manifest=manifest)


# Reads everything, epoch by epoch, and says so; or stops at once.
JOB = """
for epoch in $(seq 0 $((EPOCHS - 1))); do
  test "$(find $DATA_DIR -type f -name '*.bin' | xargs cat | wc -c)" -gt 0 || exit 1
  echo '{"epoch": '$epoch', "images_per_s": 20, "data_wait_share": 0.25, "seconds": 2, "top1": 9}'
done
"""


@pytest.mark.slow  # a job takes 4 s to start and to end
def test_a_job_reads_the_arms_folder_and_what_it_says_are_the_figures_or_why_it_failed(
    bench: Bench,
) -> None:
    done = bench.run(ArmPlan(name="penstock-warm"), job(JOB))
    assert (done.status, done.result["failure"]) == (0, None)
    # Two seconds of 20 images each second.
    assert [epoch["samples"] for epoch in done.result["epochs"]] == [40, 40]
    assert [epoch["busy_share"] for epoch in done.result["epochs"]] == [0.75] * 2
    assert done.result["epochs"][1]["top1"] == 9
    assert not done.result["workload"]["emulated"]
    assert list((done.folder / "logs").glob("job-*.log"))
    for command, *said in (
        ("echo no such model >&2; exit 3", "the job failed after 0 epochs", "no such model"),
        ("true", "the job succeeded after 0 epochs", '"images_per_s": …'),
    ):
        done = bench.run(ArmPlan(name="native"), job(command))
        assert done.status == 1
        assert all(part in done.result["failure"]["what"] for part in said)
