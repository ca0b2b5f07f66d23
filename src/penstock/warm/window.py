"""How far ahead of its readers a plan may run. Pure."""

from penstock.units import MIB

# Enough for a few batches before anything is measured.
_LEAST_BYTES = 64 * MIB
# Without any memory to spare it still goes on, a few files ahead.
_FLOOR_BYTES = 8 * MIB
# What is in flight at full speed, several times over: a round trip that takes thrice as long as
# usual is then no stall.
_ROUND_TRIPS = 4
# And this much of what the accelerator eats: storage that is away for so long is not noticed.
_DEMAND_S = 10.0


def window_bytes(
    *, latency_s: float, bytes_per_s: float, demand_bytes_per_s: float, budget_bytes: int
) -> int:
    """`budget_bytes`: the memory that may hold what has not been read yet."""
    in_flight = latency_s * bytes_per_s * _ROUND_TRIPS
    wanted = max(_LEAST_BYTES, int(in_flight), int(demand_bytes_per_s * _DEMAND_S))
    return max(_FLOOR_BYTES, min(wanted, budget_bytes))


class Demand:
    """How many bytes readers take in a second, from a cursor that is looked at now and then."""

    _SETTLES_S = 2.0  # a new rate counts fully after about this long

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._taken = 0
        self.bytes_per_s = 0.0

    def note(self, taken_bytes: int, now_s: float) -> None:
        """`taken_bytes`: since the last note."""
        if self._since_s is None:
            self._since_s = now_s
            return  # what was handed out before the first look says nothing of a rate
        self._taken += taken_bytes
        passed_s = now_s - self._since_s
        if passed_s < 0.2:
            return
        share = min(1.0, passed_s / self._SETTLES_S)
        self.bytes_per_s += share * (self._taken / passed_s - self.bytes_per_s)
        self._since_s, self._taken = now_s, 0
