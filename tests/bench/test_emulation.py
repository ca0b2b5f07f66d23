"""The emulated accelerators, by a clock of our own: their figures, and what feeds them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench.accelerators import Accelerator, Batch, published
from penstock.bench.experiments.feeding import Item, Loader, ReaderConfig, share_of
from penstock.bench.experiments.result_files import EpochRead
from penstock.errors import UsageError
from tests.support.waiting import wait_until


class Clock:
    """Time passes only by steps and by what the loader takes."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_loader_that_keeps_up_leaves_only_the_wait_for_the_first_batch() -> None:
    clock = Clock()

    class Batches:
        def __iter__(self) -> Iterator[Batch]:
            clock.sleep(0.5)  # to start the loader is part of the wait for the first batch
            return self.load()

        def load(self) -> Iterator[Batch]:
            clock.sleep(0.25)
            for samples in (10, 10, 5):  # a smaller batch is a shorter step
                yield Batch(samples, samples * 1000)

    figures = Accelerator(10, step_s=0.5).train(Batches(), epoch=3, clock=clock, sleep=clock.sleep)
    assert (figures.epoch, figures.samples, figures.steps, figures.size_bytes) == (3, 25, 3, 25_000)
    assert (figures.loader_start_s, figures.first_batch_s) == (0.5, 0.75)
    assert (figures.seconds, figures.busy_s) == (2.0, 1.25)
    assert (figures.busy_share, figures.busy_share_after_first) == (0.625, 1.0)


def test_waiting_for_batches_and_for_others_is_not_being_busy() -> None:
    clock = Clock()

    def slow() -> Iterator[Batch]:
        for _ in range(4):
            clock.sleep(0.25)
            yield Batch(10, 1000, clock())

    def meet(done_s: float) -> float:
        clock.sleep(0.25)
        return done_s + 0.25

    figures = Accelerator(10, 0.5).train(
        slow(), epoch=0, clock=clock, sleep=clock.sleep, barrier=meet
    )
    assert figures.seconds == 4.0
    assert figures.busy_s == 2.0
    assert figures.busy_share_after_first == 2 / 3.75  # the first wait does not count


def test_a_host_that_wakes_late_costs_nothing_but_one_that_is_a_step_late_does() -> None:
    clock = Clock()

    def train(late_s: float) -> float:
        def sleep(seconds: float) -> None:
            clock.sleep(seconds + late_s)

        ready = iter([Batch(10, 1000, 0.0)] * 4)
        figures = Accelerator(10, 0.5).train(ready, epoch=0, clock=clock, sleep=sleep)
        return figures.busy_share_after_first

    assert train(late_s=0.125) == 1.0
    assert train(late_s=1.0) < 0.75


def test_published_figures_can_be_scaled_and_unknown_ones_are_refused() -> None:
    # Below one sample in a batch, the step is stretched.
    assert published("resnet50", "a100").scaled(0.1) == Accelerator(40, 0.435)
    tenth = published("cosmoflow", "h100").scaled(0.1)
    assert tenth.batch == 1
    assert tenth.samples_per_s == pytest.approx(published("cosmoflow", "h100").samples_per_s / 10)
    with pytest.raises(UsageError, match="has published no figures") as refused:
        published("resnet50", "b200")
    assert refused.value.hint == "resnet50 has figures for a100, h100, v100"


def test_a_loader_stays_two_batches_ahead_and_passes_on_what_a_reader_stumbles_over() -> None:
    taken: list[str] = []

    def read(path: str) -> Iterator[int]:
        taken.append(path)
        yield 1

    loader = Loader([str(n) for n in range(100)], lambda: read, batch=10, threads=2)
    batches = iter(loader)
    assert next(batches).samples == 10
    wait_until(lambda: len(taken) >= 10 + 20, lambda: taken)
    # Every thread may have taken one item that it waits with.
    assert len(taken) <= 10 + 20 + 2
    assert sum(batch.samples for batch in batches) == 90
    loader.close()

    def stumble(path: str) -> Iterator[int]:
        raise OSError(5, "Input/output error", path)
        yield 0

    loader = Loader(["a", "b"], lambda: stumble, batch=1, threads=2)
    with pytest.raises(OSError, match="Input/output error"):
        list(loader)
    loader.close()


def test_several_accelerators_meet_after_each_step_and_read_everything(tmp_path: Path) -> None:
    items = tuple(Item(f"{n}", 1000, 5) for n in range(9))
    order = ReaderConfig(
        None, "files", items, 2, 2, 4, 0.01, 2, 7, False, str(tmp_path / "gate"), str(tmp_path)
    )
    shares = [[list(share_of(order, epoch, rank)) for rank in range(2)] for epoch in range(2)]
    assert [sorted(a + b) for a, b in shares] == [list(range(9))] * 2
    assert shares[0] != shares[1]  # another order each epoch
    os.mkfifo(order.gate)
    (tmp_path / "order.json").write_text(json.dumps(order.to_json()))
    with subprocess.Popen(
        [sys.executable, "-Pm", "penstock.bench.experiments.feeding", tmp_path / "order.json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        for epoch in range(2):
            assert json.loads(program.stdout.readline()) == {"epoch": epoch}
            Path(order.gate).write_bytes(b"")
    assert program.returncode == 0
    for epoch in range(2):
        read = EpochRead.load(tmp_path, epoch, 2)
        assert (read.sum("samples"), read.sum("bytes")) == (45, 9000)
        assert sum(read.series("series_samples")) == 45
