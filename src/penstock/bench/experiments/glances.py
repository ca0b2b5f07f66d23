"""The counters of a moment, and what lies between two of them: requests, hits, CPU."""

from dataclasses import dataclass
from typing import Any

from penstock.bench import measure
from penstock.bench.arms import Arm, Penstock
from penstock.bench.experiments.storeline import Came, StoreLine


@dataclass(frozen=True, slots=True)
class Glance:
    came: Came
    said: dict[str, Any] | None  # a Penstock mount's own statistics
    usage: measure.Usage  # of the system

    def came_since(self, before: "Glance") -> Came:
        return self.came.since(before.came)

    def hits_since(self, before: "Glance") -> dict[str, int] | None:
        """Bytes from the local cache, by tier; None for a system that does not say."""
        if self.said is None or before.said is None:
            return None
        earlier: dict[str, int] = before.said["hit_bytes"]
        now: dict[str, int] = self.said["hit_bytes"]
        return {tier: size - earlier.get(tier, 0) for tier, size in now.items()}

    def costs_since(self, before: "Glance") -> dict[str, Any]:
        """As an epoch of result.json has it."""
        came = self.came_since(before)
        store = {
            "gets": came.gets,
            "get_bytes": came.get_bytes,
            "other_requests": came.other_requests,
        }
        used = self.usage.since(before.usage)
        return {
            "store": store,
            "hit_bytes": self.hits_since(before),
            "cpu_s": {"system": used.cpu_s, "readers": None},
            "memory_bytes": used.memory_bytes,
        }


def look(arm: Arm, line: StoreLine) -> Glance:
    said = arm.statistics() if isinstance(arm, Penstock) else None
    return Glance(line.came(), said, arm.usage())
