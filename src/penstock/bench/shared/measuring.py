"""One function for each group of rows; those of members that fail are in `failing`.

Each leaves no mount behind, and members that run. Bytes and requests are counted by the proxy in
front of the store, so not by the system that is measured. Ratios are taken between neighbours in
time.
"""

import contextlib
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.bench import measure
from penstock.bench.accelerators import EpochFigures, published
from penstock.bench.datasets import Dataset, make_small
from penstock.bench.experiments.feeding import Item, ReaderConfig
from penstock.bench.experiments.programs import gated_program
from penstock.bench.shared.bareclient import get_all
from penstock.bench.shared.cluster import (
    SECOND,
    Cluster,
    Node,
    at_once,
    put_into_bucket,
)
from penstock.bench.shared.failing import failures
from penstock.bench.shared.report import Row
from penstock.bench.workspace import BenchError
from penstock.cache.identity import Block
from penstock.cache.seal import Packing, Sealing

_PIECES_AT_ONCE = 16  # of a large file: those of a block of 8 MiB


def once_from_the_bucket(cluster: Cluster) -> list[Row]:
    """All nodes read the same data set at once, each in an order of its own."""
    each = cluster.settings.readers_each

    def read(node: Node) -> None:
        cluster.read_all(node, readers=each, seed=100 + node.machine.number)

    rows: list[Row] = []
    for shared in (True, False):
        cluster.empty_members(cluster.small)
        nodes = [cluster.node(number, cluster.small, shared=shared) for number in cluster.everyone]
        with cluster.mounted(*nodes):
            share, gets, seconds = _count(cluster, nodes, read)
            found = [node.statistics() for node in nodes]
        what = f"{len(nodes)} nodes read it at once, each in its own order"
        if not shared:
            what += ", without the shared tier"
        note = f"{gets / len(cluster.small.entries):.3f} GETs a file; {seconds:.1f} s"
        rows.append(
            Row(
                f"bytes that left the bucket, of the data set: {what}",
                share,
                at_most=1.02 if shared else None,
                note=note,
                detail={"gets": gets, "seconds": seconds}
                | {name: sum(one[name] for one in found) for name in ("errors", "hedges")},
            )
        )
    return rows


def shared_warm_up(cluster: Cluster) -> list[Row]:
    """`penstock warm` on all nodes at once."""
    cluster.empty_members(cluster.small)
    answers: dict[str, dict[str, Any]] = {}

    def warm(node: Node) -> None:
        answers[node.name] = node.load()

    nodes = [cluster.node(number, cluster.small) for number in cluster.everyone]
    with cluster.mounted(*nodes):
        share, gets, seconds = _count(cluster, nodes, warm)
    files = len(cluster.small.entries)
    if (least := min(answer["cached_files"] for answer in answers.values())) != files:
        raise BenchError(f"a node has only {least} files of {files} after its warm-up")
    shares = [answers[node.name]["fetched_files"] / files for node in nodes]
    note = f"{gets / files:.3f} GETs a file; {seconds:.1f} s"
    what = f"`penstock warm` on {len(nodes)} nodes at once"
    detail = {"gets": gets, "seconds": seconds, "answers": answers}
    return [
        Row(
            f"bytes that left the bucket, of the data set: {what}",
            share,
            at_most=1.02,
            note=note,
            detail=detail,
        ),
        Row(
            "the largest share that one of them fetched",
            max(shares),
            note="shares " + ", ".join(f"{one:.2f}" for one in shares),
        ),
    ]


@dataclass(frozen=True, slots=True)
class Sample:
    """One cold epoch of the second node, and the bare client before and after it."""

    seconds: float
    bare_s: tuple[float, float]
    cpu_s: float  # of the mount, without readers and members
    bucket_bytes: int
    shared_bytes: int

    @property
    def ratio(self) -> float:
        return statistics.fmean(self.bare_s) / self.seconds


