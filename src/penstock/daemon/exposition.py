"""Metrics of mounts as text for Prometheus, by its client library.

Asks the server of a mount once, over its control socket. While a mount has no server only what its
supervisor knows is shown. Threading: any thread.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import MountNote
from penstock.errors import PenstockError
from penstock.metrics import BUCKETS_S, METRICS, SUM, Kind, Labels, Metric

# Longer than a hand-over takes, and shorter than Prometheus waits by default.
ANSWERS_WITHIN_S = 4.0
_FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily}


class MountMetrics(NamedTuple):
    mountpoint: str
    values: dict[str, dict[Labels, float]]  # by name and labels


def read_metrics(note: MountNote, within_s: float = ANSWERS_WITHIN_S) -> MountMetrics:
    """Return what is known of a mount; `within_s`: how long its server may take to answer."""
    values: dict[str, dict[Labels, float]] = {"restarts": {(): note.restarts}}
    try:
        answer = {} if note.state != "serving" else _asked(note, within_s)
    except PenstockError:  # it ended a moment ago, or is hung
        answer = {}
    for name, labels, value in answer.get("values", ()):
        if name in METRICS:  # the server may be of another release
            values.setdefault(name, {})[tuple(labels)] = value
    values["serving"] = {(): float(bool(answer))}
    if answer:
        _add_zeros(values)
    return MountMetrics(note.mountpoint, values)


def _asked(note: MountNote, within_s: float) -> dict[str, list[tuple[str, list[str], float]]]:
    return ask(note.socket_path, "metrics", timeout_s=within_s)


def _add_zeros(values: dict[str, dict[Labels, float]]) -> None:
    """Begin series at 0 before anything is counted: a rate would miss the first."""
    for name, metric in METRICS.items():
        if metric.kind is not Kind.GAUGE:
            for labels in metric.from_zero:
                key = labels if metric.kind is Kind.COUNTER else (*labels, SUM)
                values.setdefault(name, {}).setdefault(key, 0)


def exposition(mounts: Sequence[MountMetrics], accept: str = "") -> tuple[bytes, str]:
    """Return the text and its content type: OpenMetrics if the Accept header `accept` has it."""
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(mounts)), content_type


class _Collected(Collector):
    def __init__(self, mounts: Sequence[MountMetrics]) -> None:
        self._mounts = mounts

    def collect(self) -> Iterator[Family]:
        for name, metric in METRICS.items():
            of_mounts = [
                (_printable(one.mountpoint), one.values[name])
                for one in self._mounts
                if name in one.values
            ]
            if of_mounts and metric.kind is Kind.HISTOGRAM:
                yield _histogram(name, metric, of_mounts)
            elif of_mounts:
                family = _FAMILIES[metric.kind](
                    metric.exported_name(name),
                    metric.meaning,
                    labels=("mount", *metric.labels),
                    unit=metric.unit(name),
                )
                for mount, values in of_mounts:
                    for labels, value in values.items():
                        family.add_metric((mount, *labels), value)
                yield family


def _histogram(
    name: str, metric: Metric, of_mounts: Iterable[tuple[str, dict[Labels, float]]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(
        metric.exported_name(name),
        metric.meaning,
        labels=("mount", *metric.labels),
        unit=metric.unit(name),
    )
    for mount, values in of_mounts:
        for labels in dict.fromkeys(labels[:-1] for labels in values):
            buckets: list[tuple[str, float]] = []
            below = 0.0
            for bound in BUCKETS_S:
                below += values.get((*labels, str(bound)), 0)
                buckets.append(("+Inf" if bound == inf else str(bound), below))
            family.add_metric((mount, *labels), buckets, values.get((*labels, SUM), 0))
    return family


def _printable(path: str) -> str:
    """A path may be any bytes; a label is UTF-8."""
    return path.encode(errors="backslashreplace").decode()
