"""penstock plan: what it prints for a person and a program, and how it agrees with real mounts."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounts import Mount, Mounter, penstock, succeed
from tests.support.refusals import one_refusal
from tests.support.trees import write_tree

WORDS = "files=1281167,mean=110KiB"
H100 = ("--samples-per-s", "1786", "--latency", "30ms", "--bandwidth", "10Gbit")


def plan(*arguments: str | Path) -> dict[str, Any]:
    result = penstock("plan", *arguments, "-o", "json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_the_plan_has_a_row_for_each_epoch_and_two_sentences() -> None:
    printed = succeed("plan", "--dataset", WORDS, *H100, "--cache", "50%")
    head, _, _, *rows, _, first, second = printed.splitlines()
    assert head.startswith("1,281,167 files, 134.4 GiB; the accelerator takes 1.61 Gbit/s")
    assert len(rows) == 3 * (3 + 1) + 1  # each way's epochs and their sum; a warm-up before
    assert rows[0].split()[:4] == ["no", "plan", "1", "15%"]
    assert "1.53 Gbit/s or 52 GETs in flight would be enough for 95%" in first
    assert "52 workers for 95%, or from epoch 2 on a cache of 85%" in second


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
def test_predicted_requests_match_those_of_a_real_mount(
    mounter: Mounter, tmp_path: Path, share: float
) -> None:
    rng = random.Random(4)
    files = {f"{i % 4}/{i}.jpg": rng.randbytes(SIZE) for i in range(FILES)}
    write_tree(tmp_path / "source", files)
    quota = -(-int(share * FILES * SIZE) * 100 // 99)  # of which it fills 99%
    tier = f"SSD:{tmp_path}/tier:{quota}B"
    # A file that is fetched ahead at the end of an epoch, because two neighbours happened to be
    # read one after the other, would count for the next one.
    words = ("--mode", "pagecache", "--tier", tier, "--prefetch", "0")
    mount = mounter(f"file://{tmp_path}/source", *words)
    found = plan("--dataset", mount.path, *H100, "--batch", "8", "--epochs", "2")
    assert (found["files"], found["bytes"]) == (FILES, FILES * SIZE)
    predicted = [(one["gets"], one["store_bytes"]) for one in found["ways"][0]["epochs"]]
    assert [epoch(mount, seed) for seed in (1, 2)] == predicted


MISTAKES = {
    "--dataset files=10": "mean= is missing",
    "--dataset files=10,mean=1MiB,median=3": "unknown word 'median=3'",
    "--dataset files=0,mean=1MiB": "files=0 is not a number",
    "--dataset /nowhere": "/nowhere is not mounted",
    f"--dataset {WORDS} --bandwidth 10Gb/s": "--bandwidth: '10Gb/s' may mean bits or bytes",
    f"--dataset {WORDS} --cache half": "--cache: 'half'",
    f"--dataset {WORDS} --batch 0": "batch",
}


def test_an_impossible_plan_is_rejected() -> None:
    for words, says in MISTAKES.items():
        one_refusal(["plan", "--samples-per-s", "1786", *words.split()], says=says)
    one_refusal(["plan", "--dataset", WORDS], says="--samples-per-s")
