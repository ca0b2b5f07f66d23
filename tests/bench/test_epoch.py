"""The epoch benchmark, tiny: what it counts, and that nothing is left of it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.epoch import main
from tests.support.bench_ground import assert_nothing_left, short_folder

FILES = 40


def options(medium: Path, out: Path, arms: str) -> list[str]:
    return [
        *("--files", str(FILES), "--scale", "0.05", "--workers", "2", "--latency", "5ms"),
        *("--arms", arms, "--cache-medium", str(medium), "--out", str(out)),
    ]


@dataclass(frozen=True)
class Run:
    samples: list[dict[str, Any]]
    output: str

    def of(self, *ways: str) -> list[dict[str, Any]]:
        return [row for row in self.samples if row["way"] in ways]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of all ways that tests ask for."""
    out = tmp_path_factory.mktemp("out")
    with short_folder() as medium:
        command = [sys.executable, "-m", "penstock.bench.epoch"]
        done = subprocess.run(
            [*command, *options(medium, out, "native,rclone,plan,run")],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        assert_nothing_left(medium)
    assert (out / "epoch.svg").read_text().startswith("<svg")
    return Run(json.loads((out / "epoch.json").read_text())["samples"], done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(600)  # eight epochs of a DataLoader, over three file systems
def test_two_epochs_of_each_way_are_counted_at_the_store(run: Run) -> None:
    rows = {(row["way"], row["figures"]["epoch"]): row for row in run.of("native", "rclone")}
    assert [row["figures"]["samples"] for row in rows.values()] == [FILES] * 4
    assert rows["native", 0]["gets"] == rows["native", 1]["gets"] == 0
    assert rows["rclone", 0]["gets"] >= FILES
    assert rows["rclone", 0]["fetched_share"] >= 1
    assert rows["rclone", 1]["gets"] == 0
    assert "0.05 of an H100 on ResNet-50" in run.output
    assert "Not an MLPerf result" in run.output


@pytest.mark.slow
@pytest.mark.timeout(600)
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


def test_an_arm_that_there_is_not_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(options(tmp_path, tmp_path, "native,alluxio"))
    assert "'alluxio' is not one of native," in capsys.readouterr().err
