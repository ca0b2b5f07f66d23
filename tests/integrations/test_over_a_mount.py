"""Training over a real mount, told in counts: GETs of the store, READs of the kernel, plans. And
files that are read in the order asked for, whether there is a plan or not."""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.integrations.ordered import announce, each_in_order, read_in_order
from tests.support.loader_places import Place, mount, places, state
from tests.support.mounts import Mount, Mounter
from tests.support.page_counts import assert_kept, locked_pages, missing_pages
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

__all__ = ["mount", "places", "state"]  # fixtures

FILES = {f"{i % 5}/{i:03}.jpg": random.Random(i).randbytes(20_000 + i) for i in range(30)}
EPOCH = {name.split("/")[1]: sha256(data).hexdigest() for name, data in FILES.items()}
CONTENTS, COUNT = list(FILES.values()), len(FILES)
TRAIN = Path(__file__).with_name("train.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same files on a plain disk."""
    write_tree(tmp_path / "plain", FILES)
    return tmp_path / "plain"


class Training(subprocess.Popen[str]):
    """The script, held where it waits for a line."""

    def hear(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline()

    def go_on(self) -> None:
        assert self.stdin is not None
        self.stdin.write("\n")
        self.stdin.flush()

    def end(self) -> tuple[int, str]:
        _, stderr = self.communicate("\n", timeout=60)
        return self.returncode, stderr

    def leave(self) -> None:
        self.kill()
        self.communicate()


Trainer = Callable[..., Training]


@pytest.fixture
def train() -> Iterator[Trainer]:
    with ExitStack() as stack:

        def start(
            mount: Mount | Place,
            kind: str = "shuffled",
            workers: int = 0,
            *,
            hooked: bool = False,
            **environment: str,
        ) -> Training:
            run = [sys.executable, "-m", "penstock", "run", "--"] if hooked else []
            command = [*run, sys.executable, TRAIN, mount.path, kind, str(workers)]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            training = Training(command, text=True, env={**os.environ, **environment}, **pipes)
            stack.callback(training.leave)
            return training

        yield start


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
    wait_until(lambda: not mount.stats()["plans"], "the plan ends with the script")


def test_each_rank_has_its_own_plan_which_ends_when_the_rank_is_killed(
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
    wait_until(lambda: len(mount.stats()["plans"]) < 2, "the plan of a killed rank is left")
    (left,) = mount.stats()["plans"]
    assert left["label"] == "train.py rank 0"
    assert ranks[0].end() == (0, "")


def test_a_training_script_is_told_that_its_mount_is_gone(
    folder: Path, mounter: Mounter, train: Trainer
) -> None:
    mount = mounter(f"file://{folder}")
    training = train(mount, hooked=True)
    assert training.hear() == "begun\n"
    mount.umount()
    training.go_on()
    code, output = training.end()
    assert code == 1
    assert f"penstock: Files: {mount.path} is no longer mounted\n" in output
    assert "FileNotFoundError: " in output.splitlines()[-1]  # the script's own


def shuffled(epoch: int) -> list[int]:
    return random.Random(epoch).sample(range(COUNT), COUNT)


def test_the_mount_fetches_everything_while_the_reader_stands_still(mount: Place) -> None:
    paths = [mount.path / name for name in FILES]
    order = shuffled(0) + shuffled(1)
    reading = read_in_order(paths, order, threads=2, label="still")
    expected = ((index, CONTENTS[index]) for index in order)
    assert next(reading) == next(expected)
    wait_until(lambda: mount.gets() == COUNT, "all files are fetched")
    [plan] = mount.stats()["plans"]
    assert (plan["label"], plan["files"], plan["end"]) == ("still", COUNT, 2 * COUNT)
    assert (plan["handed_out"], plan["done"], plan["missing"]) == (4, 1, 0)
    assert list(reading) == list(expected)
    wait_until(lambda: mount.stats()["plans"] == [], "the plan ends with the iterator")
    assert mount.gets() == COUNT


def test_announced_items_are_fetched_before_they_are_handed_out(mount: Place) -> None:
    paths = [mount.path / name for name in FILES]
    items = announce(enumerate(paths), lambda item: item[1], label="items")
    assert next(items) == (0, paths[0])
    wait_until(lambda: mount.gets() == COUNT, "all files are fetched")
    assert [plan["label"] for plan in mount.stats()["plans"]] == ["items"]
    assert next(items) == (1, paths[1])
    [plan] = mount.stats()["plans"]
    assert (plan["handed_out"], plan["done"]) == (2, 1)
    items.close()
    wait_until(lambda: mount.stats()["plans"] == [], "the plan ends with the iterator")


@pytest.mark.filterwarnings("ignore:penstock reads without a plan")
def test_an_endless_order_can_be_abandoned_at_any_time(folder: Path) -> None:
    paths = [folder / name for name in FILES]
    before = set(threading.enumerate())
    endless = read_in_order(paths, itertools.cycle(range(COUNT)), threads=4)
    assert [index for index, _ in itertools.islice(endless, 100)] == [i % COUNT for i in range(100)]
    endless.close()
    assert set(threading.enumerate()) <= before
    items = announce(itertools.cycle(paths), lambda path: path)
    assert list(itertools.islice(items, 3)) == paths[:3]
    started: list[int] = []
    reading = each_in_order(paths, started.append, threads=3, plan=False)
    next(reading)
    assert len(started) <= 6, "twice the threads"
    assert len(list(reading)) == COUNT - 1


def test_without_a_mount_files_are_read_after_one_warning(folder: Path) -> None:
    with pytest.warns(UserWarning, match="without a plan: no Penstock mount holds") as caught:
        found = list(read_in_order([folder / name for name in FILES], shuffled(3)))
    assert found == [(index, CONTENTS[index]) for index in shuffled(3)]
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_missing_file_is_raised_in_its_place(folder: Path) -> None:
    paths = [folder / "0/000.jpg", folder / "none.jpg", folder / "0/005.jpg"]
    reading = read_in_order(paths)
    assert next(reading) == (0, CONTENTS[0])
    with pytest.raises(FileNotFoundError, match=r"none\.jpg"):
        next(reading)
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"names file {index}, and there are 3"):
            list(read_in_order(paths, [0, index]))