def second_node(cluster: Cluster, dataset: Dataset) -> list[Row]:
    """The cold epoch of a node after another one has read everything, beside a bare client.

    With a cache of its own, which keeps what it reads, and without one.
    """
    is_small, size_bytes = dataset is cluster.small, dataset.size_bytes
    readers = min(cluster.settings.readers, len(dataset.entries))
    cluster.fill_members(dataset)

    def bare(seed: int) -> float:
        in_flight = 1 if is_small else _PIECES_AT_ONCE
        machine = cluster.machines[SECOND]
        return get_all(cluster, machine, readers=readers, in_flight=in_flight, seed=seed).seconds

    samples: dict[bool, list[Sample]] = {True: [], False: []}
    measure.touch_memory(2 * size_bytes)
    for seed in range(cluster.settings.rounds):
        before_s = bare(seed)
        for cached, found in samples.items():
            node = cluster.node(SECOND, dataset, cached=cached)
            epoch = _cold_epoch(cluster, node, readers, seed)
            after_s = bare(seed)
            found.append(replace(epoch, bare_s=(before_s, after_s)))
            before_s = after_s
    alone = _cold_epoch(cluster, cluster.node(SECOND, dataset, shared=False), readers, 0)
    rows: list[Row] = []
    size = "small" if is_small else "large"
    for cached, found in samples.items():
        name = f"cold epoch of the second node, {size} files, of a bare memcached client"
        target = 0.8 if is_small else 0.85
        rows.append(
            Row(
                name if cached else f"{name}, without a cache of its own",
                statistics.median(one.ratio for one in found),
                at_least=target if cached else None,
                note=f"{readers} readers; {_speeds(dataset, found)}",
                detail={"samples": [asdict(one) | {"ratio": one.ratio} for one in found]},
            )
        )
    gain = alone.seconds / statistics.median(one.seconds for one in samples[True])
    note = f"{alone.seconds:.1f} s from the bucket"
    rows.append(
        Row(
            f"cold epoch of the second node, {size} files, of one without the tier", gain, note=note
        )
    )
    left = sum(one.bucket_bytes for found in samples.values() for one in found)
    return [*rows, Row(f"bytes that left the bucket meanwhile, {size} files", left, at_most=0)]


def _cold_epoch(cluster: Cluster, node: Node, readers: int, seed: int) -> Sample:
    with cluster.mounted(node):
        measure.drop_pages()
        counts, usage = cluster.far.counts(), node.usage()
        epoch = cluster.read_all(node, readers=readers, seed=seed)
        used, left = node.usage().since(usage), cluster.far.counts().since(counts)
        hits = node.statistics()["hit_bytes"].get("SHARED", 0)
    return Sample(epoch.seconds, (0.0, 0.0), used.cpu_s, left.get_bytes, hits)


def _speeds(dataset: Dataset, samples: Sequence[Sample]) -> str:
    """Return the best speeds of both, which other work on the machine has disturbed least."""
    size_gb = dataset.size_bytes / 1e9
    ours, bare = min(one.seconds for one in samples), min(min(one.bare_s) for one in samples)
    cpu = min(one.cpu_s for one in samples) / size_gb
    if dataset.name == "large":
        speeds = f"{size_gb * 1e3 / ours:,.0f} MB/s, bare {size_gb * 1e3 / bare:,.0f}"
    else:
        count = len(dataset.entries)
        speeds = f"{count / ours:,.0f} files/s, bare {count / bare:,.0f}"
    return f"{speeds}; CPU {cpu:.2f} s/GB"


def planned_epochs(cluster: Cluster) -> list[Row]:
    """The first epoch with plans: one node alone, then all of them at once, from empty caches."""
    settings = cluster.settings
    row = published("resnet50", "h100")
    demand = settings.demand or 50.0 * measure.machine()["cores"]
    accelerator = row.scaled(demand / row.samples_per_s)
    folder = cluster.workspace.folder / "data-of-epochs"
    files = math.ceil(accelerator.samples_per_s * settings.epoch_s)
    made = make_small(folder / "epoch", files, seed=settings.seed)
    dataset = replace(made, name="epoch")  # also of its bucket
    put_into_bucket(cluster.near, dataset)
    found: dict[int, list[EpochFigures]] = {}
    sent: dict[int, float] = {}
    for count in (1, settings.nodes):
        cluster.empty_members(dataset)
        nodes = [cluster.node(number, dataset) for number in range(count)]
        with cluster.mounted(*nodes):
            measure.drop_pages()
            before = cluster.far.counts()
            configs = [_feeding(node, accelerator.batch, accelerator.step_s) for node in nodes]
            found[count] = _feed(nodes, configs)
            sent[count] = cluster.far.counts().since(before).get_bytes / dataset.size_bytes
    shutil.rmtree(folder)
    (alone,), together = found[1], found[settings.nodes]
    slowest = max(together, key=lambda one: one.seconds)
    busy = [one.busy_share for one in together]
    what = f"{settings.nodes} nodes with plans"
    return [
        Row(
            "accelerator busy in the first epoch, one node with a plan",
            alone.busy_share,
            at_least=0.95,
            note=f"{accelerator.samples_per_s:,.0f} samples/s; first batch after "
            f"{alone.first_batch_s:.2f} s; {sent[1]:.3f} of the data set left the bucket",
            detail=asdict(alone),
        ),
        Row(
            f"accelerators busy in the first epoch, {what}, the least busy one",
            min(busy),
            at_least=0.95,
            note="busy " + ", ".join(f"{one:.3f}" for one in busy),
            detail={"epochs": [asdict(one) for one in together]},
        ),
        Row(
            f"duration of that epoch, {what}, the slowest, of one node's",
            slowest.seconds / alone.seconds,
            at_most=1.02,
            note=f"{slowest.seconds:.1f} s, {alone.seconds:.1f} s alone",
        ),
        Row(
            f"bytes that left the bucket, of the data set: {what}",
            sent[settings.nodes],
            at_most=1.02,
        ),
    ]


