"""Fetches that ended a moment ago, and what later requests for the same block need to know of them.

Threading: under the lock of Fetches, but for `ended_since`, which any thread may call.
"""

from penstock.cache.fetch import Fetch
from penstock.cache.identity import Block

# How many fetches that just ended are remembered. A plan checks 128 files at a time and has 256 in
# flight, while others read.
_ENDED_REMEMBERED = 1024
# The kernel requests what its readahead did not get once more, page by page. A reader that has
# waited a whole deadline for a block must not wait another one because of that.
_FAILED_S = 1.0
_FAILED_REMEMBERED = 4096


class RecentFetches:
    def __init__(self) -> None:
        self.failed: dict[Block, Fetch] = {}  # those that took a whole deadline
        # When each fetch ended. A caller that looked in the tiers before a block was stored there,
        # and asks for it after it was released from memory, must look again.
        self.ended: dict[Block, float] = {}

    def note_end(self, block: Block, now_s: float) -> None:
        self.ended.pop(block, None)  # the newest last
        self.ended[block] = now_s
        if len(self.ended) > _ENDED_REMEMBERED:
            del self.ended[next(iter(self.ended))]

    def ended_since(self, block: Block, since_s: float = 0.0) -> bool:
        return self.ended.get(block, -1.0) >= since_s

    def note_failure(self, fetch: Fetch) -> None:
        self.failed[fetch.block] = fetch
        if len(self.failed) > _FAILED_REMEMBERED:
            del self.failed[next(iter(self.failed))]

    def failure_of(self, block: Block, now_s: float) -> Fetch | None:
        """Return the failed fetch of the block, if it failed so recently that a reader gets the
        same error."""
        fetch = self.failed.get(block)
        if fetch is None or now_s < fetch.failed_s + _FAILED_S:
            return fetch
        del self.failed[block]
        return None
