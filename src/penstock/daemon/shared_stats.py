"""What a mount shows of its shared tier: its members, and how much of the data set it holds.

memcached cannot list what it holds. So the share is estimated from a sample of the data set's
blocks, which members are asked for by name; a data set of few blocks is looked up completely.

Threading: any thread asks; one at a time looks, in a thread of its own.
"""

import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from penstock.blocks import block_count
from penstock.cache.contents import Contents
from penstock.cache.identity import Block, block_of
from penstock.cache.member_stats import ask_members
from penstock.cache.shared_tier import SharedTier
from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem

_SAMPLED_FILES = 500
_MOST_BLOCKS = 4000  # of the sample
_OLD_S = 5.0
_FIRST_WITHIN_S = 3.0


class SharedEstimate:
    """How many bytes of the data set are cached, here or in the shared tier, and its capacity."""

    def __init__(self, files: FileSystem, tier: SharedTier) -> None:
        self._files = files
        self._tier = tier
        self._contents = Contents(files.cache)
        self._lock = threading.Lock()
        self._looked_s: float | None = None
        self._looking: threading.Thread | None = None
        self._shared_share = 0.0
        self._any_share = 0.0
        self.capacity_bytes = 0

    def refresh(self, *, wait: bool) -> None:
        """Look again if the last look is old. `wait` for the result, for a moment."""
        with self._lock:
            old = self._looked_s is None or time.monotonic() - self._looked_s > _OLD_S
            if old and self._looking is None:
                self._looking = threading.Thread(target=self._look, name="estimate", daemon=True)
                self._looking.start()
            looking = self._looking
        if wait and looking is not None:
            looking.join(_FIRST_WITHIN_S)

    def shared_bytes(self, size_bytes: int) -> int:
        """Return how much of a data set of that size the shared tier holds."""
        return round(self._shared_share * size_bytes)

    def cached_bytes(self, size_bytes: int) -> int:
        """Return how much is in the shared tier, in a tier of this machine, or in both."""
        return round(self._any_share * size_bytes)

    def _look(self) -> None:
        try:
            answers = ask_members([(one.host, one.port) for one in self._tier.addresses])
            self.capacity_bytes = sum(
                one["stats"]["limit_bytes"] + one["stats"]["flash_limit_bytes"]
                for one in answers
                if one["stats"] is not None
            )
            self._shared_share, self._any_share = self._estimate()
        except PenstockError:
            pass  # a damaged catalog: the last estimate stays
        finally:
            with self._lock:
                self._looked_s = time.monotonic()
                self._looking = None

    def _estimate(self) -> tuple[float, float]:
        """Return the shares of the bytes that are in the shared tier, and in any tier."""
        cache = self._files.cache
        nodes = self._files.tree.sample(_SAMPLED_FILES)
        objects = [self._files.object_of(node) for node in nodes]
        held = self._contents.lookup(objects)
        blocks: list[Block] = []
        is_local: list[bool] = []
        most = max(1, _MOST_BLOCKS // max(1, len(objects)))
        for obj, local in zip(objects, held, strict=True):
            missing = set(self._contents.missing(obj, local))
            numbers = range(block_count(obj.size_bytes, cache.block_bytes))
            for number in random.sample(numbers, min(most, len(numbers))):
                blocks.append(block_of(obj, number, cache.block_bytes))
                is_local.append(number not in missing)
        found = self._tier.has_all(blocks)
        total = sum(block.length for block in blocks)
        if not total:
            return 0.0, 0.0
        both = list(zip(blocks, found, is_local, strict=True))
        shared = sum(block.length for block, is_shared, _ in both if is_shared)
        cached = sum(block.length for block, is_shared, local in both if is_shared or local)
        return shared / total, cached / total


def describe(
    estimate: SharedEstimate,
    tier: SharedTier,
    counters: Counters,
    out_of_workers: Mapping[str, str],
    size_bytes: int,
) -> dict[str, Any]:
    """Return the state of the tier for `penstock stats`.

    `out_of_workers`: members that a worker has taken out of service, and why.
    """
    state = tier.describe()
    counts = {
        name: counters.by_label(f"shared_{name}")
        for name in ("hits", "misses", "waits", "damaged", "failures", "filled_bytes")
    }
    seconds = counters.sums("shared_hit_seconds")
    members: list[dict[str, Any]] = []
    for one in state["members"]:
        member = one["member"]
        found = {name: by_member.get(member, 0) for name, by_member in counts.items()}
        spent_s = seconds.get(member, 0.0)
        members.append(
            {
                "member": member,
                "out": one["out"] or out_of_workers.get(member),
                **found,
                "hit_ms": round(1000 * spent_s / found["hits"], 3) if found["hits"] else None,
            }
        )
    return {
        "members": members,
        "problem": state["problem"],
        "queued_bytes": state["queued_bytes"],
        "fills_dropped": counters.total("shared_fills_dropped"),
        "waited_in_vain": counters.total("shared_waited_in_vain"),
        "cached_bytes": estimate.shared_bytes(size_bytes),
        "capacity_bytes": estimate.capacity_bytes,
    }
