"""The page: whole in itself, nothing unescaped, each picture drawn from the table behind it."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.reporting import summarize, write
from penstock.bench.reporting.charts import speed
from penstock.bench.reporting.charts.figure import Figure, Missing
from penstock.bench.reporting.charts.overtime import POINTS, points_of
from penstock.bench.reporting.page import CHARTS, page
from penstock.bench.reporting.raw import Series
from penstock.bench.reporting.summary import Summary, summary_of
from tests.support.report_samples import (
    FAR,
    NEAR,
    READ,
    RESNET,
    fail,
    hostile,
    interrupted,
    make_run,
    some_bad,
    write_around,
)

VOID = {"meta", "br", "hr"}


class Looked(HTMLParser):
    """Tags, attributes and text of a page; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data


@pytest.mark.parametrize("change", [hostile, some_bad], ids=["hostile names", "bad runs"])
def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing_of_its_data(
    tmp_path: Path, change: Any
) -> None:
    run = make_run(tmp_path / "run", workloads=(READ, RESNET), repeats=1, change=change)
    text = page(summary_of(run))
    found = Looked(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert found.tags["script"] == 1
    assert any(name == "href" for name, _ in found.attributes)
    for name, value in found.attributes:
        assert not name.startswith("on"), name
        assert name not in ("src", "srcset", "action", "xlink:href")
        if name == "href":
            assert value.startswith(("#", "./experiments/")), value
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "\x00" not in text
    assert "\u202e" not in text


def test_names_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", arms=("penstock-warm", "rclone"), repeats=1, change=hostile)
    html, markdown, _ = write(run)
    shown = Looked(html.read_text()).text
    assert "Penstock warm <script>alert(1)</script> \"数据集\" & 'x'" in shown
    text = markdown.read_text()
    assert "<script" not in text.replace("\\<script", "")
    assert "\\[a\\](http" in text
    (table,) = re.findall(r"^\| read through.*?\n\n", text, flags=re.DOTALL | re.MULTILINE)
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
    assert columns == {3}


def figure_of(chart: Any, summary: Summary) -> Figure:
    found = chart.draw(summary)
    assert isinstance(found, Figure)
    return found


@pytest.mark.parametrize("intervals", [4, POINTS, POINTS + 1, 100])
def test_throughput_over_time_adds_up_to_all_bytes(intervals: int) -> None:
    sizes = tuple(float(number) for number in range(1, intervals + 1))
    points = points_of(Series("series.json", 0.5, sizes, (0.0,)))
    assert len(points) <= POINTS
    ends_s = [*(second for second, _ in points[1:]), intervals * 0.5]
    spans = zip(points, ends_s, strict=True)
    assert sum(rate * (end_s - second) for (second, rate), end_s in spans) == sum(sizes)


def test_every_figure_names_its_raw_files_and_they_exist(full: Summary) -> None:
    for chart in CHARTS:
        found = figure_of(chart, full)
        assert found.sources
        assert all((full.run.folder / path).is_file() for path in found.sources)
        assert len(found.table.rows) >= len(found.panels)


def test_what_is_invalid_is_in_no_figure_and_shown_with_its_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", workloads=(READ, RESNET), change=some_bad)
    summary = summary_of(run)
    for chart in CHARTS:
        found = figure_of(chart, summary)
        pictures = "".join(one.picture for one in found.panels)
        cells = {row[1] for row in found.table.rows}
        assert "JuiceFS" not in pictures
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


def test_charts_without_data_are_left_out_with_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", arms=("penstock-warm", "rclone"), repeats=1, raw=False)
    summary = summary_of(run)
    missing = [one for chart in CHARTS if isinstance(one := chart.draw(summary), Missing)]
    assert len(missing) == 4
    text = Looked(page(summary)).text
    for one in missing:
        assert f"{one.title}: left out, {one.why}." in text
    assert "one repeat: no intervals" in text


def test_hinted_emulated_and_no_mlperf_are_said(full: Summary) -> None:
    text = Looked(page(full)).text
    assert "Penstock planned, hinted" in text
    assert not re.search(
        r"Penstock planned(?!, hinted| \(hinted\))", text.replace("penstock-planned", "")
    )
    assert not re.search(r"(?<!emulated )H100", text)
    assert "Nothing here is an MLPerf result" in text


def test_a_run_that_was_interrupted_or_has_no_valid_result_has_a_page(tmp_path: Path) -> None:
    text = Looked(page(summary_of(interrupted(tmp_path / "run")))).text
    assert "did not end: 4 of 6 experiments have a result" in text
    assert "Without a result: native-resnet50" in text
    bare = tmp_path / "bare"
    (bare / "experiments" / "one" / "output").mkdir(parents=True)
    write_around(bare)
    text = Looked(write(bare)[0].read_text()).text
    assert "Nothing can be said of this run: no experiment has a result yet." in text
    failed = make_run(tmp_path / "failed", repeats=1, change=lambda one: fail(one, "no space left"))
    text = Looked(page(summary_of(failed))).text
    assert "Speed: left out, no experiment was valid." in text
    assert "failed: no space left" in text


def test_files_that_cannot_be_read_are_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", arms=("penstock-warm", "rclone"), repeats=2)
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
    text = Looked(page(summary)).text
    assert "schema 9, not 1" in text
    assert "no epoch was measured" in text


def test_the_summary_says_all_in_json(full_run: Path, full: Summary) -> None:
    summarize(full_run)
    document = json.loads((full_run / "summary.json").read_text())
    assert document["verdict"]["sentence"] == full.verdict.sentence
    assert len(document["rows"]) == 32
    row = document["rows"][0]
    assert row["bytes_per_s"]["low"] < row["bytes_per_s"]["mean"] < row["bytes_per_s"]["high"]
    assert document["price_of_1000_gets"]["dollars"] == 0.0004


def test_the_cost_of_ninety_epochs_is_the_first_and_the_last_one_repeated(tmp_path: Path) -> None:
    arms = ("penstock-cold", "penstock-warm", "rclone")
    run = make_run(tmp_path / "a", arms=arms, shapes=(NEAR,))
    gets = {row.arm.name: row.training_gets for row in summary_of(run).rows}
    assert gets == {"penstock-warm": 0, "penstock-cold": 2000, "rclone": 90 * 2000}

    def once(one: dict[str, Any]) -> None:
        del one["epochs"][1:]

    run = make_run(tmp_path / "b", arms=arms, shapes=(FAR,), change=once)
    gets = {row.arm.name: row.training_gets for row in summary_of(run).rows}
    assert gets == {"penstock-warm": 0, "penstock-cold": None, "rclone": None}


def test_a_report_made_by_the_workflow_itself_does_not_say_that_it_did_not_end(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", arms=("penstock-warm", "rclone"), state="running", raw=False)
    workflow = json.loads((run / "workflow.json").read_text())
    for step in workflow["steps"][-3:]:
        step.update(state="running" if step["name"] == "report" else "waiting", ended=None)
    skipped = {"name": "s3fs-read-far-r0-abcd", "needs": ["upload-dataset"], "state": "skipped",
               "error": "s3fs is not installed", "attempts": 0}  # fmt: skip
    workflow["steps"].append(skipped)
    (run / "workflow.json").write_text(json.dumps(workflow))
    summary = summary_of(run)
    assert summary.run.ended
    assert "Not run, s3fs is not installed: s3fs-read-far-r0-abcd" in Looked(page(summary)).text
    (run / "workflow.json").write_text(json.dumps(workflow | {"state": "interrupted"}))
    assert not summary_of(run).run.ended


def test_one_that_failed_before_it_knew_its_workload_stays_in_its_setting(tmp_path: Path) -> None:
    def early(one: dict[str, Any]) -> None:
        if one["arm"]["name"] == "rclone":
            fail(one, "no such program")
            one["workload"] = {"name": "resnet50", "kind": "emulated"}

    run = make_run(tmp_path / "run", arms=("rclone", "penstock-warm"), workloads=(RESNET,),
                   change=early, raw=False)  # fmt: skip
    summary = summary_of(run)
    (setting,) = summary.settings
    assert setting.workload.accelerator == "h100"
    assert [row.counted for row in summary.rows] == [True, False]


def test_a_real_job_is_shown_by_its_samples_a_second(tmp_path: Path) -> None:
    job = READ | {"name": "train", "kind": "job"}

    def trained(one: dict[str, Any]) -> None:
        for epoch in one["epochs"]:
            epoch.update(bytes=0, busy_share=0.9, first_batch_s=None)

    run = make_run(tmp_path / "run", arms=("penstock-warm", "rclone"), workloads=(job,),
                   change=trained, raw=False)  # fmt: skip
    summary = summary_of(run)
    assert summary.verdict.sentence.startswith("Penstock warm trains 1")
    (one,) = figure_of(speed, summary).panels
    figures = re.findall(r'class="figure"[^>]*>([^<]*)<', one.picture)
    assert len(figures) == 2
    assert all(figure.endswith(" samples/s") for figure in figures)
    assert "samples/s, 90.0% busy" in Looked(page(summary)).text


def test_workloads_of_one_name_that_are_not_the_same_are_kept_apart(tmp_path: Path) -> None:
    other = RESNET | {"name": "read"}
    run = make_run(tmp_path / "run", arms=("penstock-warm", "rclone"), workloads=(READ, other))
    summary = summary_of(run)
    assert [setting.workload.kind for setting in summary.settings] == ["emulated", "read"]
    assert all(len(row.results) == 3 for row in summary.rows)
