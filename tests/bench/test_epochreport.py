"""Samples become rows and verdicts: each row says whether it was hinted, none is guessed."""

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from penstock.bench import epochreport, measure
from penstock.bench.accelerator import EpochFigures
from penstock.bench.epochpicture import picture
from penstock.bench.epochruns import WAYS, EpochSample

STORE = epochreport.Store(latency_s=0.03, bytes_per_s=60e6, batch_bytes=12e6)  # 0.2 s a batch


def sample(way: str, epoch: int = 0, *, seconds: float = 10.0, first_s: float = 0.1) -> EpochSample:
    return EpochSample(
        way=way,
        title=WAYS[way].title,
        told=WAYS[way].told,
        figures=EpochFigures(
            epoch=epoch,
            samples=4000,
            size_bytes=400_000_000,
            steps=40,
            seconds=seconds,
            busy_s=9.6,
            loader_start_s=0.05,
            first_batch_s=first_s,
        ),
        warm_s=0.0,
        gets=4000,
        get_bytes=400_000_000,
        other_requests=1,
        hit_bytes=0,
        said=None,
    )


def verdicts(*samples: EpochSample) -> dict[str, tuple[str, bool]]:
    title = f"{WAYS['plan'].title}: "
    return {
        verdict.what.removeprefix(title): (verdict.figure, verdict.met)
        for verdict in epochreport.judge(samples, STORE)
    }


def test_a_planned_first_epoch_is_held_against_its_targets() -> None:
    planned = sample("plan", first_s=0.38)
    assert verdicts(sample("native"), planned) == {
        "busy in the first epoch": ("96.0%", True),
        "bytes fetched over bytes read": ("1.000", True),
        "first batch, beyond native's and its own transfer": ("2.7", True),
    }
    slow = replace(sample("plan", seconds=12, first_s=0.5), get_bytes=412_000_000)
    assert verdicts(sample("native"), slow) == {
        "busy in the first epoch": ("80.0%", False),
        "bytes fetched over bytes read": ("1.030", False),
        "first batch, beyond native's and its own transfer": ("6.7", False),
    }


def test_the_second_epoch_is_held_against_native_of_the_same_run() -> None:
    assert verdicts(sample("native", 1), sample("plan", 1, seconds=10.1)) == {
        "second epoch, of native samples/s": ("0.990", True)
    }
    assert verdicts(sample("plan", 1)) == {}


def test_runs_without_a_hint_have_no_targets() -> None:
    assert verdicts(sample("penstock"), sample("penstock", 1), sample("rclone")) == {}


def test_a_cache_of_half_the_data_must_hit_half() -> None:
    kept = replace(sample("half-keep", 1), hit_bytes=199_000_000)
    what = "a cache of half the data: hits of the second epoch"
    assert verdicts(kept) == {what: ("49.8%", True)}
    assert verdicts(replace(kept, hit_bytes=60_000_000)) == {what: ("15.0%", False)}


def test_every_row_of_the_table_says_whether_it_was_hinted() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    samples = [sample(way, epoch) for way in WAYS for epoch in (0, 1)]
    console.print(epochreport.epoch_table(samples))
    rows = [line for line in console.export_text().splitlines() if "96.0%" in line]
    assert len(rows) == 7
    for way in WAYS.values():
        for row in (row for row in rows if way.title in row):
            assert ("hinted" in row) == way.told
            assert ("  no  " in row) != way.told
    console.print(epochreport.half_table(samples))
    assert len([line for line in console.export_text().splitlines() if "half," in line]) == 2


def test_the_json_and_the_picture_hold_every_way(tmp_path: Path) -> None:
    samples = [sample("native"), sample("plan"), sample("plan", 1)]
    epochreport.write_json(
        tmp_path / "new" / "epoch.json",
        machine=measure.machine(),
        versions={},
        settings={"scale": 0.25},
        samples=samples,
        verdicts=epochreport.judge(samples, STORE),
        left_out={"JuiceFS": "not installed"},
    )
    document = json.loads((tmp_path / "new" / "epoch.json").read_text())
    assert [(row["way"], row["told"], row["busy_share"]) for row in document["samples"]] == [
        ("native", False, 0.96),
        ("plan", True, 0.96),
        ("plan", True, 0.96),
    ]
    svg = picture(samples, "a caption with < in it")
    assert "Penstock, PlannedSampler, hinted" in svg
    assert "native files, hinted" not in svg
    assert "&lt;" in svg
