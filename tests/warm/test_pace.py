"""How many requests are kept in flight, against stores that behave in known ways."""

from penstock.warm.pace import LEAST, Pace
from penstock.warm.window import Demand, window_bytes

MIB = 1 << 20


def run(pace: Pace, latency_s: float, most_per_s: float, rounds: int) -> None:
    """A store that answers after `latency_s`, and no more than so many in a second."""
    now_s = 0.0
    for _ in range(rounds):
        count = pace.target
        took_s = max(latency_s, count / most_per_s)
        for _ in range(count):
            now_s += took_s / count
            pace.note(took_s, 100_000, now_s, full=True)


def test_more_are_sent_while_each_takes_no_longer() -> None:
    pace = Pace(256)
    run(pace, 0.03, 1_000_000, rounds=10)
    assert pace.target == 256


def test_a_store_at_its_limit_is_not_asked_for_ever_more() -> None:
    pace = Pace(256)
    run(pace, 0.03, 1000, rounds=50)  # 30 in flight fill it
    assert pace.target in (64, 97)  # 97 if it is just trying again
    assert 0.9e8 <= pace.bytes_per_s <= 1.1e8


def test_a_round_without_enough_to_fetch_changes_nothing() -> None:
    pace = Pace(256)
    for number in range(1000):
        pace.note(0.03, 100_000, number / 100, full=number % 10 > 0)
    assert pace.target == 64


def test_a_slow_down_halves_it_and_it_comes_back() -> None:
    pace = Pace(256)
    run(pace, 0.03, 1_000_000, rounds=10)
    pace.throttled(1.0)
    pace.throttled(1.0)
    assert pace.target == 64
    run(pace, 0.03, 1_000_000, rounds=25)
    assert pace.target == 256


def test_it_never_stops_altogether() -> None:
    pace = Pace(256)
    for _ in range(20):
        pace.throttled(1.0)
    assert pace.target == LEAST
    few = Pace(2)
    few.throttled(1.0)
    assert few.target == 2


def test_the_window_covers_several_round_trips_and_ten_seconds_of_demand() -> None:
    fast = window_bytes(latency_s=0.5, bytes_per_s=1e9, demand_bytes_per_s=0, budget_bytes=1 << 40)
    assert fast == 2_000_000_000
    hungry = window_bytes(
        latency_s=0.03, bytes_per_s=2e8, demand_bytes_per_s=2e8, budget_bytes=1 << 40
    )
    assert hungry == 2_000_000_000


def test_the_window_stays_within_its_memory_but_never_closes() -> None:
    of = {"latency_s": 0.03, "bytes_per_s": 2e8, "demand_bytes_per_s": 2e8}
    assert window_bytes(**of, budget_bytes=100 * MIB) == 100 * MIB
    assert window_bytes(**of, budget_bytes=0) == 8 * MIB


def test_demand_follows_what_readers_take() -> None:
    demand = Demand()
    for tenth in range(100):
        demand.note(10 * MIB, tenth / 10)
    assert 0.95 * 100 * MIB <= demand.bytes_per_s <= 1.05 * 100 * MIB
