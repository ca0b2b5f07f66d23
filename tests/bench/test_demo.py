"""The demo and the epoch benchmark, tiny: what they count and claim, and that nothing is left."""

import io
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
from rich.console import Console
from rich.table import Table

from penstock.bench import epoch as epochs
from penstock.bench import measure, publish, report
from penstock.bench.accelerators import EpochFigures
from penstock.bench.epochruns import WAYS, EpochSample
from penstock.bench.targets import CatalogFigures, judge
from penstock.bench.trial import Sample
from tests.support.bench_ground import assert_nothing_left

WARM = Sample(
    arm="penstock",
    dataset="small",
    state="warm",
    readers=8,
    epochs=2,
    seconds=2.0,
    files=20_000,
    size_bytes=2_000_000_000,
    reader_cpu_s=0.5,
    daemon_cpu_s=0.1,
    server_cpu_s=0.0,
    memory_bytes=50_000_000,
    messages=6,
    mode="pagecache",
    native_ratio=0.97,
)
CACHED = replace(WARM, state="cached", native_ratio=None)
COLD = replace(WARM, state="cold", native_ratio=None, bare_ratio=0.81)
COLD_LARGE = replace(COLD, dataset="large", readers=1, bare_ratio=0.7)
PASSTHROUGH = replace(
    WARM, arm="penstock-passthrough", dataset="large", state="cached", mode="passthrough"
)
FILES = 40
STORE = epochs.Store(latency_s=0.03, bytes_per_s=60e6, batch_bytes=12e6)  # 0.2 s a batch


DEMO = (sys.executable, "-m", "penstock.bench.demo", "--readers", "2", "--rounds", "1")


def peer(arm: str, seconds: float, beside: Sample = COLD) -> Sample:
    return replace(beside, arm=arm, seconds=seconds, bare_ratio=None)


def unrated(sample: Sample) -> Sample:
    """One whose bare client was not measured."""
    return replace(sample, bare_ratio=None)


@pytest.mark.slow
def test_the_demo_prints_a_row_for_each_epoch_and_a_conclusion(medium: Path) -> None:
    command = [*DEMO, "--files", "60", "--cache-medium", medium]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"│ (native|penstock 0\S+|rclone 1\S+) +│ (cold|warm) ", done.stdout)
    assert [(arm.split()[0], state) for arm, state in rows] == [
        ("native", "warm"),
        *((arm, state) for arm in ("penstock", "rclone") for state in ("cold", "warm")),
    ]
    assert "A warm epoch through Penstock reads at" in done.stdout
    assert_nothing_left(medium)


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing(medium: Path) -> None:
    command = [*DEMO, "--files", "100", "--cache-medium", medium]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as demo:
        assert demo.stderr is not None
        assert any(line.startswith("rclone: a cold") for line in demo.stderr)
        demo.send_signal(signal.SIGINT)
        output, talk = demo.communicate(timeout=100)
    assert (demo.returncode, output) == (130, ""), talk
    assert "nothing is left behind" in talk
    assert_nothing_left(medium)


def test_a_row_is_the_median_of_its_samples() -> None:
    slower = replace(WARM, seconds=4.0, native_ratio=0.5)
    slowest = replace(WARM, seconds=8.0, native_ratio=0.2, messages=20)
    (row,) = report.rows([slower, WARM, slowest])
    assert (row.samples, row.files_per_s, row.mb_per_s) == (3, 5000, 500)
    assert (row.native_ratio, row.messages_per_epoch) == (0.5, 3)
    # The readers' own CPU time is told apart.
    assert (row.cpu_s_per_gb, row.reader_cpu_s_per_gb) == (0.05, 0.25)
    # States and reader counts are rows of their own.
    rows = report.rows([WARM, CACHED, replace(WARM, readers=1), WARM])
    found = [(row.state, row.readers, row.samples) for row in rows]
    assert found == [("warm", 8, 2), ("cached", 8, 1), ("warm", 1, 1)]


def printed(table: Table) -> list[list[str]]:
    """Its lines as words."""
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    return [line.split() for line in console.export_text().splitlines()]


