"""penstock plan: what it prints for a person and a program, and how it agrees with real mounts."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounts import Mount, Mounter, penstock
from tests.support.refusals import one_refusal
from tests.support.trees import write_tree

WORDS = "files=1281167,mean=110KiB"
FEWER = "files=20000,mean=110KiB"
H100 = ("--samples-per-s", "1786", "--latency", "30ms", "--bandwidth", "10Gbit")


def plan(*arguments: str | Path) -> dict[str, Any]:
    result = penstock("plan", *arguments, "-o", "json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_a_person_reads_a_row_for_each_epoch_and_two_sentences() -> None:
    result = penstock("plan", "--dataset", WORDS, *H100, "--cache", "50%")
    assert result.returncode == 0, result.stderr
    head, _, titles, *rows, _, first, second = result.stdout.splitlines()
    assert head.startswith("1,281,167 files, 134.4 GiB; the accelerator takes 1.61 Gbit/s")
    assert titles.split()[:3] == ["WAY", "EPOCH", "BUSY"]
    assert len(rows) == 3 * (3 + 1) + 1  # each way's epochs and their sum; a warm-up before
    assert rows[0].split()[:4] == ["no", "plan", "1", "15%"]
    assert "1.53 Gbit/s or 52 GETs in flight would be enough for 95%" in first
    assert "52 workers for 95%, or from epoch 2 on a cache of 85%" in second


def test_a_program_reads_the_same_in_numbers() -> None:
    question = ("--dataset", FEWER, *H100, "--cache", "50%", "--epochs", "90", "--seed", "3")
    found = plan(*question)
    ways = {way["way"]: way for way in found["ways"]}
    assert list(ways) == ["no plan", "plan", "warm-up"]
    assert [way["storage_is_told_the_order"] for way in found["ways"]] == [False, True, False]
    epochs = ways["plan"]["epochs"]
    assert [(epoch["number"], epoch["until"]) for epoch in epochs] == [(1, 1), (2, 2), (3, 90)]
    assert ways["plan"]["whole_s"] == pytest.approx(
        epochs[0]["whole_s"] + epochs[1]["whole_s"] + 88 * epochs[2]["whole_s"]
    )
    assert epochs[0]["gets"] == 20000
    assert found["smallest"]["concurrency"] == 53
    assert len(found["advice"]) == 2
    assert plan(*question) == found


def test_a_loader_that_is_too_slow_by_itself_is_named() -> None:
    found = plan("--dataset", FEWER, *H100, "--sample-time", "10ms")
    assert "8 workers that work 10 ms on a sample make 800 samples/s" in found["advice"][-1]


# -- against real mounts ----------------------------------------------------------------

FILES, SIZE = 40, 65536


def epoch(mount: Mount, seed: int) -> tuple[int, int]:
    """Read every file once, shuffled, and drop its pages; return GETs and bytes of the store."""
    before = mount.stats()
    paths = sorted(path for path in mount.path.rglob("*.jpg"))
    random.Random(seed).shuffle(paths)
    for path in paths:
        with open(path, "rb") as file:
            assert len(file.read()) == SIZE
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    after = mount.stats()
    gets = [one["store_requests_by_verb"].get("get", 0) for one in (before, after)]
    return gets[1] - gets[0], after["store_bytes"] - before["store_bytes"]


@pytest.mark.parametrize("share", [0.25, 1.5])
def test_what_is_predicted_for_a_mount_is_what_it_asks_of_its_store(
    mounter: Mounter, tmp_path: Path, share: float
) -> None:
    rng = random.Random(4)
    files = {f"{i % 4}/{i}.jpg": rng.randbytes(SIZE) for i in range(FILES)}
    write_tree(tmp_path / "source", files)
    quota = -(-int(share * FILES * SIZE) * 100 // 99)  # of which it fills 99%
    tier = f"SSD:{tmp_path}/tier:{quota}B"
    mount = mounter(f"file://{tmp_path}/source", "--mode", "pagecache", "--tier", tier)
    found = plan("--dataset", mount.path, *H100, "--batch", "8", "--epochs", "2")
    assert (found["files"], found["bytes"]) == (FILES, FILES * SIZE)
    predicted = [(one["gets"], one["store_bytes"]) for one in found["ways"][0]["epochs"]]
    assert [epoch(mount, seed) for seed in (1, 2)] == predicted


def test_the_sizes_of_a_mount_are_those_of_its_files_and_without_files_there_is_no_plan(
    mounter: Mounter, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write_tree(source, {"0": b"", "1": b"1"})
    with open(source / "2", "wb") as file:
        file.truncate(20 << 20)
    mount = mounter(f"file://{source}")
    (unplanned, *_) = plan("--dataset", mount.path, *H100, "--epochs", "1")["ways"]
    # The large one comes in three blocks of 8 MiB, the empty one is not asked for.
    assert unplanned["epochs"][0]["gets"] == 4
    for path in source.iterdir():
        path.unlink()
    mount.refresh()
    one_refusal(["plan", "--dataset", str(mount.path), *H100], says="shows no files")


# -- as people mistype it ---------------------------------------------------------------

MISTAKES = {
    "--dataset files=10": "mean= is missing",
    "--dataset files=10,mean=1MiB,median=3": "unknown word 'median=3'",
    "--dataset files=10,mean=1MiB,files=3": "files is given twice",
    "--dataset files=0,mean=1MiB": "files=0 is not a number",
    "--dataset files=1,mean=huge": "mean: 'huge' is not a size",
    "--dataset /nowhere": "/nowhere is not mounted",
    f"--dataset {WORDS} --samples-per-s 0": "--samples-per-s: 0",
    f"--dataset {WORDS} --bandwidth 0": "--bandwidth",
    f"--dataset {WORDS} --bandwidth 10Gb/s": "--bandwidth: '10Gb/s' may mean bits or bytes",
    f"--dataset {WORDS} --cache half": "--cache: 'half'",
    f"--dataset {WORDS} --cache -5%": "--cache: '-5%'",
    f"--dataset {WORDS} --batch 0": "batch",
    f"--dataset {WORDS} --policy fifo": "fifo",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_question_that_makes_no_sense(words: str) -> None:
    one_refusal(["plan", "--samples-per-s", "1786", *words.split()], says=MISTAKES[words])


def test_what_must_be_known_is_asked_for() -> None:
    one_refusal(["plan", "--dataset", WORDS], says="--samples-per-s")
