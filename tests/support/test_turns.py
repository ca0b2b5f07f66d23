"""Tests that share the machine, and one that has it to itself."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.support.turns import turn

# Not spawned: each would import this module, and pytest with it.
_FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def _take_a_turn(folder: Path, alone: bool, link: Connection) -> None:
    link.send("asks")
    with turn(folder, alone=alone):
        link.send("in")
        link.recv()
        link.send("leaves")


class Worker:
    def __init__(self, folder: Path, *, alone: bool) -> None:
        self.link, theirs = _FORK.Pipe()
        self.process: BaseProcess = _FORK.Process(target=_take_a_turn, args=(folder, alone, theirs))
        self.process.start()
        theirs.close()
        assert self.link.recv() == "asks"

    def is_in(self, within_s: float = 0.2) -> bool:
        return self.link.poll(within_s)

    def leave(self) -> None:
        assert self.link.recv() == "in"
        self.link.send("leave")
        assert self.link.recv() == "leaves"
        self.process.join()
        self.link.close()


Start = Callable[[bool], Worker]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda alone: Worker(tmp_path, alone=alone)


def test_who_wants_to_be_alone_waits_for_those_inside_and_lets_nobody_pass(start: Start) -> None:
    first, second = start(False), start(False)
    assert first.is_in(20)
    assert second.is_in(20)
    alone = start(True)
    assert not alone.is_in()
    later = start(False)
    assert not later.is_in()
    first.leave()
    assert not alone.is_in()
    second.leave()
    assert alone.is_in(20)
    assert not later.is_in()
    alone.leave()
    later.leave()


def test_a_worker_that_dies_keeps_nobody_waiting(start: Start) -> None:
    dead = start(True)
    assert dead.is_in(20)
    dead.process.kill()
    dead.process.join()
    dead.link.close()
    start(True).leave()
