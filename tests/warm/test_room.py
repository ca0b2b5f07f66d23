"""Where a load's bytes will lie, counted before they are fetched."""

from collections.abc import Callable

from penstock.warm.room import Room, surely_fits


class Shares:
    """A tier of which only the room matters here."""

    name = "SSD"

    def __init__(self, *free: int) -> None:
        self.free = list(free)

    def share_of(self, digest: bytes) -> int:
        return digest[0] % len(self.free)

    def rooms_beside(self, wanted_bytes: Callable[[int], int]) -> list[int]:
        return [free - wanted_bytes(share) for share, free in enumerate(self.free)]


def room(*tiers: Shares) -> Room:
    return Room(tiers, lambda _tier, _share: 0)  # type: ignore[arg-type]


def test_each_block_takes_room_in_the_first_tier_that_has_some() -> None:
    found = room(Shares(10), Shares(100))
    assert found.take(b"\0", [8])
    assert found.take(b"\0", [8, 8])
    assert found.free_bytes == 110 - 24
    assert found.take(b"\0", [2]), "the first tier still has two"
    assert found.free_bytes == 84
    assert not found.take(b"\0", [85])


def test_an_object_that_does_not_fit_as_a_whole_takes_nothing() -> None:
    found = room(Shares(10), Shares(20))
    assert not found.take(b"\0", [10, 15, 10])
    assert found.free_bytes == 30
    assert found.take(b"\0", [10, 20])


def test_an_object_finds_room_only_in_its_own_share() -> None:
    found = room(Shares(0, 50))
    assert not found.take(b"\0", [1])
    assert found.take(b"\1", [50])


def test_all_fits_for_sure_only_if_any_share_could_hold_all_of_it() -> None:
    assert surely_fits([Shares(10), Shares(200, 200)], 100)  # type: ignore[list-item]
    assert not surely_fits([Shares(10), Shares(150, 300)], 100)  # type: ignore[list-item]
    assert not surely_fits([], 1)
