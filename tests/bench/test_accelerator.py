"""The emulated accelerator, by a clock of our own; and the training script over plain files."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench.accelerator import Accelerator, Batch
from penstock.bench.dataset import SMALL_BYTES, make_small
from tests.support.bench_clock import Clock


def loader(clock: Clock, *waits_and_samples: tuple[float, int]) -> Iterator[Batch]:
    for wait_s, samples in waits_and_samples:
        clock.now_s += wait_s
        yield Batch(samples, samples * 1000)


def test_a_loader_that_keeps_up_leaves_only_the_wait_for_the_first_batch() -> None:
    clock = Clock()
    batches = loader(clock, (0.5, 10), (0, 10), (0, 10))
    figures = Accelerator(10, step_s=0.5).train(batches, epoch=3, clock=clock, sleep=clock.sleep)
    assert (figures.epoch, figures.samples, figures.steps, figures.size_bytes) == (3, 30, 3, 30_000)
    assert (figures.seconds, figures.busy_s, figures.stall_s) == (2.0, 1.5, 0.5)
    # A smaller batch is a shorter step.
    small = Accelerator(20, step_s=0.5).train(
        loader(clock, (1, 20), (1, 10)), epoch=0, clock=clock, sleep=clock.sleep
    )
    assert (small.busy_s, small.stall_s) == (0.75, 2.0)
    assert figures.first_batch_s == 0.5
    assert (figures.busy_share, figures.busy_share_after_first) == (0.75, 1.0)
    assert figures.samples_per_s == 15


def test_starting_the_loader_is_part_of_the_wait_for_the_first_batch() -> None:
    clock = Clock()

    class SlowToStart:
        def __iter__(self) -> Iterator[Batch]:
            clock.now_s += 2
            return loader(clock, (1, 10))

    figures = Accelerator(10).train(SlowToStart(), epoch=0, clock=clock, sleep=clock.sleep)
    assert (figures.loader_start_s, figures.first_batch_s) == (2.0, 3.0)


@pytest.mark.slow
@pytest.mark.timeout(600)  # starts PyTorch: 56 s at a load of 20, over 120 s at 50
def test_the_script_reads_every_file_once_an_epoch_and_waits_at_its_gate(tmp_path: Path) -> None:
    make_small(tmp_path / "small", 20)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, "-m", "penstock.bench.train", tmp_path / "small", "--batch", "8"]
    options = ["--step", "0.001", "--workers", "1", "--epochs", "2", "--gate", gate]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        lines = [script.stdout.readline()]
        gate.write_bytes(b"")  # waits until the script reads there, and lets it go on
        lines += script.stdout.readlines()
    assert script.returncode == 0
    figures = [json.loads(line) for line in lines]
    assert [(line["epoch"], line["samples"], line["steps"]) for line in figures] == [
        (0, 20, 3),
        (1, 20, 3),
    ]
    assert [line["size_bytes"] for line in figures] == [20 * SMALL_BYTES] * 2
