"""Samples become rows and verdicts: each row says whether it was hinted, none is guessed."""

import io
from dataclasses import replace

from rich.console import Console

from penstock.bench import epochreport
from penstock.bench.accelerator import EpochFigures
from penstock.bench.epochruns import WAYS, EpochSample

STORE = epochreport.Store(latency_s=0.03, bytes_per_s=60e6, batch_bytes=12e6)  # 0.2 s a batch


def sample(way: str, epoch: int = 0, *, seconds: float = 10.0, first_s: float = 0.1) -> EpochSample:
    figures = EpochFigures(
        epoch=epoch, samples=4000, size_bytes=400_000_000, steps=40, seconds=seconds, busy_s=9.6,
        loader_start_s=0.05, first_batch_s=first_s,
    )  # fmt: skip
    return EpochSample(
        way=way, title=WAYS[way].title, told=WAYS[way].told, figures=figures, warm_s=0.0,
        gets=4000, get_bytes=400_000_000, other_requests=1, hit_bytes=0, said=None,
    )  # fmt: skip


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
    console.print(epochreport.epoch_table([sample("native"), sample("plan")]))
    native, planned = [line for line in console.export_text().splitlines() if "96.0%" in line]
    assert "hinted" not in native
    assert "hinted" in planned
