"""Figures become rows, rows become verdicts, and nothing is claimed that was not measured."""

from dataclasses import replace

from penstock.bench import report
from penstock.bench.demo import conclusion
from penstock.bench.targets import CatalogFigures, judge
from penstock.bench.trial import Sample

WARM = Sample(
    arm="penstock", dataset="small", state="warm", readers=8, epochs=2, seconds=2.0, files=20_000,
    size_bytes=2_000_000_000, reader_cpu_s=0.5, daemon_cpu_s=0.1, server_cpu_s=0.0,
    memory_bytes=50_000_000, messages=6, mode="pagecache", native_ratio=0.97,
)  # fmt: skip


def texts(*samples: Sample) -> dict[str, tuple[str, bool]]:
    return {verdict.what: (verdict.figure, verdict.met) for verdict in judge(samples, None)}


def test_a_row_is_the_median_of_its_samples() -> None:
    slower = replace(WARM, seconds=4.0, native_ratio=0.5)
    slowest = replace(WARM, seconds=8.0, native_ratio=0.2, messages=20)
    (row,) = report.rows([slower, WARM, slowest])
    assert (row.samples, row.files_per_s, row.mb_per_s) == (3, 5000, 500)
    assert (row.native_ratio, row.messages_per_epoch) == (0.5, 3)
    assert row.cpu_s_per_gb == 0.3
    # States and reader counts are rows of their own.
    listed = report.rows([WARM, replace(WARM, state="cached"), replace(WARM, readers=1), WARM])
    assert [(row.state, row.readers, row.samples) for row in listed] == [
        ("warm", 8, 2), ("cached", 8, 1), ("warm", 1, 1),
    ]  # fmt: skip


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
