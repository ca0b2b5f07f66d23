"""How much slower transfers are that share one bandwidth. Pure.

A flow waits (latency, or its own work) and transfers, in turn, for ever. Where n such flows share
a bandwidth evenly, mean value analysis gives their rate exactly, whatever the times are spread
like: the recursion adds one flow after the other, and each newcomer meets the queue that those
before it make. The plain bound, the lesser of n times one flow's rate and of the whole
bandwidth, is 16% too high where both are about the same.
"""

# Flows that spend shares of their time on transfers which differ by less than this are alike.
_STEPS = 1000


class Sharing:
    """Remembers what it worked out. Not for several threads."""

    def __init__(self) -> None:
        self._known: dict[int, list[float]] = {}
        self._queues: dict[int, float] = {}

    def slowdown(self, transfer_share: float, flows: int) -> float:
        """How many times as long each of `flows` takes as if it were alone; `transfer_share` is
        the share of its time alone that it transfers."""
        step = round(min(1.0, transfer_share) * _STEPS)
        known = self._known.setdefault(step, [1.0])
        share = step / _STEPS
        queue = self._queues.get(step, 0.0)
        while len(known) <= flows:
            transfer = share * (1 + queue)
            queue = len(known) * transfer / (1 - share + transfer)
            known.append(1 - share + transfer)
        self._queues[step] = queue
        return known[flows]