def test_a_table_names_versions_and_what_all_processes_of_a_system_cost() -> None:
    samples = [replace(WARM, arm="native", memory_bytes=0), CACHED, replace(WARM, arm="juicefs")]
    versions = {"penstock": "0.1.0", "juicefs": "1.4.2 with Redis"}
    lines = printed(report.dataset_table("files", report.rows(samples), versions))
    assert ["native", "warm", "8", "10,000", "1,000", "0.97", "-", "-", "-", "3.0"] in lines
    assert [
        "penstock",
        "0.1.0",
        "cached",
        "8",
        "10,000",
        "1,000",
        "-",
        "-",
        "0.05",
        "50",
        "3.0",
    ] in lines
    assert any(line[:3] == ["juicefs", "1.4.2", "warm"] for line in lines)
    # The tables of epochs, too.
    versions = {"penstock": "0.1.0", "penstock-half": "0.1.0", "rclone": "1.75.2"}
    two = [sample("plan"), sample("rclone"), HALF]
    lines = printed(epochs.epoch_table(two, versions))
    for system in (["Penstock", "0.1.0,", "PlannedSampler"], ["rclone", "mount", "1.75.2"]):
        assert [line[-3:-1] for line in lines if line[: len(system)] == system] == [["1.50", "50"]]
    (half,) = [line for line in printed(epochs.half_table(two, versions)) if "keep" in line]
    assert (half[:2], half[-2:]) == (["Penstock", "0.1.0,"], ["1.50", "50"])


def test_the_readme_names_versions_and_costs(tmp_path: Path) -> None:
    samples = [COLD, WARM, replace(COLD, arm="juicefs"), replace(WARM, arm="juicefs")]
    path = tmp_path / "peers.json"
    report.write_json(
        path,
        machine=measure.machine(),
        versions={"penstock": "0.1.0", "juicefs": "1.4.2 with Redis"},
        settings={"files": 1000, "large": 2, "medium": "tmpfs"},
        samples=samples,
        verdicts=[],
        left_out={},
    )
    lines = publish.table(json.loads(path.read_text())).splitlines()
    assert "| **Penstock** 0.1.0 | 10,000 | – | 10,000 | 0.97 | – |  | 0.05 | 50 |" in lines
    assert "| JuiceFS 1.4.2 | 10,000 | – | 10,000 | 0.97 | – |  | 0.05 | 50 |" in lines


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ([WARM], ("warm small files, 8 readers", "0.97", True)),
        ([replace(WARM, native_ratio=0.94)], ("warm small files, 8 readers", "0.94", False)),
        # The local cache is held against JuiceFS of the same run.
        ([CACHED, replace(CACHED, arm="juicefs", seconds=5.0)],
         ("cached small files, 8 readers", "2.50", True)),
        ([CACHED, replace(CACHED, arm="juicefs", seconds=4.9)],
         ("cached small files, 8 readers", "2.45", False)),
        ([CACHED], None),
        ([COLD], ("cold small files, 8 readers", "0.81", True)),
        ([COLD_LARGE], ("cold large files, 1 reader", "0.70", True)),
        ([replace(COLD_LARGE, readers=8, bare_ratio=0.69)],
         ("cold large files, 8 readers", "0.69", False)),
        # Medians are compared with the fastest peer, and the bare client is none.
        ([unrated(COLD), peer("rclone", 2.1), peer("s3fs", 8.0), peer("bare client", 1.0)],
         ("cold small files, 8 readers", "1.05 times rclone", True)),
        ([unrated(COLD_LARGE), peer("s3fs", 2.0, COLD_LARGE), peer("rclone", 3.0, COLD_LARGE)],
         ("cold large files, 1 reader", "1.00 times s3fs", False)),
        ([unrated(COLD), peer("rclone", 1.0, COLD_LARGE)], None),
        ([PASSTHROUGH], ("cached large files, passthrough, 8 readers", "0.97", True)),
        # It fell back, and so proves nothing of passthrough.
        ([replace(PASSTHROUGH, mode="pagecache")], None),
    ],
)  # fmt: skip
def test_targets_are_met_or_short_by_what_was_measured(
    samples: list[Sample], verdict: tuple[str, str, bool] | None
) -> None:
    found = [(one.what, one.figure, one.met) for one in judge(samples, None, cores=2)]
    assert found == ([] if verdict is None else [verdict])
    # The catalog is judged when it was measured.
    catalog = CatalogFigures(files=1_280_000, ready_s=0.4, memory_bytes=250_000_000)
    assert [verdict.met for verdict in judge([], catalog, cores=2)] == [True, False]


