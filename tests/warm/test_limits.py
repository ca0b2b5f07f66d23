"""What bounds a warm-up: bytes a second, memory, room in the tiers, requests in flight."""

from collections.abc import Callable

from penstock.warm.load import TierRoom, fits_for_sure
from penstock.warm.pace import LEAST, Demand, Pace, RateLimit, window_bytes
from penstock.warm.page_cache import PageBudget

MIB = 1 << 20
RATE = 1_000_000


def take_all(rate_limit: RateLimit, size: int) -> int:
    taken = 0
    while rate_limit.take(size):
        taken += size
    return taken


def test_the_rate_limit_holds_and_unused_rate_is_not_saved() -> None:
    now = [100.0]
    rate_limit = RateLimit(RATE, lambda: now[0])
    now[0] += 3600
    assert take_all(rate_limit, 1000) == RATE // 10
    rate_limit.give_back(3000)
    assert take_all(rate_limit, 1000) == 3000
    now[0] += 0.05
    assert take_all(rate_limit, 1000) in (RATE // 20, RATE // 20 + 1000)
    # A block larger than a second passes, and the next one waits for it.
    rate_limit = RateLimit(RATE, lambda: now[0])
    assert rate_limit.take(5 * RATE)
    now[0] += 4.8
    assert not rate_limit.take(1)
    now[0] += 0.2
    assert rate_limit.take(1)


def test_files_are_kept_until_the_budget_is_used_up() -> None:
    pages = PageBudget(1000)
    assert pages.keep(1, 700)
    assert not pages.keep(2, 100)
    assert pages.keep(3, 50)
    assert pages.release(1) == 700
    assert pages.keep(2, 700)
    assert pages.passing_bytes == 250
    # What two plans keep is counted once.
    pages = PageBudget(1000)
    assert pages.keep(5_000_000, 700)
    assert pages.keep(5_000_000, 700)
    pages.release(5_000_000)
    assert pages.is_kept(5_000_000)
    assert not pages.keep(7, 100)
    pages.release(5_000_000)
    assert not pages.is_kept(5_000_000)
    assert pages.keep(7, 100)


class Shares:
    """A tier of which only the room matters here."""

    name = "SSD"

    def __init__(self, *free: int) -> None:
        self.free = list(free)

    def share_of(self, digest: bytes) -> int:
        return digest[0] % len(self.free)

    def free_beside(self, wanted_bytes: Callable[[int], int]) -> list[int]:
        return [free - wanted_bytes(share) for share, free in enumerate(self.free)]


def room(*tiers: Shares) -> TierRoom:
    return TierRoom(tiers, lambda _tier, _share: 0)  # type: ignore[arg-type]


def test_each_block_takes_room_in_the_first_tier_with_room() -> None:
    found = room(Shares(10), Shares(100))
    assert found.take(b"\0", [8])
    assert found.take(b"\0", [8, 8])
    assert found.free_bytes == 110 - 24
    assert found.take(b"\0", [2]), "the first tier still has two"
    assert found.free_bytes == 84
    assert not found.take(b"\0", [85])
    # An object finds room as a whole and in its own share, or takes nothing.
    found = room(Shares(10), Shares(20))
    assert not found.take(b"\0", [10, 15, 10])
    assert found.free_bytes == 30
    assert found.take(b"\0", [10, 20])
    found = room(Shares(0, 50))
    assert not found.take(b"\0", [1])
    assert found.take(b"\1", [50])
    # All fits for sure only if any share could hold all of it.
    assert fits_for_sure([Shares(10), Shares(200, 200)], 100)  # type: ignore[list-item]
    assert not fits_for_sure([Shares(10), Shares(150, 300)], 100)  # type: ignore[list-item]
    assert not fits_for_sure([], 1)


def run(pace: Pace, latency_s: float, most_per_s: float, rounds: int) -> None:
    """A store that answers after `latency_s`, and no more than so many in a second."""
    now_s = 0.0
    for _ in range(rounds):
        count = pace.target
        took_s = max(latency_s, count / most_per_s)
        for _ in range(count):
            now_s += took_s / count
            pace.note(took_s, 100_000, now_s, full=True)


def test_requests_in_flight_stop_growing_at_the_limit_of_a_store() -> None:
    pace = Pace(256)
    run(pace, 0.03, 1000, rounds=50)  # 30 in flight fill it
    assert pace.target in (96, 145)  # 145 if it is just trying again
    assert 0.9e8 <= pace.bytes_per_s <= 1.1e8
    # A round without enough to fetch changes nothing.
    pace = Pace(256)
    for number in range(1000):
        pace.note(0.03, 100_000, number / 100, full=number % 10 > 0)
    assert pace.target == 96


def test_a_slow_down_answer_halves_the_requests_in_flight_for_a_while() -> None:
    pace = Pace(256)
    run(pace, 0.03, 1_000_000, rounds=10)
    assert pace.target == 256, "more are sent while each takes no longer"
    pace.note_throttling(1.0)
    pace.note_throttling(1.0)
    assert pace.target == 64
    run(pace, 0.03, 1_000_000, rounds=25)
    assert pace.target == 256
    for _ in range(20):
        pace.note_throttling(1.0)
    assert pace.target == LEAST, "it never stops altogether"


def test_the_window_covers_round_trips_or_ten_seconds_of_demand_within_memory() -> None:
    fast = {"latency_s": 0.5, "bytes_per_s": 1e9, "demand_bytes_per_s": 0}
    hungry = {"latency_s": 0.03, "bytes_per_s": 2e8, "demand_bytes_per_s": 2e8}
    for rates in (fast, hungry):
        assert window_bytes(**rates, budget_bytes=1 << 40) == 2_000_000_000
    assert window_bytes(**hungry, budget_bytes=100 * MIB) == 100 * MIB
    assert window_bytes(**hungry, budget_bytes=0) == 8 * MIB, "it never closes"
    # Demand follows what readers take.
    demand = Demand()
    for tenth in range(100):
        demand.note(10 * MIB, tenth / 10)
    assert 0.95 * 100 * MIB <= demand.bytes_per_s <= 1.05 * 100 * MIB
