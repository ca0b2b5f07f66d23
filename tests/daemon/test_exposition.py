"""What Prometheus reads: both of its formats, whatever a mount is called and in whatever state."""

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from penstock.daemon.exposition import MountMetrics, exposition, read_metrics
from penstock.daemon.mount_registry import MountNote
from penstock.metrics import BUCKETS_S, COUNTED, METRICS, SUM, Kind, Labels

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def everything(mountpoint: str) -> MountMetrics:
    """A value for each metric of the table."""
    values: dict[str, dict[Labels, float]] = {}
    for number, (name, metric) in enumerate(METRICS.items()):
        labels = tuple(f"a-{label}" for label in metric.labels)
        if metric.kind is Kind.HISTOGRAM:
            values[name] = {(*labels, "0.01"): 2, (*labels, "inf"): 1, (*labels, SUM): 70.5}
        else:
            values[name] = {labels: number}
    return MountMetrics(mountpoint, values)


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name, and the values of labels in the order of their names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }


def test_both_formats_have_every_metric_of_the_table_with_its_kind_and_meaning() -> None:
    mounts = [everything("/mnt/a"), everything("/mnt/b")]
    text, kind = exposition(mounts)
    assert kind.startswith("text/plain")
    plain = {family.name: family for family in parse_text(text.decode())}
    text, kind = exposition(mounts, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    strict = {family.name: family for family in parse_openmetrics(text.decode())}
    for name, metric in METRICS.items():
        for families in (plain, strict):
            family = families[f"penstock_{name}"]
            assert (family.type, family.documentation) == (metric.kind.value, metric.meaning)
            seen = [set(one.labels) - {"le"} for one in family.samples]
            assert seen == [{"mount", *metric.labels}] * len(seen)
            assert {one.labels["mount"] for one in family.samples} == {"/mnt/a", "/mnt/b"}
        assert strict[f"penstock_{name}"].unit == metric.unit(name)
    assert len(plain) == len(strict) == len(METRICS)


def test_buckets_of_a_histogram_are_cumulative() -> None:
    found = samples(exposition([everything("/m")])[0])
    buckets = [
        found["penstock_fetch_seconds_bucket", (bound, "/m")]
        for bound in (*map(str, BUCKETS_S[:-1]), "+Inf")
    ]
    assert buckets == [0, *[2] * 12, 3]
    assert found["penstock_fetch_seconds_sum", ("/m",)] == 70.5
    assert found["penstock_fetch_seconds_count", ("/m",)] == 3


@pytest.mark.parametrize(
    ("mountpoint", "shown"),
    [
        ('/mnt/"a"\\b\nc', '/mnt/"a"\\b\nc'),
        ("/mnt/\udcff", "/mnt/\\udcff"),
        ("/mnt/日本", "/mnt/日本"),
    ],
)
@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_any_path_can_be_a_label(mountpoint: str, shown: str, accept: str) -> None:
    text, _ = exposition([everything(mountpoint)], accept)
    (family,) = (one for one in parse_text(text.decode()) if one.name == "penstock_serving")
    assert family.samples[0].labels == {"mount": shown}


@pytest.mark.parametrize("state", ["serving", "restarting", "waiting"])
def test_a_mount_without_a_server_shows_what_the_supervisor_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    note = MountNote("/mnt/gone", "s3://b", 1, 0.0, None, state=state, restarts=3)
    assert samples(exposition([read_metrics(note)])[0]) == {
        ("penstock_serving", ("/mnt/gone",)): 0,
        ("penstock_restarts_total", ("/mnt/gone",)): 3,
    }


def test_counters_that_nothing_was_counted_in_yet_are_shown_as_zero() -> None:
    for name, metric in COUNTED.items():
        # The members of a shared tier are known once there is one.
        assert metric.from_zero or "member" in metric.labels, (
            f"a rate would miss the first event of {name}"
        )
