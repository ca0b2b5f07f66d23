"""The table of metrics keeps to Prometheus' conventions, and the counters to the table."""

import re
import threading
from math import inf

import pytest

from penstock.metrics import BUCKETS_S, BUFFERS, METRICS, OK, SUM, UNITS, Counters, Kind, Metric

# Words in a name that would repeat a label, or a unit that is not a base unit.
NOT_IN_NAMES = ("_kib", "_mib", "_ms", "_percent", "_s$", "_by_")


@pytest.mark.parametrize(("name", "metric"), METRICS.items(), ids=METRICS)
def test_every_metric_keeps_to_the_conventions_of_prometheus(name: str, metric: Metric) -> None:
    shown = metric.exported_name(name)
    assert re.fullmatch("penstock_[a-z]+(_[a-z]+)*", shown)
    assert shown.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert not [word for word in NOT_IN_NAMES if re.search(word, name)]
    assert (metric.unit(name) == "seconds") == (metric.kind is Kind.HISTOGRAM or "_time" in name)
    assert metric.unit(name) or not any(unit in name for unit in UNITS)
    assert metric.meaning
    assert metric.meaning[0].islower() or metric.meaning[0].isdigit()
    assert not metric.meaning.endswith(".")
    assert "mount" not in metric.labels
    assert all(len(labels) == len(metric.labels) for labels in metric.from_zero)


def test_amounts_are_kept_by_label_and_only_answered_requests_are_requests() -> None:
    counters = Counters()
    counters.add("store_requests", label="get", outcome=OK)
    counters.add("store_requests", label="get", outcome="timeout")
    counters.add("store_requests", label="list", outcome=OK)
    counters.add("store_retries", 2, "timeout")
    counters.add("refreshes")
    assert counters.by_label("store_requests") == {"get": 1, "list": 1}
    assert counters.total("store_requests") == 2
    assert counters.by_label("store_retries") == {"timeout": 2}
    assert counters.by_label("refreshes") == {"": 1}
    assert counters.total("hedges") == 0


def test_a_histogram_counts_each_time_in_the_smallest_bucket_that_holds_it() -> None:
    counters = Counters()
    for seconds in (0.001, 0.005, 0.006, 59.0, 61.0):
        counters.observe("fetch_seconds", seconds)
    found = {labels[0]: amount for name, labels, amount in counters.listed()}
    assert found.pop(SUM) == pytest.approx(120.012)
    assert found == {"0.005": 2, "0.01": 1, "60.0": 1, "inf": 1}
    assert list(BUCKETS_S) == sorted(BUCKETS_S)
    assert BUCKETS_S[-1] == inf


def test_what_a_worker_has_taken_adds_up_to_what_it_counted() -> None:
    worker, server = Counters(), Counters()
    for _ in range(2):
        worker.add("store_bytes", 100)
        worker.add_hit(BUFFERS, 7)
        worker.observe("store_request_seconds", 0.25, "get")
        server.add_all(worker.take())
        assert worker.listed() == []
    assert {(name, labels): amount for name, labels, amount in server.listed()} == {
        ("hits", (BUFFERS,)): 2,
        ("hit_bytes", (BUFFERS,)): 14,
        ("store_request_seconds", ("get", "0.5")): 2,
        ("store_request_seconds", ("get", SUM)): 0.5,
        ("store_bytes", ()): 200,
    }


def test_no_amount_is_lost_between_threads() -> None:
    counters, taken = Counters(), Counters()

    def count() -> None:
        for _ in range(2000):
            counters.add_hit("SSD", 3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken.add_all(counters.take())
    taken.add_all(counters.take())
    assert (taken.total("hits"), taken.total("hit_bytes")) == (8000, 24_000)
