"""What a cache hits in a shuffled epoch: formulas against caches that are played through."""

import random
from collections import OrderedDict

import pytest

from penstock.warm.hits import (
    draw_misses,
    lru_hit_chance,
    lru_hit_share,
    miss_chance,
    planned_miss_chance,
)

FILES, EPOCHS = 2000, 8


def play_lru(share: float, seed: int = 1) -> list[bool]:
    """Which reads of shuffled epochs hit, after a first one that fills the cache."""
    rng = random.Random(seed)
    held: OrderedDict[int, None] = OrderedDict()
    order = list(range(FILES))
    hits: list[bool] = []
    for epoch in range(EPOCHS + 1):
        rng.shuffle(order)
        for file in order:
            if epoch:
                hits.append(file in held)
            held[file] = None
            held.move_to_end(file)
            if len(held) > share * FILES:
                held.popitem(last=False)
    return hits


@pytest.mark.parametrize(
    ("share", "hits"),
    [(0.25, 0.03), (0.5, 0.15), (0.75, 0.40), (0.9, 0.67), (1, 1), (2, 1), (0, 0)],
)
def test_lru_hits_little_of_a_shuffled_epoch(share: float, hits: float) -> None:
    assert lru_hit_share(share) == pytest.approx(hits, abs=0.005)


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_the_formula_for_lru_is_what_a_real_lru_cache_hits(share: float) -> None:
    hits = play_lru(share)
    assert sum(hits) / len(hits) == pytest.approx(lru_hit_share(share), abs=0.01)


def test_lru_hits_at_the_beginning_of_an_epoch_and_never_behind_its_share() -> None:
    hits = play_lru(0.5)
    for tenth in range(10):
        begin, end = tenth * FILES // 10, (tenth + 1) * FILES // 10
        played = [hits[epoch * FILES + at] for epoch in range(EPOCHS) for at in range(begin, end)]
        expected = lru_hit_chance(0.5, (tenth + 0.5) / 10)
        assert sum(played) / len(played) == pytest.approx(expected, abs=0.04), tenth
        assert tenth < 5 or sum(played) == 0


def test_keep_hits_its_share_all_through_the_epoch() -> None:
    chance = miss_chance("keep", 0.5, 0.0)
    assert [chance(position) for position in (0, 0.5, 1)] == [0.5, 0.5, 0.5]


def test_a_page_cache_that_holds_everything_leaves_nothing_to_ask_for() -> None:
    for policy in ("keep", "lru"):
        assert miss_chance(policy, 0.0, 1.5)(0.9) == 0


def test_a_plan_keeps_the_same_files_in_memory_as_in_a_cache_that_keeps() -> None:
    assert planned_miss_chance("keep", 0.5, 0.3)(0.1) == 0.5
    assert planned_miss_chance("keep", 0.2, 0.3)(0.1) == pytest.approx(0.7)
    assert planned_miss_chance("lru", 0.5, 0.3)(0.9) == pytest.approx(0.7)


def test_batches_vary_and_the_epoch_as_a_whole_does_not() -> None:
    batches = [100] * 200 + [37]
    misses = draw_misses(batches, miss_chance("keep", 0.3, 0.0), random.Random(0))
    assert sum(misses) == round(0.7 * sum(batches))
    middle = misses[:-1]
    mean = sum(middle) / len(middle)
    spread = sum((one - mean) ** 2 for one in middle) / len(middle)
    assert spread == pytest.approx(100 * 0.7 * 0.3, rel=0.3)  # as a binomial draw has


def test_what_is_certain_is_not_drawn() -> None:
    assert draw_misses([5, 5], lambda _: 1.0, random.Random(0)) == [5, 5]
    assert draw_misses([5, 5], lambda _: 0.0, random.Random(0)) == [0, 0]
