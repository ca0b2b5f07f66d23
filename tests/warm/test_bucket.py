"""So many bytes a second: by a clock that the test moves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.warm.bucket import Bucket

RATE = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def take_all(bucket: Bucket, size: int) -> int:
    taken = 0
    while bucket.take(size):
        taken += size
    return taken


@given(
    sizes=st.integers(10_000, 3 * RATE),
    steps=st.lists(st.floats(0.001, 0.08), min_size=20, max_size=60),
)
@settings(deadline=None, max_examples=20)
def test_over_time_the_rate_holds_to_what_the_bucket_holds_and_one_block(
    sizes: int, steps: list[float]
) -> None:
    clock = Clock()
    bucket = Bucket(RATE, clock)
    taken = 0
    for step in steps:
        taken += take_all(bucket, sizes)
        clock.now_s += step
        taken += take_all(bucket, sizes)
        assert taken <= (clock.now_s - 100) * RATE + 0.1 * RATE + sizes
    assert taken >= (clock.now_s - 100) * RATE, "who always takes gets all that there is"


def test_what_nobody_takes_is_not_saved_up() -> None:
    clock = Clock()
    bucket = Bucket(RATE, clock)
    clock.now_s += 3600
    assert take_all(bucket, 1000) == RATE // 10


def test_a_block_larger_than_a_second_passes_and_the_next_waits_for_it() -> None:
    clock = Clock()
    bucket = Bucket(RATE, clock)
    assert bucket.take(5 * RATE)
    clock.now_s += 4.8
    assert not bucket.take(1)
    clock.now_s += 0.2
    assert bucket.take(1)


def test_what_was_not_fetched_after_all_is_given_back() -> None:
    clock = Clock()
    bucket = Bucket(RATE, clock)
    assert take_all(bucket, 1000) == RATE // 10
    bucket.give_back(3000)
    assert take_all(bucket, 1000) == 3000
