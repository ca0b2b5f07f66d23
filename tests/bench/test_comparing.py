"""The statistics give what tables of Student's t give; `penstock bench compare` claims no more."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.reporting import compare as compare_runs
from penstock.bench.reporting.comparing import NO_DIFFERENCE
from penstock.bench.reporting.fed import Fed, fed
from penstock.bench.reporting.intervals import estimate, holm, ratio, t_quantile, welch
from penstock.bench.reporting.results import Arm, Epoch, Result, Shape, Workload
from penstock.cli.bench_report import compare
from penstock.errors import ResultsError
from tests.support.report_samples import RESNET, fail, invalidate, make_run, write_json


def test_an_interval_is_the_mean_and_t_standard_errors_about_it() -> None:
    quantiles = [t_quantile(0.975, freedom) for freedom in (1, 4, 30)]
    assert quantiles == pytest.approx([12.7062, 2.77645, 2.04227], abs=1e-4)
    found = estimate([10.0, 12.0, 14.0])
    assert found is not None
    assert found.mean == 12
    assert found.high == pytest.approx(12 + 4.30265 * 2 / math.sqrt(3), abs=1e-3)
    assert found.low == pytest.approx(12 - 4.30265 * 2 / math.sqrt(3), abs=1e-3)


def test_one_repeat_has_no_interval_and_none_has_no_mean() -> None:
    found = estimate([7.0])
    assert found is not None
    assert (found.mean, found.low, found.high) == (7, None, None)
    assert estimate([]) is None
    single = ratio([10.0], [5.0, 5.0])
    assert single is not None
    assert (single.mean, single.low) == (pytest.approx(2), None)
    assert welch([10.0], [5.0, 6.0]) is None
    # Zero speeds are not compared, and equal ones differ by nothing.
    assert welch([0.0, 1.0], [6.0, 6.0]) is None
    assert ratio([0.0], [1.0]) is None
    assert welch([5.0, 5.0], [5.0, 5.0]) == 1
    assert welch([5.0, 5.0], [6.0, 6.0]) == pytest.approx(0, abs=1e-12)


def test_welch_gives_the_chance_and_the_interval_of_a_worked_example() -> None:
    # Logarithms 1, 2, 3 and 2, 4, 6: means 2 and 4, errors 1/3 and 4/3, 2.94 degrees of freedom.
    left, right = [math.exp(x) for x in (1, 2, 3)], [math.exp(x) for x in (2, 4, 6)]
    chance = welch(left, right)
    assert chance == pytest.approx(0.2208, abs=5e-4)
    assert welch(right, left) == pytest.approx(chance)
    found = ratio(right, left)
    assert found is not None
    ends = [math.log(end or 0.0) for end in (found.low, found.high)]
    half = 3.21876 * math.sqrt(5 / 3)
    assert [math.log(found.mean), *ends] == pytest.approx([2, 2 - half, 2 + half], abs=1e-3)


def test_asking_often_is_corrected_for() -> None:
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])


def result_of(*points: tuple[int, float], scale: float = 1.0, busy: float | None = None) -> Result:
    workload = Workload("w", "emulated", accelerator="h100", accelerators=2, scale=scale)
    epochs = (Epoch(0, 10.0, 100, 1000, busy_share=busy),)
    return Result("i", "f", Arm("a", "A", "rclone"), workload, Shape("s"), epochs=epochs,
                  accelerator_runs=points)  # fmt: skip


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (result_of((1, 0.36)), Fed(0.4)),
        (result_of((1, 0.99), (2, 0.98), (4, 0.97)), Fed(4.0, at_least=True)),
        (result_of((1, 0.99), (4, 0.95), (8, 0.2)), Fed(4.0)),
        (result_of((1, 0.99), (4, 0.99), (8, 0.7875), scale=0.25), Fed(1.75)),
        (result_of(busy=0.45), Fed(1.0)),
    ],
)
def test_accelerators_fed_are_those_kept_busy_nine_tenths_of_the_time(
    result: Result, expected: Fed
) -> None:
    found = fed(result)
    assert found is not None
    assert found.count == pytest.approx(expected.count)
    assert found.at_least == expected.at_least
    assert fed(result_of()) is None


def run_of(place: Path, **options: Any) -> Path:
    arms = ("native", "penstock-warm", "rclone")
    return make_run(place, raw=False, **{"arms": arms} | options)


def said(a: Path, b: Path, **options: Any) -> dict[str, str]:
    return {row.arm: row.said for row in compare_runs(a, b, **options).rows}


def test_what_the_repeats_show_is_faster_or_slower_and_the_rest_is_not_claimed(
    tmp_path: Path,
) -> None:
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", faster=1.5, seed=2)
    again = run_of(tmp_path / "c", spread=0.2, seed=3)
    assert set(said(a, b).values()) == {"faster"}
    assert set(said(b, a).values()) == {"slower"}
    assert set(said(a, again).values()) == {NO_DIFFERENCE}
    row = compare_runs(a, b).rows[1]
    assert (row.arm, row.unit, row.a_repeats) == ("Penstock warm", "MB/s", 3)
    assert row.low is not None
    assert row.high is not None
    assert row.low < 1.5 < row.high


def test_what_cannot_be_told_says_why(tmp_path: Path) -> None:
    def spoil(one: dict[str, Any]) -> None:
        if one["arm"]["name"] == "rclone":
            fail(one, "hung")
        if one["arm"]["name"] == "native" and one["repeat"]:
            invalidate(one, "quiet", "another process read")

    found = said(run_of(tmp_path / "a"), run_of(tmp_path / "b", change=spoil, faster=2))
    assert found == {
        "native files": "cannot be told from one repeat",
        "Penstock warm": "faster",
        "rclone mount": "cannot be told: no valid run in B",
    }


def test_rows_that_ask_something_else_are_not_compared(tmp_path: Path) -> None:
    def longer(one: dict[str, Any]) -> None:
        one["epochs"].append(one["epochs"][-1] | {"epoch": 2})
        one["workload"]["readers"] = 8
        one["accelerator_runs"] = one["accelerator_runs"][:2]

    near = {"name": "far", "latency_s": 0.001, "bytes_per_s": 50e6}
    a = run_of(tmp_path / "c", workloads=(RESNET,))
    b = run_of(tmp_path / "d", workloads=(RESNET,), shapes=(near,), change=longer)
    assert set(said(a, b).values()) == {
        "not the same: latency_s 0.02 and 0.001, readers None and 8, epochs 2 and 3, counts of "
        "accelerators 1, 2, 4, 8, 16, 32, 64 and 1, 2"
    }
    with pytest.raises(ResultsError, match="no arm in a common setting"):
        compare_runs(a, run_of(tmp_path / "e", arms=("s3fs",)))


def test_another_data_set_or_machine_is_refused_unless_anyway_and_then_said_loudly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def prints(*options: str) -> tuple[str, str]:
        arguments = [str(a), str(b), *options]
        assert compare.main(arguments, standalone_mode=False) in (0, None)
        return tuple(capsys.readouterr())

    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", faster=2)
    dataset = json.loads((b / "dataset.json").read_text())
    write_json(b / "dataset.json", dataset | {"sha256": "ab" * 32})
    with pytest.raises(ResultsError, match=r"cannot be compared: data sets differ \(sha256 5e"):
        compare_runs(a, b)
    out, err = prints("--anyway")
    assert out.startswith("NOT LIKE WITH LIKE: data sets differ")
    assert err.startswith("WARNING: not like with like: data sets differ")
    assert "> **Not like with like:** data sets differ" in prints("--anyway", "-o", "md")[0]
    write_json(b / "dataset.json", dataset)
    environment = json.loads((b / "environment.json").read_text())
    write_json(b / "environment.json", environment | {"penstock": "0.2.0"})
    found = json.loads(prints("-o", "json")[0])
    assert found["warnings"] == []
    assert found["changes"] == ["penstock: 0.1.0 in A, 0.2.0 in B"]
    assert len(found["rows"]) == 3
    write_json(b / "environment.json", environment | {"cores": 64})
    with pytest.raises(ResultsError, match=r"machines differ \(cores 2 and 64\)"):
        compare_runs(a, b)
    (b / "environment.json").unlink()
    with pytest.raises(ResultsError, match="machine of B unknown"):
        compare_runs(a, b)
