"""Figures become rows, rows become verdicts, and nothing is claimed that was not measured."""

import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from penstock.bench import measure, report
from penstock.bench.demo import conclusion
from penstock.bench.targets import CatalogFigures, judge
from penstock.bench.trial import Sample

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


def texts(*samples: Sample) -> dict[str, tuple[str, bool]]:
    return {verdict.what: (verdict.figure, verdict.met) for verdict in judge(samples, None)}


def test_a_row_is_the_median_of_its_samples() -> None:
    slower = replace(WARM, seconds=4.0, native_ratio=0.5)
    slowest = replace(WARM, seconds=8.0, native_ratio=0.2, messages=20)
    (row,) = report.rows([slower, WARM, slowest])
    assert (row.samples, row.files_per_s, row.mb_per_s) == (3, 5000, 500)
    assert (row.native_ratio, row.messages_per_epoch) == (0.5, 3)
    assert row.cpu_s_per_gb == 0.3


def test_states_and_reader_counts_are_rows_of_their_own() -> None:
    listed = report.rows([WARM, replace(WARM, state="cached"), replace(WARM, readers=1), WARM])
    assert [(row.state, row.readers, row.samples) for row in listed] == [
        ("warm", 8, 2),
        ("cached", 8, 1),
        ("warm", 1, 1),
    ]


def test_a_target_is_met_or_short_by_the_median_ratio() -> None:
    assert texts(WARM) == {"warm small files, 8 readers": ("0.97", True)}
    assert texts(replace(WARM, native_ratio=0.94)) == {
        "warm small files, 8 readers": ("0.94", False)
    }


def test_the_local_cache_is_held_against_juicefs_of_the_same_run() -> None:
    ours = replace(WARM, state="cached", native_ratio=None)
    theirs = replace(ours, arm="juicefs", seconds=10.0)
    assert texts(ours, theirs) == {"cached small files, 8 readers": ("5.0", False)}
    assert texts(ours) == {}


def test_cold_rows_are_held_against_the_bare_client() -> None:
    small = replace(WARM, state="cold", native_ratio=None, bare_ratio=0.81)
    large = replace(small, dataset="large", readers=1, bare_ratio=0.5)
    assert texts(small, large) == {
        "cold small files, 8 readers": ("0.81", True),
        "cold large files, 1 reader": ("0.50", False),
    }


def test_a_mount_that_fell_back_from_passthrough_proves_nothing_of_it() -> None:
    sample = replace(
        WARM, arm="penstock-passthrough", dataset="large", state="cached", mode="passthrough"
    )
    assert texts(sample) == {"cached large files, passthrough, 8 readers": ("0.97", True)}
    assert texts(replace(sample, mode="pagecache")) == {}


def test_the_catalog_is_judged_when_it_was_measured() -> None:
    verdicts = judge([], CatalogFigures(files=1_280_000, ready_s=0.4, memory_bytes=250_000_000))
    assert [verdict.met for verdict in verdicts] == [True, False]


def test_the_json_has_the_machine_every_sample_and_the_targets(tmp_path: Path) -> None:
    path = tmp_path / "out" / "peers.json"
    report.write_json(
        path,
        machine=measure.machine(),
        versions={"rclone": "v1"},
        settings={"files": 10_000},
        samples=[WARM, WARM],
        verdicts=judge([WARM], None),
        left_out={"s3fs": "no such program"},
    )
    document = json.loads(path.read_text())
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["memory_bytes"] > 0
    assert document["machine"]["kernel"]
    assert len(document["samples"]) == 2
    assert document["samples"][0]["native_ratio"] == 0.97
    assert document["targets"][0]["met"] is True
    assert document["left_out"] == {"s3fs": "no such program"}


def test_the_tables_show_every_row(tmp_path: Path) -> None:
    listed = report.rows([replace(WARM, arm="native", messages=None), WARM])
    console = Console(width=120, record=True, file=(tmp_path / "shown").open("w"))
    with console.file:
        console.print(report.dataset_table("10,000 files", listed))
        console.print(report.epoch_table("JPEGs", listed))
        console.print(report.target_table(judge([WARM], None)))
    shown = console.export_text()
    assert shown.count("native") >= 3
    assert shown.count("10,000") >= 4
    assert "0.97" in shown
    assert "met" in shown


def test_the_conclusion_says_what_the_figures_say() -> None:
    rclone = replace(WARM, arm="rclone", seconds=40.0, native_ratio=0.05)
    assert conclusion([WARM, rclone]) == (
        "A warm epoch through Penstock reads at 97% of native speed and sends its daemon "
        "3 messages; that is 20 times as fast as rclone mount."
    )
    level = replace(WARM, arm="rclone", messages=None)
    uncounted = replace(WARM, messages=None)
    assert conclusion([uncounted, level]) == (
        "A warm epoch through Penstock reads at 97% of native speed; "
        "that is 1.00 times the speed of rclone mount."
    )
