"""Files are read in the order asked for, whether there is a plan or not."""

import itertools
import random
import threading
from pathlib import Path

import pytest

from penstock.integrations.ordered import announce, each_in_order, read_in_order
from tests.support.loader_places import Place, mount, places, state
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

__all__ = ["mount", "places", "state"]  # fixtures

COUNT = 40
FILES = {f"{i:02}.bin": random.Random(i).randbytes(2000 + i) for i in range(COUNT)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same files on a plain disk."""
    write_tree(tmp_path / "plain", FILES)
    return tmp_path / "plain"


def shuffled(epoch: int) -> list[int]:
    return random.Random(epoch).sample(range(COUNT), COUNT)


def test_two_epochs_come_in_their_order_at_one_get_for_each_file(mount: Place) -> None:
    paths = [mount.path / name for name in FILES]
    order = shuffled(0) + shuffled(1)
    found = list(read_in_order(paths, order))
    assert [index for index, _ in found] == order
    assert all(data == FILES[paths[index].name] for index, data in found)
    assert mount.gets() == COUNT


def test_the_mount_fetches_everything_while_the_reader_stands_still(mount: Place) -> None:
    paths = [mount.path / name for name in FILES]
    reading = read_in_order(paths, shuffled(0) + shuffled(1), threads=2, label="still")
    next(reading)
    wait_until(lambda: mount.gets() == COUNT, "all files are fetched")
    [plan] = mount.stats()["plans"]
    assert (plan["label"], plan["files"], plan["end"]) == ("still", COUNT, 2 * COUNT)
    assert (plan["handed_out"], plan["done"], plan["missing"]) == (4, 1, 0)
    assert len(list(reading)) == 2 * COUNT - 1
    wait_until(lambda: mount.stats()["plans"] == [], "the plan ends with the iterator")
    assert mount.gets() == COUNT


def test_announced_items_are_fetched_before_they_are_handed_out(mount: Place) -> None:
    paths = [mount.path / f"{i:02}.bin" for i in shuffled(4)]
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
def test_an_endless_order_can_be_left_at_any_time(folder: Path) -> None:
    paths = [folder / name for name in FILES]
    before = set(threading.enumerate())
    endless = read_in_order(paths, itertools.cycle(range(COUNT)), threads=4)
    assert [index for index, _ in itertools.islice(endless, 100)] == [i % COUNT for i in range(100)]
    endless.close()
    assert set(threading.enumerate()) <= before
    items = announce(itertools.cycle(paths), lambda path: path)
    assert list(itertools.islice(items, 3)) == paths[:3]


def test_without_a_mount_one_warning_says_so_and_the_files_are_read(folder: Path) -> None:
    with pytest.warns(UserWarning, match="without a plan: no Penstock mount holds") as caught:
        found = list(read_in_order([folder / name for name in FILES], shuffled(3)))
    assert [data for _, data in found] == [FILES[f"{index:02}.bin"] for index in shuffled(3)]
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_what_cannot_be_read_is_raised_in_its_place(folder: Path) -> None:
    paths = [folder / "00.bin", folder / "none.bin", folder / "01.bin"]
    reading = read_in_order(paths)
    assert next(reading) == (0, FILES["00.bin"])
    with pytest.raises(FileNotFoundError, match=r"none\.bin"):
        next(reading)


def test_an_order_that_names_no_file_is_refused(folder: Path) -> None:
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"names file {index}, and there are 2"):
            list(read_in_order([folder / "00.bin", folder / "01.bin"], [0, index]))


def test_no_more_is_read_ahead_than_twice_the_threads(folder: Path) -> None:
    started: list[int] = []
    reading = each_in_order([folder] * COUNT, started.append, threads=3, plan=False)
    next(reading)
    assert len(started) <= 6
    assert len(list(reading)) == COUNT - 1


def test_nothing_to_read_is_nothing(folder: Path) -> None:
    assert list(read_in_order([])) == []
    assert list(read_in_order([folder / "00.bin"], [])) == []
    assert list(announce([], str)) == []
