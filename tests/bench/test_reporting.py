"""The report of a run: its page, its headline, the command; nothing invalid is in a figure. The
statistics give what tables of Student's t give, and `penstock bench compare` claims no more."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.bench.reporting import compare as compare_runs
from penstock.bench.reporting import write
from penstock.bench.reporting.charts import CHARTS, Chart
from penstock.bench.reporting.comparing import NO_DIFFERENCE
from penstock.bench.reporting.drawing import Bar, Look, Part, draw_bars
from penstock.bench.reporting.estimates import estimate, holm, ratio, t_quantile, welch
from penstock.bench.reporting.page import page
from penstock.bench.reporting.results import Arm, Epoch, Result, Shape, Workload
from penstock.bench.reporting.rows import Fed, fed
from penstock.bench.reporting.summary import Summary, summary_of
from penstock.errors import ResultsError
from tests.support import report_samples as samples
from tests.support.mounts import penstock
from tests.support.report_samples import (
    FAR,
    NEAR,
    READ,
    RESNET,
    fail,
    invalidate,
    make_run,
    set_busy,
)

BOTH = ("penstock-warm", "rclone")


def parsed(page: str) -> ElementTree.Element:
    """The page without scripts and styles; fails where tags do not match."""
    bare = re.sub(r"(<(script|style)>).*?(</\2>)", r"\1\3", page, flags=re.DOTALL)
    bare = re.sub(r"<(meta|br|hr)\b([^>]*)>", r"<\1\2/>", bare)
    return ElementTree.fromstring(bare.removeprefix("<!doctype html>"))


def shown(page: str) -> str:
    return "".join(parsed(page).itertext())


def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing_of_its_data(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", workloads=(READ, RESNET), repeats=1, change=samples.hostile)
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
    run = make_run(tmp_path / "run", workloads=(READ, RESNET), change=samples.some_bad)
    summary = summary_of(run)
    for draw in CHARTS:
        found = draw(summary)
        assert isinstance(found, Chart)
        cells = {row[1] for row in found.table.rows} if found.table else set()
        names = [one.picture.svg for one in found.panels] + [key.label for key in found.legend]
        shown_names = "".join(names)
        assert ("Penstock" in shown_names, "JuiceFS" in shown_names) == (True, False), draw
        assert not any(name.startswith(("JuiceFS", "s3fs")) for name in cells)
        assert not any("juicefs" in path or "s3fs" in path for path in found.sources)
    text = page(summary)
    assert "<s>JuiceFS warm</s>" in text
    assert "55,000,000 bytes left the store in epoch 0" in text
    assert "<s>s3fs</s>" in text
    kept = [row for row in summary.rows if row.arm.name == "penstock-warm"]
    assert {row.repeats for row in kept} == {2}
    lines = {cells[0] for table in summary.tables() for cells in table.rows}
    assert "Penstock warm 1.0" in lines
    assert not any(line.startswith(("JuiceFS", "s3fs")) for line in lines)
    document = json.loads(json.dumps(summary.to_json()))
    ids = {one["id"] for row in document["rows"] for one in row["experiments"]}
    assert not ids & {one["id"] for one in document["left_out"]}
    assert "Nothing here is an MLPerf result" in text
    assert all(one.sentence in shown(text) for one in summary.verdict.headline)
    # A failed proof counts more than the word valid.
    lie = {"name": "as-claimed", "ok": False, "detail": "not so"}
    assert told(tmp_path / "a", arms=BOTH).run.counted != []
    lied = told(tmp_path / "b", arms=BOTH, change=lambda one: one["proofs"].append(lie))
    assert lied.run.counted == []


def test_a_run_that_was_interrupted_or_has_no_valid_result_has_a_page(tmp_path: Path) -> None:
    arms = ("native", "penstock-warm", "rclone")
    run = make_run(tmp_path / "run", arms=arms, workloads=(READ, RESNET), repeats=1)
    samples.set_steps(run, "running", "report")  # the workflow makes the report itself
    samples.set_steps(run, "waiting", "copy-results", "sweep")
    assert summary_of(run).run.ended
    samples.set_steps(run, "waiting", "sweep", run="interrupted")
    assert not summary_of(run).run.ended
    started, waiting = (next(run.glob(f"experiments/native-{name}*")) for name in ("res", "read"))
    (started / "output" / "result.json").unlink()
    shutil.rmtree(waiting)
    samples.set_steps(run, "waiting", started.name, waiting.name, "report", "copy-results", "sweep")
    summary = summary_of(run)
    assert not summary.run.ended
    assert ", rclone mount 0.05 (one repeat: no interval)." in summary.verdict.sentence
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
    (places[0] / "output" / "result.json").write_text('{"schema": 2, "arm"')
    (places[1] / "output" / "series.json").write_text("[]")
    result = json.loads((places[2] / "output" / "result.json").read_text())
    (places[2] / "output" / "result.json").write_text(json.dumps(result | {"schema": 9}))
    odd = {
        "schema": 2,
        "arm": 3,
        "epochs": [{"seconds": "fast"}, {"seconds": -1}],
        "proofs": "all",
        "valid": True,
        "repeat": None,
    }
    (places[3] / "output" / "result.json").write_text(json.dumps(odd))
    (run / "environment.json").write_text("\xff")
    summary = summary_of(run)
    broken, other, wrong, around = summary.run.notes
    assert broken.startswith(f"experiments/{places[0].name}/output/result.json cannot be read: ")
    assert other == f"{places[2].name}: its result has schema 9, not 2"
    assert wrong.startswith(f"{places[3].name}: its result cannot be read: arm: ")
    assert around.startswith("environment.json cannot be read: ")
    assert all(note in shown(page(summary)) for note in (broken, other, wrong))


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
    rows = [
        row
        for row in summary.rows
        if row.is_first is None or (row.is_first, row.readers) == (True, 1)
    ]
    assert [row.repeats for row in rows] == [3, 0, 3, 3]


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


def no_limit(one: dict[str, Any]) -> None:
    set_busy(one["epochs"], {1: 0.99, 8: 0.99})


def limit_in_one_repeat(one: dict[str, Any]) -> None:
    limited = one["arm"]["name"] == "rclone" and one["repeat"] == 1
    set_busy(one["epochs"], {1: 0.99, 8: 0.09 if limited else 0.99})


def half_busy(one: dict[str, Any]) -> None:
    set_busy(one["epochs"], {1: 0.5})


def short(one: dict[str, Any]) -> None:
    for epoch in one["epochs"]:
        epoch["seconds"] /= 10


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # First epochs, from empty caches.
        ({"arms": ("penstock-cold", "penstock-planned", "rclone")},
         "From empty caches Penstock planned (hinted) reads 22 times as fast as rclone mount and "
         "6.1 times as fast as Penstock cold. A warm epoch through Penstock planned reads at 1,518 "
         "MB/s; that is 134 times as fast as rclone mount."),
        ({"arms": ("native", "penstock-cold", "penstock-planned", "rclone"),
          "workloads": (RESNET,), "change": half_busy, "repeats": 1},
         "In the first epoch, from empty caches, Penstock planned (hinted) keeps an emulated H100 "
         "(scale 0.25) 99.0% busy, Penstock cold 85.1%, rclone mount 21.5%, native files 99.0% "
         "(one repeat: no interval)."),
        ({"workloads": (RESNET,), "change": limit_in_one_repeat, "repeats": 2},
         "Penstock warm feeds 2 or more emulated H100 at 90% or more busy, rclone mount 1.1."),
        ({"workloads": (RESNET,), "change": no_limit},
         "Penstock warm and rclone mount feed all that was tried (2 emulated H100): storage was "
         "not the limit."),
        # Warm ones.
        ({"arms": (*BOTH, "native")},
         "A warm epoch through Penstock warm reads at 98% of the speed of native files (95% "
         "interval 98% to 98%); that is 135 times as fast as rclone mount."),
        ({"change": noisy}, "A warm epoch through Penstock warm reads at 37.4 MB/s; that is "
         "neither faster nor slower than rclone mount, as far as the repeats can show."),
        # What an interval leaves open is not named.
        ({"arms": ("penstock-warm", "native"), "spread": 0.5},
         "A warm epoch through Penstock warm reads at a share of the speed of native files that "
         "this run cannot tell (somewhere from 59% to 447%)."),
        ({"arms": ("penstock-warm", "native"), "repeats": 1},
         "A warm epoch through Penstock warm reads at 98% of the speed of native files (one "
         "measurement)."),
        ({"change": spoil("penstock-warm")},
         "No valid run of Penstock: there is no figure for it here (3 left out, of which the first "
         "invalid: store-untouched: 12 bytes left the store)."),
        ({"arms": ("penstock-warm", "rclone", "juicefs-warm"), "change": spoil("juicefs-warm")},
         "A warm epoch through Penstock warm reads at 1,532 MB/s; that is 135 times as fast as "
         "rclone mount."),
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
    assert verdict.sentence.startswith(
        "Penstock warm feeds 8.6 emulated H100 at 90% or more busy, rclone mount 0.05. A warm epoch"
    )
    assert verdict.headline[0].setting.shape.name == "far"
    assert any(note.startswith("Emulated") for note in verdict.notes)
    others = [one.sentence for one in verdict.others]
    assert any(one.startswith("Penstock warm feeds 8.6") for one in others)


def test_epochs_that_are_too_short_to_be_timed_are_named(tmp_path: Path) -> None:
    assert told(tmp_path / "a", arms=BOTH, shapes=(NEAR,)).verdict.warnings == ()
    run = told(tmp_path / "b", arms=BOTH, shapes=(NEAR,), change=short)
    (warning,) = run.verdict.warnings
    assert warning.startswith("read: an epoch took 14.4 ms, too short to be timed well; a larger")
    assert warning in shown(page(run))


def test_a_picture_is_the_same_each_time_and_takes_the_colours_of_its_page() -> None:
    bars = [Bar("<b> $x$ 数", "1 & 2", (Part(1.0, Look("#0072b2")),), 0.5, 2.0)]
    once, again = (draw_bars(bars, label='"a"', mark=(0.9, "90%")) for _ in range(2))
    assert once == again
    inline = once.inline()
    assert ElementTree.fromstring(inline).get("aria-label") == '"a"'
    assert "&lt;b&gt; $x$ 数" in inline
    assert "currentColor" in inline
    assert "currentColor" not in once.standalone()
    assert ElementTree.fromstring(once.standalone()).get("width") == "420pt"


def report(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """What `penstock bench report` prints; what is refused must come with a hint."""
    result = penstock("bench", "report", *arguments)
    assert result.returncode == code, result.stderr
    assert code == 0 or "\nhint: " in result.stderr
    return result.stdout, result.stderr


def test_a_report_is_written_into_the_run_or_elsewhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a" / "run", arms=BOTH, raw=False)
    report(run, "-o", tmp_path / "one.html", "-o", tmp_path / "two.md")
    text = (tmp_path / "one.html").read_text()
    assert 'href="./a/run/experiments/' in text
    assert (tmp_path / "two.md").read_text().startswith("**A warm epoch through")
    assert not (run / "report.html").exists()
    out, err = report(run)
    assert out.split() == [str(run / n) for n in ("report.html", "report.md", "summary.json")]
    assert all(Path(line).stat().st_mode & 0o777 == 0o644 for line in out.split())
    assert err.startswith("A warm epoch through")
    assert not list(run.glob(".report*"))
    # A folder that is not there, and an ending that nobody knows.
    report(run, "-o", tmp_path / "none" / "report.html", code=2)
    report(run, "-o", tmp_path / "report.pdf", code=2)


def test_a_folder_that_is_no_run_or_has_no_results_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty" / "experiments" / "notes").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name in ("gone", "empty", "file"):
        report(tmp_path / name, code=2)
    samples.write_around(tmp_path)
    assert "no experiment has a result\nhint: " in report(tmp_path, code=2)[1]
    assert (tmp_path / "report.html").exists()  # it shows why


def test_an_interval_is_the_mean_and_t_standard_errors_about_it() -> None:
    quantiles = [t_quantile(freedom) for freedom in (1, 4, 30)]
    assert quantiles == pytest.approx([12.7062, 2.77645, 2.04227], abs=1e-4)
    found = estimate([10.0, 12.0, 14.0])
    assert found.mean == 12
    assert found.high == pytest.approx(12 + 4.30265 * 2 / math.sqrt(3), abs=1e-3)
    assert found.low == pytest.approx(12 - 4.30265 * 2 / math.sqrt(3), abs=1e-3)
    # One repeat has no interval, and none has no mean.
    found = estimate([7.0])
    assert (found.mean, found.low, found.high) == (7, None, None)
    assert estimate([]) is None
    single = ratio([10.0], [5.0, 5.0])
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
    ends = [math.log(end or 0.0) for end in (found.low, found.high)]
    half = 3.21876 * math.sqrt(5 / 3)
    assert [math.log(found.mean), *ends] == pytest.approx([2, 2 - half, 2 + half], abs=1e-3)
    # Asking often is corrected for.
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])


def result_of(*points: tuple[int, float], scale: float = 1.0) -> Result:
    workload = Workload(name="w", kind="emulated", accelerator="h100", scale=scale)
    epochs = tuple(
        Epoch(seconds=10.0, samples=100, size_bytes=1000, busy_share=share, readers=count, number=0)
        for count, share in points
    )
    return Result(
        id="i",
        folder="f",
        arm=Arm(name="a", title="A", system="rclone"),
        workload=workload,
        shape=Shape(name="s"),
        epochs=epochs,
    )


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (result_of((1, 0.36)), Fed(0.4)),
        (result_of((1, 0.99), (2, 0.98), (4, 0.97)), Fed(4.0, at_least=True)),
        (result_of((1, 0.99), (4, 0.95), (8, 0.2)), Fed(4.0)),
        (result_of((1, 0.99), (4, 0.99), (8, 0.7875), scale=0.25), Fed(1.75)),
        (result_of((2, 0.45)), Fed(1.0)),
    ],
)
def test_accelerators_fed_are_those_kept_busy_nine_tenths_of_the_time(
    result: Result, expected: Fed
) -> None:
    found = fed(result)
    assert found.count == pytest.approx(expected.count)
    assert found.at_least == expected.at_least
    assert fed(result_of()) is None


def run_of(place: Path, **options: Any) -> Path:
    arms = ("native", "penstock-warm", "rclone")
    return make_run(place, raw=False, **{"arms": arms} | options)


def said(a: Path, b: Path, **options: Any) -> dict[str, str]:
    return {row.arm: row.finding for row in compare_runs(a, b, **options).rows}


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
    assert row.low < 1.5 < row.high


def test_what_cannot_be_told_says_why(tmp_path: Path) -> None:
    def spoil(one: dict[str, Any]) -> None:
        if one["arm"]["name"] == "rclone":
            fail(one, "hung")
        if one["arm"]["name"] == "native" and one["repeat"]:
            invalidate(one, "quiet", "another process read")

    found = said(run_of(tmp_path / "a"), run_of(tmp_path / "b", change=spoil, faster=2))
    assert found == {
        "native files": "unknown: one repeat shows no difference",
        "Penstock warm": "faster",
        "rclone mount": "unknown: no valid run in B",
    }


def test_rows_that_ask_something_else_are_not_compared(tmp_path: Path) -> None:
    def longer(one: dict[str, Any]) -> None:
        one["epochs"].append(one["epochs"][1] | {"epoch": 2})
        one["workload"]["readers"] = 8

    near = {"name": "far", "latency_s": 0.001, "bytes_per_s": 50e6}
    a = run_of(tmp_path / "c", workloads=(RESNET,))
    b = run_of(tmp_path / "d", workloads=(RESNET,), shapes=(near,), change=longer)
    unlike = "not the same: latency_s 0.02 and 0.001, readers None and 8"
    found = {(row.finding, row.readers > 1) for row in compare_runs(a, b).rows}
    # Of more accelerators one epoch is measured.
    assert found == {(f"{unlike}, epochs 2 and 3", False), (unlike, True)}
    with pytest.raises(ResultsError, match="no arm in a common setting"):
        compare_runs(a, run_of(tmp_path / "e", arms=("s3fs",)))


def test_another_data_set_or_machine_is_refused_unless_anyway_and_then_said_loudly(
    tmp_path: Path,
) -> None:
    def prints(*options: str) -> tuple[str, str]:
        result = penstock("bench", "compare", a, b, *options)
        assert result.returncode == 0, result.stderr
        return result.stdout, result.stderr

    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", faster=2)
    dataset = json.loads((b / "datasets" / "data.json").read_text())
    samples.write_json(b / "datasets" / "data.json", dataset | {"sha256": "ab" * 32})
    with pytest.raises(ResultsError, match=r"cannot be compared: data sets differ \(sha256 5e"):
        compare_runs(a, b)
    out, err = prints("--anyway")
    assert out.startswith("NOT LIKE WITH LIKE: data sets differ")
    assert err.startswith("WARNING: not like with like: data sets differ")
    assert "> **Not like with like:** data sets differ" in prints("--anyway", "-o", "md")[0]
    samples.write_json(b / "datasets" / "data.json", dataset)
    environment = json.loads((b / "environment.json").read_text())
    samples.write_json(b / "environment.json", environment | {"penstock": "0.2.0"})
    found = json.loads(prints("-o", "json")[0])
    assert found["warnings"] == []
    assert found["changes"] == ["penstock: 0.1.0 in A, 0.2.0 in B"]
    assert len(found["rows"]) == 3
    samples.write_json(b / "environment.json", environment | {"cores": 64})
    with pytest.raises(ResultsError, match=r"machines differ \(cores 2 and 64\)"):
        compare_runs(a, b)
    (b / "environment.json").unlink()
    with pytest.raises(ResultsError, match="machine of B unknown"):
        compare_runs(a, b)
