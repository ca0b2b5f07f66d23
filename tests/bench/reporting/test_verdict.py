"""The sentence on top says what valid runs show, names others at their best, and no more."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.reporting.results import Arm
from penstock.bench.reporting.summary import Summary, summary_of
from tests.bench.reporting.samples import (
    FAR,
    NEAR,
    READ,
    RESNET,
    fail,
    interrupted,
    invalidate,
    make_run,
)


def told(tmp_path: Path, **options: Any) -> Summary:
    return summary_of(make_run(tmp_path / "run", raw=False, **{"spread": 0.0001} | options))


def spoil(arm: str, repeats: tuple[int, ...] = (0, 1, 2)) -> Callable[[dict[str, Any]], None]:
    def change(one: dict[str, Any]) -> None:
        if one["arm"]["name"] == arm and one["repeat"] in repeats:
            invalidate(one, "store-untouched", "12 bytes left the store")

    return change


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        (("penstock-warm", "rclone", "native"),
         "Penstock warm reads 145 times as fast as rclone mount, at 0.98 of native files."),
        (("penstock-warm", "penstock-cold", "rclone"),
         "Penstock warm reads 145 times as fast as rclone mount."),
        (("penstock-warm", "rclone", "s3fs", "juicefs-warm"),
         "Penstock warm reads 34 times as fast as JuiceFS warm, 145 times as fast as rclone mount "
         "and 228 times as fast as s3fs."),
        (("penstock-warm", "native"), "Penstock warm reads at 0.98 of native files."),
        (("penstock-warm", "penstock-cold"),
         "Penstock warm reads 37 times as fast as Penstock cold."),
        (("penstock-cold", "penstock-planned", "rclone"),
         "Penstock planned (hinted) reads 24 times as fast as rclone mount."),
        (("penstock-cold", "juicefs-warm"),
         "Penstock cold reads at 0.93 of the speed of JuiceFS warm."),
        (("penstock-warm",),
         "Penstock warm reads 1,532 MB/s; no valid run is there to compare it with."),
        (("rclone", "native"),
         "No valid run of Penstock: nothing is said of it here (none has a result)."),
    ],
)  # fmt: skip
def test_of_what_reads_a_verdict_gives_ratios(
    tmp_path: Path, arms: tuple[str, ...], expected: str
) -> None:
    sentence = told(tmp_path, arms=arms).verdict.sentence
    assert sentence == expected


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


def test_storage_that_was_never_the_limit_feeds_so_many_or_more(tmp_path: Path) -> None:
    def few(one: dict[str, Any]) -> None:
        one["accelerator_runs"] = one["accelerator_runs"][:3]

    sentence = told(tmp_path, arms=("penstock-warm",), workloads=(RESNET,), change=few)
    assert sentence.verdict.sentence == (
        "Penstock warm feeds 1 or more emulated H100 at 90% or more busy."
    )


def test_where_storage_was_nobodys_limit_no_one_is_said_to_be_better(tmp_path: Path) -> None:
    def easy(one: dict[str, Any]) -> None:
        one["accelerator_runs"] = [{"accelerators": n, "busy_share": 0.99} for n in (1, 8)][
            : 2 if one["workload"]["kind"] == "emulated" else 0
        ]

    arms = ("penstock-warm", "rclone")
    verdict = told(tmp_path, arms=arms, workloads=(READ, RESNET), change=easy).verdict
    assert verdict.sentence == "Penstock warm reads 145 times as fast as rclone mount."
    assert verdict.others[0][1] == (
        "Penstock warm and rclone mount feed all that was tried (2 emulated H100): storage was "
        "not the limit."
    )


def test_who_was_the_limit_in_one_repeat_is_not_said_to_feed_all_that_was_tried(
    tmp_path: Path,
) -> None:
    def mixed(one: dict[str, Any]) -> None:
        slow = one["arm"]["name"] == "rclone" and one["repeat"] == 1
        one["accelerator_runs"] = [{"accelerators": 8, "busy_share": 0.09 if slow else 0.99}]

    arms = ("penstock-warm", "rclone")
    verdict = told(tmp_path, arms=arms, workloads=(RESNET,), change=mixed, repeats=2).verdict
    assert verdict.sentence == (
        "Penstock warm feeds 2 or more emulated H100 at 90% or more busy, rclone mount 1.1."
    )


@pytest.mark.parametrize(
    ("title", "hinted", "spoken"),
    [
        ("Penstock, warm", False, "Penstock warm"),
        ("Penstock, planned", True, "Penstock planned (hinted)"),
        ("Penstock, cold, cache of 25%", False, "Penstock cold (cache of 25%)"),
        ("rclone mount, no cache", False, "rclone mount (no cache)"),
        ("s3fs", False, "s3fs"),
    ],
)
def test_names_are_spoken_without_commas(title: str, hinted: bool, spoken: str) -> None:
    assert Arm("a", title, "penstock", hinted=hinted).spoken == spoken


def test_a_share_of_native_that_may_be_chance_has_its_interval(tmp_path: Path) -> None:
    summary = told(tmp_path, arms=("penstock-warm", "native"), spread=0.05)
    assert re.search(r"of native files \(95% interval 0\.\d\d to 1\.\d\d\)\.$",
                     summary.verdict.sentence)  # fmt: skip


def test_the_headline_is_of_the_farthest_store(tmp_path: Path) -> None:
    verdict = told(tmp_path, arms=("penstock-warm", "rclone"), shapes=(NEAR, FAR)).verdict
    assert verdict.setting is not None
    assert verdict.setting.shape.name == "far"
    assert verdict.others[0][1] == "Penstock warm reads 36 times as fast as rclone mount."


def test_one_repeat_is_said(tmp_path: Path) -> None:
    summary = told(tmp_path, arms=("penstock-warm", "rclone"), repeats=1)
    assert summary.verdict.sentence.endswith("as rclone mount (one repeat: no interval).")


def test_what_the_repeats_cannot_show_is_not_claimed(tmp_path: Path) -> None:
    def noisy(one: dict[str, Any]) -> None:
        for epoch in one["epochs"]:
            epoch["seconds"] = 5 + one["repeat"] + (one["arm"]["system"] == "rclone") / 4

    summary = told(tmp_path, arms=("penstock-warm", "rclone"), change=noisy)
    assert summary.verdict.sentence == (
        "Penstock warm reads neither faster nor slower than rclone mount, as far as the repeats "
        "can show."
    )


def test_invalid_runs_are_in_no_sentence(tmp_path: Path) -> None:
    arms = ("penstock-warm", "penstock-cold", "juicefs-warm", "rclone")
    summary = told(tmp_path, arms=arms, change=spoil("juicefs-warm"))
    assert "JuiceFS" not in summary.verdict.sentence
    assert any("Nothing can be said here of JuiceFS warm" in n for n in summary.verdict.notes)
    summary = told(tmp_path / "b", arms=arms, change=spoil("penstock-warm"))
    assert summary.verdict.sentence.startswith("Penstock cold reads")


def test_without_a_valid_run_of_ours_the_reason_is_said(tmp_path: Path) -> None:
    summary = told(tmp_path, arms=("penstock-warm", "rclone"), change=spoil("penstock-warm"))
    assert summary.verdict.sentence == (
        "No valid run of Penstock: nothing is said of it here (3 left out, of which the first "
        "invalid: store-untouched: 12 bytes left the store)."
    )
    summary = told(tmp_path / "b", arms=("penstock-warm",), change=lambda one: fail(one, "hung"))
    assert "of which the first failed: hung" in summary.verdict.sentence


def test_a_failed_proof_counts_more_than_the_word_valid(tmp_path: Path) -> None:
    def lie(one: dict[str, Any]) -> None:
        one["proofs"][0]["ok"] = False

    summary = told(tmp_path, arms=("penstock-warm", "rclone"), change=lie)
    assert summary.run.counted == []


def test_a_run_that_was_interrupted_is_told_as_far_as_it_came(tmp_path: Path) -> None:
    summary = summary_of(interrupted(tmp_path / "run"))
    assert not summary.run.ended
    assert len(summary.run.unfinished) == 2
    assert summary.verdict.sentence == (
        "Penstock warm feeds 8.6 emulated H100 at 90% or more busy, rclone mount 0.06 "
        "(one repeat: no interval)."
    )


def test_ours_is_said_to_be_slower_where_it_is(tmp_path: Path) -> None:
    def slow(one: dict[str, Any]) -> None:
        if one["arm"]["system"] == "penstock":
            for epoch in one["epochs"]:
                epoch["seconds"] *= 1000

    summary = told(tmp_path, arms=("penstock-warm", "rclone"), change=slow)
    assert summary.verdict.sentence == ("Penstock warm reads at 0.15 of the speed of rclone mount.")
