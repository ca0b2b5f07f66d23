"""The sentence on top says what valid runs show, names others at their best, and no more."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.reporting.results import Arm
from penstock.bench.reporting.summary import Summary, summary_of
from tests.support.report_samples import (
    FAR,
    NEAR,
    READ,
    RESNET,
    fail,
    interrupted,
    invalidate,
    make_run,
)

BOTH = ("penstock-warm", "rclone")


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


def slow(one: dict[str, Any]) -> None:
    if one["arm"]["system"] == "penstock":
        for epoch in one["epochs"]:
            epoch["seconds"] *= 1000


def limit_in_one_repeat(one: dict[str, Any]) -> None:
    limited = one["arm"]["name"] == "rclone" and one["repeat"] == 1
    one["accelerator_runs"] = [{"accelerators": 8, "busy_share": 0.09 if limited else 0.99}]


def few_accelerators(one: dict[str, Any]) -> None:
    one["accelerator_runs"] = one["accelerator_runs"][:3]


def no_limit(one: dict[str, Any]) -> None:
    runs = [{"accelerators": count, "busy_share": 0.99} for count in (1, 8)]
    one["accelerator_runs"] = runs if one["workload"]["kind"] == "emulated" else []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"arms": (*BOTH, "native")},
         "Penstock warm reads 145 times as fast as rclone mount, at 0.98 of native files."),
        ({"arms": (*BOTH, "penstock-cold")},
         "Penstock warm reads 145 times as fast as rclone mount."),
        ({"arms": (*BOTH, "s3fs", "juicefs-warm")},
         "Penstock warm reads 34 times as fast as JuiceFS warm, 145 times as fast as rclone mount "
         "and 228 times as fast as s3fs."),
        ({"arms": ("penstock-warm", "native")}, "Penstock warm reads at 0.98 of native files."),
        ({"arms": ("penstock-warm", "penstock-cold")},
         "Penstock warm reads 37 times as fast as Penstock cold."),
        ({"arms": ("penstock-cold", "penstock-planned", "rclone")},
         "Penstock planned (hinted) reads 24 times as fast as rclone mount."),
        ({"arms": ("penstock-cold", "juicefs-warm")},
         "Penstock cold reads at 0.93 of the speed of JuiceFS warm."),
        ({"arms": ("penstock-warm",)},
         "Penstock warm reads 1,532 MB/s; no valid run is there to compare it with."),
        ({"arms": ("rclone", "native")},
         "No valid run of Penstock: nothing is said of it here (none has a result)."),
        ({"repeats": 1}, "Penstock warm reads 145 times as fast as rclone mount (one repeat: no "
         "interval)."),
        ({"change": noisy}, "Penstock warm reads neither faster nor slower than rclone mount, as "
         "far as the repeats can show."),
        ({"change": slow}, "Penstock warm reads at 0.15 of the speed of rclone mount."),
        ({"arms": ("penstock-warm",), "workloads": (RESNET,), "change": few_accelerators},
         "Penstock warm feeds 1 or more emulated H100 at 90% or more busy."),
        ({"workloads": (RESNET,), "change": limit_in_one_repeat, "repeats": 2},
         "Penstock warm feeds 2 or more emulated H100 at 90% or more busy, rclone mount 1.1."),
        ({"change": spoil("penstock-warm")},
         "No valid run of Penstock: nothing is said of it here (3 left out, of which the first "
         "invalid: store-untouched: 12 bytes left the store)."),
        ({"change": lambda one: fail(one, "hung")},
         "No valid run of Penstock: nothing is said of it here (3 left out, of which the first "
         "failed: hung)."),
    ],
)  # fmt: skip
def test_a_verdict_says_what_the_runs_show(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    assert told(tmp_path, **{"arms": BOTH} | options).verdict.sentence == expected


def test_of_what_trains_it_counts_accelerators_and_says_that_they_are_emulated(
    tmp_path: Path,
) -> None:
    arms = ("penstock-warm", "juicefs-warm", "rclone")
    verdict = told(tmp_path, arms=arms, workloads=(READ, RESNET)).verdict
    assert verdict.sentence == (
        "Penstock warm feeds 8.6 emulated H100 at 90% or more busy, JuiceFS warm 0.25, "
        "rclone mount 0.05."
    )
    assert any(note.startswith("Accelerators fed") for note in verdict.notes)
    assert any(note.startswith("Emulated") for note in verdict.notes)
    ((setting, sentence),) = verdict.others
    assert setting.workload.name == "read"
    assert sentence.startswith("Penstock warm reads 34 times as fast as JuiceFS warm")


def test_where_storage_was_nobodys_limit_no_one_is_said_to_be_better(tmp_path: Path) -> None:
    verdict = told(tmp_path, arms=BOTH, workloads=(READ, RESNET), change=no_limit).verdict
    assert verdict.sentence == "Penstock warm reads 145 times as fast as rclone mount."
    assert verdict.others[0][1] == (
        "Penstock warm and rclone mount feed all that was tried (2 emulated H100): storage was "
        "not the limit."
    )


def test_names_are_spoken_without_commas() -> None:
    def spoken(title: str, *, hinted: bool = False) -> str:
        return Arm("a", title, "penstock", hinted=hinted).spoken

    assert spoken("Penstock, planned", hinted=True) == "Penstock planned (hinted)"
    assert spoken("Penstock, cold, cache of 25%") == "Penstock cold (cache of 25%)"
    assert spoken("rclone mount, no cache") == "rclone mount (no cache)"


def test_a_share_of_native_that_may_be_chance_has_its_interval(tmp_path: Path) -> None:
    sentence = told(tmp_path, arms=("penstock-warm", "native"), spread=0.05).verdict.sentence
    assert re.search(r"of native files \(95% interval 0\.\d\d to 1\.\d\d\)\.$", sentence)


def test_the_headline_is_of_the_farthest_store(tmp_path: Path) -> None:
    verdict = told(tmp_path, arms=BOTH, shapes=(NEAR, FAR)).verdict
    assert verdict.setting is not None
    assert verdict.setting.shape.name == "far"
    assert verdict.others[0][1] == "Penstock warm reads 36 times as fast as rclone mount."


def test_invalid_runs_are_in_no_sentence(tmp_path: Path) -> None:
    arms = ("penstock-warm", "penstock-cold", "juicefs-warm", "rclone")
    verdict = told(tmp_path, arms=arms, change=spoil("juicefs-warm")).verdict
    assert "JuiceFS" not in verdict.sentence
    assert any("Nothing can be said here of JuiceFS warm" in note for note in verdict.notes)
    verdict = told(tmp_path / "b", arms=arms, change=spoil("penstock-warm")).verdict
    assert verdict.sentence.startswith("Penstock cold reads")


def test_a_failed_proof_counts_more_than_the_word_valid(tmp_path: Path) -> None:
    def lie(one: dict[str, Any]) -> None:
        one["proofs"][0]["ok"] = False

    assert told(tmp_path, arms=BOTH).run.counted != []
    assert told(tmp_path / "b", arms=BOTH, change=lie).run.counted == []


def test_a_run_that_was_interrupted_is_told_as_far_as_it_came(tmp_path: Path) -> None:
    summary = summary_of(interrupted(tmp_path / "run"))
    assert not summary.run.ended
    assert len(summary.run.unfinished) == 2
    assert summary.verdict.sentence == (
        "Penstock warm feeds 8.6 emulated H100 at 90% or more busy, rclone mount 0.06 "
        "(one repeat: no interval)."
    )