def _feeding(node: Node, batch: int, step_s: float) -> ReaderConfig:
    folder = node.site.workspace.folder_for(f"feeding-{time.monotonic_ns()}")
    entries = node.site.dataset.entries
    return ReaderConfig(
        root=str(node.root),
        layout="files",
        items=tuple(Item(entry.path, entry.size_bytes, 1) for entry in entries),
        ranks=1,
        threads=published("resnet50", "h100").read_threads,
        batch=batch,
        step_s=step_s,
        epochs=1,
        seed=node.machine.number,
        planned=True,
        gate="",
        output=str(folder),
    )


def _feed(nodes: Sequence[Node], configs: Sequence[ReaderConfig]) -> list[EpochFigures]:
    """Feed an accelerator on each node, all at once."""
    with contextlib.ExitStack() as exits:
        programs = [
            exits.enter_context(
                gated_program(
                    node.site.workspace,
                    f"feeding-{node.name}",
                    lambda gate, config=config: _feeding_command(config, gate),
                    epochs=1,
                    extra=node.reader_environment(),
                )
            )
            for node, config in zip(nodes, configs, strict=True)
        ]
        for program in programs:
            program.wait_for(0)
        for program in programs:
            program.go_on()
    paths = [Path(config.output) / "epoch-0-rank-0.json" for config in configs]
    return [EpochFigures(**json.loads(path.read_text())["figures"]) for path in paths]


def _feeding_command(config: ReaderConfig, gate: Path) -> list[str]:
    path = Path(config.output) / "readers.json"
    path.write_text(json.dumps(config.to_json() | {"gate": str(gate)}))
    return [sys.executable, "-Pm", "penstock.bench.experiments.feeding", str(path)]


def seal_cost(cluster: Cluster) -> list[Row]:
    """What it costs to write and to read a value with a checksum, and sealed."""
    data = memoryview((cluster.small.root / cluster.small.entries[0].path).read_bytes())
    block = Block(b"\1" * 16, 0, 0, len(data), whole=True)
    rows: list[Row] = []
    for name, packing in (
        ("checksum only", Packing()),
        ("sealed", Sealing(b"a key of 32 bytes" * 2)),
    ):
        key = packing.name(block, 0)
        value = memoryview(b"".join(packing.pack(key, data)))
        head, body = value[: packing.head_bytes], value[packing.head_bytes :]
        for what, act in (
            ("write", lambda packing=packing, key=key: packing.pack(key, data)),
            ("read", lambda p=packing, k=key, h=head, b=body: p.unpack(k, h, b)),
        ):
            rows.append(Row(f"a value of 110 KiB, {name}: {what}", _microseconds(act), "µs"))
    return rows


def _microseconds(act: Callable[[], object], *, turns: int = 200, tries: int = 7) -> float:
    """Return the CPU time of one call: the least of several tries, since others use the cores."""
    found: list[float] = []
    for _ in range(tries):
        start_s = time.thread_time()
        for _ in range(turns):
            act()
        found.append((time.thread_time() - start_s) / turns)
    return min(found) * 1e6


def _count(
    cluster: Cluster, nodes: Sequence[Node], act: Callable[[Node], object]
) -> tuple[float, int, float]:
    """Let all nodes act at once. Return the share of the small data set that left the bucket, the
    GETs, and the time."""
    before, start_s = cluster.far.counts(), time.monotonic()
    at_once(act, nodes)
    seconds = time.monotonic() - start_s
    counts = cluster.far.counts().since(before)
    return counts.get_bytes / cluster.small.size_bytes, counts.gets or 0, seconds


def groups(cluster: Cluster) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """Yield what is to be measured, in the order of the table."""
    yield "all nodes at once", lambda: once_from_the_bucket(cluster)
    yield "warm-ups at once", lambda: shared_warm_up(cluster)
    for dataset in (cluster.small, cluster.large):
        yield f"second node, {dataset.name}", lambda dataset=dataset: second_node(cluster, dataset)
    if cluster.settings.epochs:
        yield "first epochs with plans", lambda: planned_epochs(cluster)
    if cluster.settings.failures:
        yield "members that fail", lambda: failures(cluster)
    yield "the seal", lambda: seal_cost(cluster)
