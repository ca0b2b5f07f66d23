"""The emulated accelerator, by a clock of our own; and the training script over plain files."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from penstock.bench.accelerator import Accelerator, Batch, scaled
from penstock.bench.dataset import SMALL_BYTES, make_small


class Clock:
    """Time passes only by steps and by what the loader takes."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


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


def test_every_wait_is_a_stall_and_a_smaller_batch_a_shorter_step() -> None:
    clock = Clock()
    batches = loader(clock, (1, 10), (1, 10), (1, 5))
    figures = Accelerator(10, step_s=1).train(batches, epoch=0, clock=clock, sleep=clock.sleep)
    assert (figures.busy_s, figures.stall_s, figures.seconds) == (2.5, 3.0, 5.5)


def test_a_scale_keeps_the_step_and_makes_the_batch_smaller() -> None:
    assert scaled(1) == Accelerator(400, 0.224)
    assert scaled(0.25) == Accelerator(100, 0.224)
    assert round(scaled(1).samples_per_s) == 1786


def train(root: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.bench.train", str(root), "--step", "0.001"]
    return subprocess.Popen(
        [*command, "--batch", "8", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_script_reads_every_file_once_an_epoch(tmp_path: Path) -> None:
    make_small(tmp_path / "small", 20)
    with train(tmp_path / "small", "--workers", "2", "--epochs", "2") as script:
        output, talk = script.communicate(timeout=60)
    assert script.returncode == 0, talk
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["epoch"], line["samples"], line["steps"]) for line in lines] == [
        (0, 20, 3),
        (1, 20, 3),
    ]
    assert all(line["size_bytes"] == 20 * SMALL_BYTES for line in lines)


def test_the_script_waits_at_its_gate_between_epochs(tmp_path: Path) -> None:
    make_small(tmp_path / "small", 8)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    lines: list[str] = []
    second = threading.Event()

    with train(tmp_path / "small", "--workers", "0", "--gate", str(gate)) as script:
        assert script.stdout is not None
        lines.append(script.stdout.readline())

        def read_second() -> None:
            assert script.stdout is not None
            lines.append(script.stdout.readline())
            second.set()

        reader = threading.Thread(target=read_second)
        reader.start()
        with gate.open("wb"):  # opens once the script reads; it goes on when this is closed
            assert not second.is_set()
        reader.join(30)
        assert script.wait(30) == 0
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]


def test_a_folder_without_files_is_a_mistake(tmp_path: Path) -> None:
    with train(tmp_path) as script:
        _, talk = script.communicate(timeout=60)
    assert script.returncode == 2
    assert "no files" in talk
