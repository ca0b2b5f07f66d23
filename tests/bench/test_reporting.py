"""The report of a run: its page, its headline, the command; nothing invalid is in a figure."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.bench.reporting import write
from penstock.bench.reporting.charts.figure import Figure
from penstock.bench.reporting.page import CHARTS, page
from penstock.bench.reporting.summary import Summary, summary_of
from penstock.cli.bench_report import report
from penstock.errors import ResultsError
from tests.support.report_samples import (
    FAR,
    NEAR,
    READ,
    RESNET,
    fail,
    hostile,
    invalidate,
    make_run,
    set_steps,
    some_bad,
    write_around,
)

BOTH = ("penstock-warm", "rclone")
JOB = READ | {"name": "train", "kind": "job"}


def parsed(page: str) -> ElementTree.Element:
    """The page without scripts and styles; fails where tags do not match."""
    bare = re.sub(r"(<(script|style)>).*?(</\2>)", r"\1\3", page, flags=re.DOTALL)
    bare = re.sub(r"<(meta|br|hr)\b([^>]*)>", r"<\1\2/>", bare)
    return ElementTree.fromstring(bare.removeprefix("<!doctype html>"))


def shown(page: str) -> str:
    return "".join(parsed(page).itertext())


def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing_of_its_data(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", workloads=(READ, RESNET), repeats=1, change=hostile)
    html, markdown, _ = write(run)
    text = html.read_text()
    elements = list(parsed(text).iter())
    tags = [element.tag for element in elements]
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(tags)
    assert tags.count("script") == 1
    attributes = [pair for element in elements for pair in element.items()]
    assert any(name == "href" for name, _ in attributes)
    for name, value in attributes:
        assert not name.startswith("on"), name
        assert name not in ("src", "srcset", "action", "xlink:href")
        if name == "href":
            assert value.startswith(("#", "./experiments/")), value
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "Penstock warm <script>alert(1)</script> \"数据集\" & 'x'" in shown(text)
    text = markdown.read_text()
    assert "<script" not in text.replace("\\<script", "")
    assert "\\[a\\](http" in text


def test_what_is_invalid_is_in_no_figure_and_shown_with_its_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", workloads=(READ, RESNET), change=some_bad)
    summary = summary_of(run)
    for chart in CHARTS:
        found = chart.draw(summary)
        assert isinstance(found, Figure)
        cells = {row[1] for row in found.table.rows}
        assert "JuiceFS" not in "".join(one.picture for one in found.panels)
        assert not any(name.startswith(("JuiceFS", "s3fs")) for name in cells)
        assert not any("juicefs" in path or "s3fs" in path for path in found.sources)
    text = page(summary)
    assert "<s>JuiceFS warm</s>" in text
    assert "55,000,000 bytes left the store in epoch 0" in text
    assert "<s>s3fs</s>" in text
    kept = [row for row in summary.rows if row.arm.name == "penstock-warm"]
    assert {len(row.results) for row in kept} == {2}
    document = json.loads(json.dumps(summary.to_json()))
    ids = {one["id"] for row in document["rows"] for one in row["experiments"]}
    assert not ids & {one["id"] for one in document["left_out"]}
    assert "Nothing here is an MLPerf result" in text


def test_a_run_that_was_interrupted_or_has_no_valid_result_has_a_page(tmp_path: Path) -> None:
    arms = ("native", "penstock-warm", "rclone")
    run = make_run(tmp_path / "run", arms=arms, workloads=(READ, RESNET), repeats=1)
    started, waiting = (next(run.glob(f"experiments/native-{name}*")) for name in ("res", "read"))
    (started / "output" / "result.json").unlink()
    shutil.rmtree(waiting)
    set_steps(run, "waiting", started.name, waiting.name, "report", "copy-results", "sweep")
    summary = summary_of(run)
    assert not summary.run.ended
    assert summary.verdict.sentence.endswith(", rclone mount 0.06 (one repeat: no interval).")
    text = shown(page(summary))
    assert "did not end: 4 of 6 experiments have a result" in text
    assert "Without a result: native-resnet50" in text
    failed = make_run(tmp_path / "failed", repeats=1, change=lambda one: fail(one, "no space left"))
    text = shown(page(summary_of(failed)))
    assert "Speed: left out, no experiment was valid." in text
    assert "failed: no space left" in text


def test_files_that_cannot_be_read_are_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", arms=BOTH, repeats=2)
    places = sorted((run / "experiments").iterdir())
    (places[0] / "output" / "result.json").write_text('{"schema": 1, "arm"')
    (places[1] / "output" / "series.json").write_text("[]")
    result = json.loads((places[2] / "output" / "result.json").read_text())
    (places[2] / "output" / "result.json").write_text(json.dumps(result | {"schema": 9}))
    odd = {"schema": 1, "arm": 3, "epochs": [{"seconds": "fast"}, None, {"seconds": -1}],
           "proofs": "all", "valid": True, "repeat": None, "accelerator_runs": [{}]}  # fmt: skip
    (places[3] / "output" / "result.json").write_text(json.dumps(odd))
    (run / "environment.json").write_text("\xff")
    summary = summary_of(run)
    broken, other, around = summary.run.notes
    assert broken.startswith(f"experiments/{places[0].name}/output/result.json cannot be read: ")
    assert other == f"{places[2].name}: its result has schema 9, not 1"
    assert around.startswith("environment.json cannot be read: ")
    assert "no epoch was measured" in shown(page(summary))


def test_the_cost_of_ninety_epochs_is_the_first_and_the_last_one_repeated(tmp_path: Path) -> None:
    def gets(**options: Any) -> list[float | None]:
        arms = ("penstock-warm", "penstock-cold", "rclone")
        found = {row.arm.name: row.training_gets for row in told(arms=arms, **options).rows}
        return [found[arm] for arm in arms]

    def once(one: dict[str, Any]) -> None:
        del one["epochs"][1:]

    assert gets(tmp_path=tmp_path / "a") == [0, 2000, 90 * 2000]
    assert gets(tmp_path=tmp_path / "b", change=once) == [0, None, None]


def test_a_report_made_by_the_workflow_itself_does_not_say_that_it_did_not_end(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", arms=BOTH, raw=False)
    set_steps(run, "running", "report")
    set_steps(run, "waiting", "copy-results", "sweep")
    assert summary_of(run).run.ended
    set_steps(run, "waiting", "sweep", run="interrupted")
    assert not summary_of(run).run.ended


def test_settings_are_told_apart_by_kind_and_by_nothing_that_a_failure_lacks(
    tmp_path: Path,
) -> None:
    def early(one: dict[str, Any]) -> None:
        if one["arm"]["name"] == "rclone" and one["workload"]["kind"] == "emulated":
            fail(one, "no such program")
            one["workload"] = {"name": "read", "kind": "emulated"}

    workloads = (READ, RESNET | {"name": "read"})
    summary = told(tmp_path, arms=BOTH, workloads=workloads, change=early)
    assert [setting.workload.kind for setting in summary.settings] == ["emulated", "read"]
    assert summary.settings[0].workload.accelerator == "h100"
    assert [len(row.results) for row in summary.rows] == [3, 0, 3, 3]


def told(tmp_path: Path, **options: Any) -> Summary:
    return summary_of(make_run(tmp_path / "run", raw=False, **{"spread": 0.0001} | options))


def spoil(arm: str) -> Callable[[dict[str, Any]], None]:
    def change(one: dict[str, Any]) -> None:
        if one["arm"]["name"] == arm:
            invalidate(one, "store-untouched", "12 bytes left the store")

    return change


def noisy(one: dict[str, Any]) -> None:
    for epoch in one["epochs"]:
        epoch["seconds"] = 5 + one["repeat"] + (one["arm"]["system"] == "rclone") / 4


def count_samples_only(one: dict[str, Any]) -> None:
    for epoch in one["epochs"]:
        epoch.update(bytes=0, busy_share=0.9, first_batch_s=None)


def limit_in_one_repeat(one: dict[str, Any]) -> None:
    limited = one["arm"]["name"] == "rclone" and one["repeat"] == 1
    one["accelerator_runs"] = [{"accelerators": 8, "busy_share": 0.09 if limited else 0.99}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"arms": (*BOTH, "native")},
         "Penstock warm reads 145 times as fast as rclone mount, at 0.98 of native files."),
        ({"arms": (*BOTH, "s3fs", "juicefs-warm")},
         "Penstock warm reads 34 times as fast as JuiceFS warm, 145 times as fast as rclone mount "
         "and 228 times as fast as s3fs."),
        ({"arms": ("penstock-cold", "penstock-planned", "rclone")},
         "Penstock planned (hinted) reads 24 times as fast as rclone mount."),
        ({"arms": ("penstock-cold", "juicefs-warm")},
         "Penstock cold reads at 0.93 of the speed of JuiceFS warm."),
        # A share of native that may be chance has its interval.
        ({"arms": ("penstock-warm", "native"), "spread": 0.05},
         "Penstock warm reads at 1.02 of native files (95% interval 0.93 to 1.13)."),
        ({"repeats": 1}, "Penstock warm reads 145 times as fast as rclone mount (one repeat: no "
         "interval)."),
        ({"change": noisy}, "Penstock warm reads neither faster nor slower than rclone mount, as "
         "far as the repeats can show."),
        ({"workloads": (JOB,), "change": count_samples_only},
         "Penstock warm trains 145 times as fast as rclone mount."),
        ({"workloads": (RESNET,), "change": limit_in_one_repeat, "repeats": 2},
         "Penstock warm feeds 2 or more emulated H100 at 90% or more busy, rclone mount 1.1."),
        ({"change": spoil("penstock-warm")},
         "No valid run of Penstock: nothing is said of it here (3 left out, of which the first "
         "invalid: store-untouched: 12 bytes left the store)."),
        ({"arms": (*BOTH, "juicefs-warm", "penstock-cold"), "change": spoil("juicefs-warm")},
         "Penstock warm reads 145 times as fast as rclone mount."),
    ],
)  # fmt: skip
def test_a_verdict_says_what_the_runs_show(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    assert told(tmp_path, **{"arms": BOTH} | options).verdict.sentence == expected


def test_the_headline_is_of_what_trains_from_the_farthest_store(tmp_path: Path) -> None:
    verdict = told(
        tmp_path, arms=BOTH, workloads=(READ, RESNET), shapes=(NEAR, FAR), repeats=2
    ).verdict
    assert verdict.sentence == (
        "Penstock warm feeds 8.6 emulated H100 at 90% or more busy, rclone mount 0.05."
    )
    assert verdict.setting is not None
    assert verdict.setting.shape.name == "far"
    assert any(note.startswith("Emulated") for note in verdict.notes)
    assert "Penstock warm reads 36 times as fast as rclone mount." in dict(verdict.others).values()


def test_where_storage_was_nobodys_limit_no_one_is_said_to_be_better(tmp_path: Path) -> None:
    def no_limit(one: dict[str, Any]) -> None:
        if one["workload"]["kind"] == "emulated":
            runs = [{"accelerators": count, "busy_share": 0.99} for count in (1, 8)]
            one["accelerator_runs"] = runs

    verdict = told(tmp_path, arms=BOTH, workloads=(READ, RESNET), change=no_limit).verdict
    assert verdict.sentence == "Penstock warm reads 145 times as fast as rclone mount."
    assert verdict.others[0][1] == (
        "Penstock warm and rclone mount feed all that was tried (2 emulated H100): storage was "
        "not the limit."
    )


def test_a_failed_proof_counts_more_than_the_word_valid(tmp_path: Path) -> None:
    def lie(one: dict[str, Any]) -> None:
        one["proofs"][0]["ok"] = False

    assert told(tmp_path, arms=BOTH).run.counted != []
    assert told(tmp_path / "b", arms=BOTH, change=lie).run.counted == []


def ends(*arguments: object) -> int:
    """The exit code of `penstock bench report`; what is refused must come with a hint."""
    try:
        return report.main([str(one) for one in arguments], standalone_mode=False) or 0
    except ResultsError as error:
        return error.exit_code if error.hint else -1


def test_a_report_is_written_into_the_run_or_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a" / "run", arms=BOTH, raw=False)
    options = ("--get-price", "0.005", "-o", tmp_path / "one.html", "-o", tmp_path / "two.md")
    assert ends(run, *options) == 0
    text = (tmp_path / "one.html").read_text()
    assert 'href="./a/run/experiments/' in text
    assert "At $0.005 for 1,000 GETs (as given)" in text
    assert (tmp_path / "two.md").read_text().startswith("**Penstock warm reads")
    assert not (run / "report.html").exists()
    capsys.readouterr()
    assert ends(run) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(run / n) for n in ("report.html", "report.md", "summary.json")]
    assert all(Path(line).stat().st_mode & 0o777 == 0o644 for line in out.split())
    assert err.startswith("Penstock warm reads")
    assert not list(run.glob(".report*"))
    # A folder that is not there, and an ending that nobody knows.
    assert ends(run, "-o", tmp_path / "none" / "report.html") == 2
    assert ends(run, "-o", tmp_path / "report.pdf") == 2


def test_a_folder_that_is_no_run_or_has_no_results_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty" / "experiments" / "notes").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    assert [ends(tmp_path / name) for name in ("gone", "empty", "file")] == [2, 2, 2]
    write_around(tmp_path)
    assert ends(tmp_path) == 2
    assert "no experiment has a result\nhint: " in capsys.readouterr().err
    assert (tmp_path / "report.html").exists()  # it shows why