@pytest.mark.parametrize(
    ("cores", "goals"),
    [
        (7, ["2.5 times JuiceFS", "2.5 times JuiceFS", "0.7 of the client"]),
        (8, ["1.5 times JuiceFS", "2 times JuiceFS", "0.85 of the client"]),
        (16, ["1.5 times JuiceFS", "60,000 files/s", "2 times JuiceFS", "0.85 of the client"]),
    ],
)
def test_targets_are_set_for_the_cores_of_the_machine(cores: int, goals: list[str]) -> None:
    cached = [
        replace(CACHED, arm=arm, readers=readers)
        for arm in ("penstock", "juicefs")
        for readers in (8, 16)
    ]
    found = judge([*cached, COLD_LARGE], None, cores=cores)
    assert [verdict.goal for verdict in found] == goals


def test_only_the_most_readers_are_held_against_the_client_on_small_files() -> None:
    cold = [replace(COLD, readers=readers) for readers in (1, 8)]
    large = [replace(COLD_LARGE, readers=readers) for readers in (1, 8)]
    found = [verdict.what for verdict in judge([*cold, *large], None, cores=2)]
    assert found == [
        "cold large files, 1 reader",
        "cold small files, 8 readers",
        "cold large files, 8 readers",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)  # eight epochs of a DataLoader, over three file systems
def test_two_epochs_of_each_way_are_counted_at_the_store(medium: Path, tmp_path: Path) -> None:
    ways = ("native", "rclone", "plan", "run")
    command = [
        *(sys.executable, "-m", "penstock.bench.epoch", "--arms", ",".join(ways)),
        *("--files", str(FILES), "--scale", "0.05", "--workers", "2", "--latency", "5ms"),
        *("--cache-medium", str(medium), "--out", str(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert_nothing_left(medium)
    assert (tmp_path / "epoch.svg").read_text().startswith("<svg")
    assert "0.05 of an H100 on ResNet-50" in done.stdout
    assert "Not an MLPerf result" in done.stdout
    samples = json.loads((tmp_path / "epoch.json").read_text())["samples"]
    rows = {(row["way"], row["figures"]["epoch"]): row for row in samples}
    assert set(rows) == {(way, epoch) for way in ways for epoch in range(2)}
    for (way, epoch), row in rows.items():
        assert row["figures"]["samples"] == FILES
        first = epoch == 0 and way != "native"
        # At least: a hedge is a GET too.
        assert (row["gets"] >= FILES) if first else (row["gets"] == 0)
        assert row["told"] == (way in ("plan", "run"))
        if first and row["told"]:  # the script waits at its gate, its plan still open
            assert [plan["files"] for plan in row["statistics"]["plans"]] == [FILES]
    assert rows["rclone", 0]["fetched_share"] >= 1


def sample(way: str, epoch: int = 0, *, seconds: float = 10.0, first_s: float = 0.1) -> EpochSample:
    figures = EpochFigures(
        epoch=epoch,
        samples=4000,
        size_bytes=400_000_000,
        steps=40,
        seconds=seconds,
        busy_s=9.6,
        loader_start_s=0.05,
        first_batch_s=first_s,
    )
    return EpochSample(
        way=way,
        title=WAYS[way].title,
        told=WAYS[way].told,
        figures=figures,
        warm_s=0.0,
        gets=4000,
        get_bytes=400_000_000,
        other_requests=1,
        cpu_s=0.6,
        memory_bytes=50_000_000,
        hit_bytes=0,
        statistics=None,
    )


FAST = sample("plan", first_s=0.38)
SLOW = replace(sample("plan", seconds=12, first_s=0.5), get_bytes=412_000_000)
HALF = replace(sample("half-keep", 1), hit_bytes=199_000_000)


@pytest.mark.parametrize(
    ("samples", "verdicts"),
    [
        # Busy; bytes fetched over bytes read; the first batch beyond native's and its transfer.
        ([sample("native"), FAST], [("96.0%", True), ("1.000", True), ("2.7", True)]),
        ([sample("native"), SLOW], [("80.0%", False), ("1.030", False), ("6.7", False)]),
        # The second epoch is held against native of the same run.
        ([sample("native", 1), sample("plan", 1, seconds=10.1)], [("0.990", True)]),
        ([sample("plan", 1)], []),
        # Runs without a hint have no targets.
        ([sample("penstock"), sample("penstock", 1), sample("rclone")], []),
        # A cache of half the data must hit half.
        ([HALF], [("49.8%", True)]),
        ([replace(HALF, hit_bytes=60_000_000)], [("15.0%", False)]),
    ],
)
def test_epochs_are_held_against_their_targets(
    samples: list[EpochSample], verdicts: list[tuple[str, bool]]
) -> None:
    found = epochs.judge(samples, STORE)
    assert [(verdict.figure, verdict.met) for verdict in found] == verdicts
