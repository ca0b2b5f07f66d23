"""Training over a real mount, told in counts: GETs of the store, READs of the kernel, plans."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.loader_places import Place, mount, places, state
from tests.support.mounts import Mount, Mounter
from tests.support.page_counts import assert_kept, locked_pages, missing_pages
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

__all__ = ["mount", "places", "state"]  # fixtures

FILES = {f"{i % 5}/{i:03}.jpg": random.Random(i).randbytes(20_000 + i) for i in range(30)}
EPOCH = {name.split("/")[1]: sha256(data).hexdigest() for name, data in FILES.items()}
TRAIN = Path(__file__).with_name("train.py")


class Training:
    """The script, held where it waits for a line."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **environment},
        )  # fmt: skip

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate("\n", timeout=60)
        return self.process.returncode, said

    def leave(self) -> None:
        self.process.kill()
        self.process.communicate()


Trainer = Callable[..., Training]


@pytest.fixture
def train() -> Iterator[Trainer]:
    with ExitStack() as stack:

        def start(
            mount: Mount | Place, kind: str = "shuffled", workers: int = 0, *, hooked: bool = False,
            **environment: str,
        ) -> Training:  # fmt: skip
            command = [sys.executable, str(TRAIN), str(mount.path), kind, str(workers)]
            if hooked:
                command = [sys.executable, "-m", "penstock", "run", "--", *command]
            training = Training(command, environment)
            stack.callback(training.leave)
            return training

        yield start


def plans_when(
    mount: Mount | Place, true: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    return wait_until(lambda: [plans] if true(plans := mount.stats()["plans"]) else [])[0]


def wait_until_pushed(paths: list[Path]) -> None:
    """Wait until each file has been in the page cache. Nothing is read to find out."""
    for path in paths:
        wait_until(lambda path=path: not missing_pages(path), f"{path} was not pushed")


@pytest.mark.counts_pages
@pytest.mark.parametrize(
    ("hooked", "kind", "workers"),
    [
        (True, "shuffled", 2),
        (False, "planned", 1),
        (True, "planned", 0),  # one plan, not two
    ],
)
def test_a_planned_epoch_gets_each_file_once_and_reads_what_was_pushed(
    mount: Place, train: Trainer, hooked: bool, kind: str, workers: int
) -> None:
    paths = [mount.path / name for name in FILES]
    training = train(mount, kind, workers, hooked=hooked)
    assert training.hear() == "begun\n"
    wait_until_pushed(paths)
    (plan,) = mount.stats()["plans"]
    assert (plan["label"], plan["files"], plan["missing"]) == ("train.py", len(FILES), 0)
    assert_kept(paths)
    with locked_pages(paths):
        before = mount.requests()["READ"]
        training.go_on()
        assert json.loads(training.hear()) == [EPOCH, EPOCH]
        assert mount.requests()["READ"] == before
    assert mount.gets() == len(FILES)
    (plan,) = mount.stats()["plans"]
    assert plan["handed_out"] == 2 * len(FILES)
    assert training.end() == (0, "")
    plans_when(mount, lambda plans: not plans)


def test_each_rank_has_a_plan_of_its_own_which_ends_when_it_is_killed(
    mount: Place, train: Trainer
) -> None:
    ranks = [
        train(mount, "distributed", hooked=True, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)
    ]
    assert [rank.hear() for rank in ranks] == ["begun\n"] * 2
    labels = [plan["label"] for plan in mount.stats()["plans"]]
    assert sorted(labels) == ["train.py rank 0", "train.py rank 1"]
    for rank in ranks:
        rank.go_on()
    one, other = ([dict(epoch) for epoch in json.loads(rank.hear())] for rank in ranks)
    assert [{**one[epoch], **other[epoch]} for epoch in (0, 1)] == [EPOCH, EPOCH]
    assert mount.gets() == len(FILES)
    ranks[1].leave()
    (left,) = plans_when(mount, lambda plans: len(plans) < 2)
    assert left["label"] == "train.py rank 0"
    assert ranks[0].end() == (0, "")


def test_a_mount_that_goes_away_is_said(tmp_path: Path, mounter: Mounter, train: Trainer) -> None:
    write_tree(tmp_path / "source", FILES)
    mount = mounter(f"file://{tmp_path}/source")
    training = train(mount, hooked=True)
    assert training.hear() == "begun\n"
    mount.umount()
    training.go_on()
    code, said = training.end()
    assert code == 1
    assert f"penstock: Files: {mount.path} is not mounted any more\n" in said
    assert "FileNotFoundError: " in said.splitlines()[-1]  # the script's own


def test_a_plan_with_files_that_are_not_there_says_so_and_reads_the_others(
    mount: Place, train: Trainer
) -> None:
    training = train(mount, "missing", hooked=True)
    assert training.hear() == "begun\n"
    plans_when(mount, lambda plans: bool(plans) and plans[0]["missing"] == 1)
    training.go_on()
    assert json.loads(training.hear()) == [EPOCH | {"none.jpg": ""}] * 2
    assert training.end() == (
        0,
        "penstock: Files: 1 of the files that will be read are not on the mount, "
        f"{mount.path}/none.jpg for one\n",
    )
