"""The epoch benchmark, tiny: what it counts, and that nothing is left of it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import measure
from penstock.bench.epoch import main
from penstock.bench.workspace import MARK

FILES = 40


@pytest.fixture
def medium() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@contextmanager
def short_folder() -> Iterator[Path]:
    # Not pytest's own folder, whose long name leaves a control socket no room: 108 bytes.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


def options(medium: Path, out: Path, arms: str) -> list[str]:
    return [
        *("--files", str(FILES), "--scale", "0.05", "--workers", "2", "--latency", "5ms"),
        *("--arms", arms, "--cache-medium", str(medium), "--out", str(out)),
    ]


def start(medium: Path, out: Path, arms: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.bench.epoch", *options(medium, out, arms)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True)
class Run:
    samples: list[dict[str, Any]]
    output: str
    picture: str

    def of(self, *ways: str) -> list[dict[str, Any]]:
        return [row for row in self.samples if row["way"] in ways]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of all ways that tests ask for, and that may run beside other tests."""
    return run_of("native,rclone,plan,run", tmp_path_factory.mktemp("out"))


def run_of(arms: str, out: Path) -> Run:
    with short_folder() as medium:
        with start(medium, out, arms) as benchmark:
            output, talk = benchmark.communicate(timeout=100)
        assert benchmark.returncode == 0, talk + output
        assert_nothing_left(medium)
    samples = json.loads((out / "epoch.json").read_text())["samples"]
    return Run(samples, output, (out / "epoch.svg").read_text())


def assert_nothing_left(medium: Path) -> None:
    assert measure.mounts_below(medium) == []
    assert measure.marked_processes(f"{MARK}={medium}/") == []
    assert os.listdir(medium) == []


def test_two_epochs_of_each_way_are_counted_at_the_store(run: Run) -> None:
    rows = {(row["way"], row["figures"]["epoch"]): row for row in run.of("native", "rclone")}
    assert all(row["figures"]["samples"] == FILES for row in rows.values())
    assert rows["native", 0]["gets"] == rows["native", 1]["gets"] == 0
    assert rows["rclone", 0]["gets"] >= FILES
    assert rows["rclone", 0]["fetched_share"] >= 1
    assert rows["rclone", 1]["gets"] == 0
    assert "0.05 of an H100 on ResNet-50" in run.output
    assert "Not an MLPerf result" in run.output
    assert run.picture.startswith("<svg")


def test_hinted_ways_hand_the_mount_a_plan_of_every_file(run: Run) -> None:
    hinted = run.of("plan", "run")
    assert len(hinted) == 4
    for row in hinted:
        assert row["told"]
        first = row["figures"]["epoch"] == 0
        # At least: a hedge is a GET too.
        assert (row["gets"] >= FILES) if first else (row["gets"] == 0)
        if first:  # the script waits at its gate, its plan still open
            assert [plan["files"] for plan in row["said"]["plans"]] == [FILES]
    assert run.output.count("hinted") >= 2


@pytest.mark.alone  # drops the pages of the whole machine
def test_a_cache_of_half_the_data_is_asked_for_what_it_kept(tmp_path: Path) -> None:
    if not measure.can_drop_pages():
        pytest.skip("dropping pages needs root")
    second = run_of("half-keep", tmp_path).of("half-keep")[1]
    assert 0 < second["hit_share"] <= 0.5
    assert second["gets"] >= FILES * (1 - second["hit_share"]) / 2


def test_an_interrupted_run_leaves_nothing(medium: Path, tmp_path: Path) -> None:
    with start(medium, tmp_path, "penstock") as benchmark:
        assert benchmark.stderr is not None
        for line in benchmark.stderr:
            if "epoch 1:" in line:
                break
        else:
            pytest.fail("it ended before its first epoch")
        benchmark.send_signal(signal.SIGTERM)
        output, talk = benchmark.communicate(timeout=60)
    assert benchmark.returncode == 130, talk
    assert output == ""
    assert "nothing is left behind" in talk
    assert_nothing_left(medium)


def test_an_arm_that_there_is_not_is_a_mistake(
    medium: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(options(medium, tmp_path, "native,alluxio"))
    assert "'alluxio' is not one of native," in capsys.readouterr().err
