"""Who reads files in listing order is recognised, and nobody else."""

import random

from penstock.vfs.neighbours import Neighbours

PARENT = 7


class Announced:
    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.neighbours = Neighbours(self._note)

    def _note(self, parent: int, after: int, up_to: int) -> None:
        assert parent == PARENT
        self.runs.append((after, up_to))

    def read(self, *numbers: int) -> None:
        for number in numbers:
            self.neighbours.observe(PARENT, number)

    @property
    def numbers(self) -> list[int]:
        return [number for after, up_to in self.runs for number in range(after + 1, up_to + 1)]


def test_four_files_in_a_row_announce_the_next() -> None:
    announced = Announced()
    announced.read(100, 101, 102)
    assert announced.runs == []
    announced.read(103)
    assert announced.runs == [(103, 107)]


def test_a_long_run_is_announced_without_gaps_and_never_twice() -> None:
    announced = Announced()
    announced.read(*range(100, 400))
    assert announced.numbers == list(range(104, announced.numbers[-1] + 1))
    assert 32 <= announced.numbers[-1] - 399 <= 64


def test_eight_readers_are_eight_runs() -> None:
    announced = Announced()
    for step in range(10):
        announced.read(*(1000 * reader + step for reader in range(1, 9)))
    assert {number // 1000 for number in announced.numbers} == set(range(1, 9))


def test_a_shuffled_epoch_announces_nothing() -> None:
    announced = Announced()
    order = list(range(20_000))
    random.Random(1).shuffle(order)
    announced.read(*order)
    assert announced.runs == []


def test_a_shuffled_reader_of_few_files_is_hardly_ever_mistaken() -> None:
    wrong = 0
    for seed in range(100):
        announced = Announced()
        order = list(range(100))
        random.Random(seed).shuffle(order)
        announced.read(*order)
        wrong += len(announced.numbers)
    assert wrong / (100 * 100) < 0.05


def test_reading_one_file_again_and_again_announces_nothing() -> None:
    announced = Announced()
    announced.read(*[100] * 50)
    assert announced.runs == []
