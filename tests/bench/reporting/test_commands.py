"""`penstock bench report` and `compare`: what they print, what they refuse, how they end."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.reporting import compare as compare_runs
from penstock.bench.reporting.comparing import NO_DIFFERENCE
from penstock.cli.bench_report import compare, report
from penstock.errors import ResultsError
from tests.support.report_samples import (
    READ,
    RESNET,
    fail,
    invalidate,
    make_run,
    write_around,
    write_json,
)

ARMS = ("native", "penstock-warm", "rclone")


def ends(command: Any, *arguments: object) -> int:
    """Its exit code, as `penstock` would end; what is refused must come with a hint."""
    try:
        return command.main([str(one) for one in arguments], standalone_mode=False) or 0
    except ResultsError as error:
        return error.exit_code if error.hint else -1


def run_of(place: Path, **options: Any) -> Path:
    return make_run(place, raw=False, **{"arms": ARMS} | options)


def test_a_report_is_written_into_the_run_and_its_paths_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path / "run")
    assert ends(report, run) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(run / n) for n in ("report.html", "report.md", "summary.json")]
    assert all(Path(line).stat().st_mode & 0o777 == 0o644 for line in out.split())
    assert err.startswith("Penstock warm reads")
    assert not list(run.glob(".report*"))


def test_a_report_elsewhere_links_back_to_the_raw_files(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a" / "run")
    assert ends(report, run, "-o", tmp_path / "one.html", "-o", tmp_path / "two.md") == 0
    assert 'href="./a/run/experiments/' in (tmp_path / "one.html").read_text()
    assert not (run / "report.html").exists()
    assert (tmp_path / "two.md").read_text().startswith("**Penstock warm reads")


def test_the_price_of_gets_is_an_option(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    assert ends(report, run, "--get-price", "0.005") == 0
    text = (run / "report.html").read_text()
    assert "At $0.005 for 1,000 GETs (as given)" in text
    assert "$0.01" in text


@pytest.mark.parametrize("name", ["gone", "empty", "file"])
def test_a_folder_that_is_no_run_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty" / "experiments" / "notes").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    assert ends(report, tmp_path / name) == 2
    assert ends(compare, tmp_path / name, tmp_path / name) == 2


def test_a_run_without_results_has_a_report_that_shows_why_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_around(tmp_path)
    assert ends(report, tmp_path) == 2
    assert "no experiment has a result\nhint: " in capsys.readouterr().err
    assert (tmp_path / "report.html").exists()


def test_a_place_that_cannot_be_written_and_an_unknown_ending_are_mistakes(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", repeats=1)
    assert ends(report, run, "-o", tmp_path / "none" / "report.html") == 2
    assert ends(report, run, "-o", tmp_path / "report.pdf") == 2


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
    near = {"name": "far", "latency_s": 0.001, "bytes_per_s": 50e6}
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", shapes=(near,), faster=2)
    assert set(said(a, b).values()) == {"not the same: latency_s 0.02 and 0.001"}
    with pytest.raises(ResultsError, match="no arm in a common setting"):
        compare_runs(a, run_of(tmp_path / "e", arms=("s3fs",)))

    def longer(one: dict[str, Any]) -> None:
        one["epochs"].append(one["epochs"][-1] | {"epoch": 2})
        one["workload"]["readers"] = 8
        one["accelerator_runs"] = one["accelerator_runs"][:2]

    a = run_of(tmp_path / "c", workloads=(RESNET,))
    b = run_of(tmp_path / "d", workloads=(RESNET,), change=longer)
    assert set(said(a, b).values()) == {
        "not the same: readers None and 8, epochs 2 and 3, counts of accelerators "
        "1, 2, 4, 8, 16, 32, 64 and 1, 2"
    }


def test_another_data_set_or_machine_is_refused_unless_anyway_and_then_said_loudly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", faster=2)
    dataset = json.loads((b / "dataset.json").read_text())
    write_json(b / "dataset.json", dataset | {"sha256": "ab" * 32})
    with pytest.raises(ResultsError, match=r"cannot be compared: data sets differ \(sha256 5e"):
        compare_runs(a, b)
    assert ends(compare, a, b) == 2
    assert ends(compare, a, b, "--anyway") == 0
    out, err = capsys.readouterr()
    assert out.startswith("NOT LIKE WITH LIKE: data sets differ")
    assert err.startswith("WARNING: not like with like: data sets differ")
    assert ends(compare, a, b, "--anyway", "-o", "md") == 0
    assert "> **Not like with like:** data sets differ" in capsys.readouterr().out
    write_json(b / "dataset.json", dataset)
    environment = json.loads((b / "environment.json").read_text())
    write_json(b / "environment.json", environment | {"cores": 64})
    with pytest.raises(ResultsError, match=r"machines differ \(cores 2 and 64\)"):
        compare_runs(a, b)
    (b / "environment.json").unlink()
    with pytest.raises(ResultsError, match="machine of B unknown"):
        compare_runs(a, b)


def test_a_comparison_is_a_table_markdown_or_json_with_the_test_and_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = run_of(tmp_path / "a", workloads=(READ, RESNET))
    b = run_of(tmp_path / "b", workloads=(READ, RESNET), faster=2)
    environment = json.loads((b / "environment.json").read_text())
    write_json(b / "environment.json", environment | {"penstock": "0.2.0"})
    assert ends(compare, a, b, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["test"].startswith("Welch's t test")
    assert found["warnings"] == []
    assert found["changes"] == ["penstock: 0.1.0 in A, 0.2.0 in B"]
    assert len(found["rows"]) == 6
    assert ends(compare, a, b) == 0
    out = capsys.readouterr().out
    assert "Welch's t test" in out
    assert "penstock: 0.1.0 in A, 0.2.0 in B" in out
    assert ends(compare, a, b, "-o", "md") == 0
    assert "| Penstock warm | read · far |" in capsys.readouterr().out
