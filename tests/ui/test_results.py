"""The benchmark runs that the page lists, and the files of theirs that it serves."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bench.workflow import registry
from penstock.bench.workflow.history import known_results, note_results
from penstock.ui.results import Results
from tests.support.pages import serving
from tests.support.report_samples import make_run, set_steps


def test_runs_are_known_until_their_folder_is_removed(tmp_path: Path) -> None:
    assert known_results() == []
    first, second, other = (tmp_path / name for name in ("a/first", "a/second", "b/other"))
    for folder in (first, second, other):
        folder.mkdir(parents=True)
        note_results(folder)
    note_results(first)
    assert sorted(known_results()) == [first, second, other]
    second.rmdir()
    other.rmdir()
    other.parent.rmdir()  # as a disk that is not mounted now
    assert known_results() == [first]
    note_results(first)
    second.mkdir()
    other.mkdir(parents=True)
    assert sorted(known_results()) == [first, other]


def test_each_run_has_its_state_verdict_and_measurements(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "results" / "whole", arms=("native", "rclone"), repeats=1)
    (whole / "report.html").write_text("<h1>report</h1>")
    (whole / "summary.json").write_text(json.dumps({"verdict": {"sentence": "Fast enough."}}))
    broken = make_run(tmp_path / "results" / "broken", arms=("native",), repeats=1)
    record = json.loads((broken / "workflow.json").read_text())
    record["state"] = "failed"
    record["steps"][1] |= {"state": "failed", "error": "it broke"}
    (broken / "workflow.json").write_text(json.dumps(record))
    (tmp_path / "results" / "else").mkdir()  # no run
    note_results(whole)
    runs = {run["name"]: run for run in Results([tmp_path / "results"]).runs()}
    assert sorted(runs) == ["broken", "whole"]
    assert runs["whole"] == {
        "id": runs["whole"]["id"],
        "name": "whole",
        "folder": str(whole),
        "state": "done",
        "started": "2026-01-05T12:00:00Z",
        "done": 2,
        "experiments": 2,
        "verdict": "Fast enough.",
        "problem": "",
        "has_report": True,
    }
    assert (runs["broken"]["state"], runs["broken"]["problem"]) == ("failed", "it broke")
    assert (runs["broken"]["done"], runs["broken"]["experiments"]) == (0, 1)
    assert not runs["broken"]["has_report"]
    # A folder of results may itself be named.
    assert [run["name"] for run in Results([broken]).runs()] == ["whole", "broken"]


def test_a_run_that_was_killed_is_not_shown_as_running(tmp_path: Path) -> None:
    alive, killed, elsewhere = (tmp_path / name for name in ("alive", "killed", "elsewhere"))
    for folder in (alive, killed, elsewhere):
        set_steps(make_run(folder, arms=("native",), repeats=1), "running", run="running")
    for folder in (alive, killed):
        note_results(folder)
        entry = registry.own_entry(folder.name, tmp_path / "penstock-bench-x", folder)
        registry.write(replace(entry, started="then") if folder == killed else entry)
    states = {run["name"]: run["state"] for run in Results([elsewhere]).runs()}
    # Whether a run of another machine has ended is not known.
    assert states == {"alive": "running", "killed": "interrupted", "elsewhere": "running"}
    registry.forget(registry.own_entry("alive", tmp_path, alive))
    assert {run["state"] for run in Results().runs()} == {"interrupted"}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"steps": 7}', '{"steps": [7, {}]}', "[" * 10**5]
)
def test_a_damaged_run_is_listed(content: str, tmp_path: Path) -> None:
    (tmp_path / "workflow.json").write_text(content)
    (tmp_path / "summary.json").write_text('{"verdict": []}')
    (run,) = Results([tmp_path]).runs()
    assert (run["name"], run["state"], run["verdict"]) == (tmp_path.name, "unknown", "")


def test_a_report_runs_no_script_and_files_are_shown_as_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "results" / "run", arms=("native",), repeats=1)
    set_steps(run, "done")
    (run / "report.html").write_text("<script>steal()</script> key AKIAIOSFODNN7EXAMPLE")
    with serving([run]) as page:
        place = f"runs/{page.items('runs')[0]['id']}"
        report = page.get(f"{place}/report.html")
        assert report.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = report.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")
        assert policy.endswith("sandbox allow-same-origin")
        assert "script" not in policy
        assert report.body == "<script>steal()</script> key …"
        named = next((run / "experiments").iterdir()).name
        raw = page.get(f"{place}/experiments/{named}/output/result.json")
        assert raw.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert raw.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src")
        assert json.loads(raw.body)["id"] == named


def test_no_path_leads_out_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    run = make_run(tmp_path / "results" / "run", arms=("native",), repeats=1)
    (run / "link").symlink_to(tmp_path / "secret")
    (run / "up").symlink_to(tmp_path)
    os.mkfifo(run / "fifo")
    os.truncate(run / "plan.yaml", 17 << 20)
    with serving([run]) as page:
        place = f"runs/{page.items('runs')[0]['id']}"
        assert page.get(f"{place}/workflow.json").status == 200
        for path in (
            "../../secret",
            "..%2f..%2fsecret",
            "%2e%2e/%2e%2e/secret",
            f"/{tmp_path}/secret",
            f"%2f{str(tmp_path)[1:]}/secret",
            "link",
            "up/secret",
            "fifo",
            "experiments",
            "plan.yaml",  # larger than a page may be
            "a%00b",
            "",
        ):
            assert page.get(f"{place}/{path}").status == 404, path
        assert page.get("runs/000000000000/workflow.json").status == 404
        assert page.get("runs/").status == 404
