"""Blocks on their way into the shared tier, and leases that end without one.

Each member has a queue and a thread of its own: one that does not answer must not hold up what
machines wait for at another. All queues together are bounded in bytes.

Threading: any thread puts; the thread of a member sends, and ends when it has had nothing to do for
a while.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cache.identity import Block
from penstock.cache.memcached import FAILURES, AllBusy, Member
from penstock.cache.seal import Packing
from penstock.metrics import Counters

log = logging.getLogger(__name__)

_AT_ONCE = 16
_BYTES_AT_ONCE = 8 * 1024 * 1024
_IDLE_S = 10.0
_MOST_LEASES = 4096


@dataclass(slots=True)
class _Queue:
    """What one member is to be sent. Under the lock of Fills."""

    blocks: deque[tuple[Block, memoryview]] = field(default_factory=deque[tuple[Block, memoryview]])
    # More than that run out by themselves.
    leases: deque[Block] = field(default_factory=lambda: deque[Block](maxlen=_MOST_LEASES))
    has_thread: bool = False

    def take(self) -> list[tuple[Block, memoryview]]:
        batch: list[tuple[Block, memoryview]] = []
        size = 0
        while self.blocks and len(batch) < _AT_ONCE and size < _BYTES_AT_ONCE:
            batch.append(self.blocks.popleft())
            size += batch[-1][0].length
        return batch


class Fills:
    def __init__(
        self,
        packing: Packing,
        counters: Counters,
        on_failure: Callable[[Member, Exception], None],
        most_bytes: int,
    ) -> None:
        """`most_bytes`: of all blocks that wait or are being sent; a single one may be larger."""
        self._packing = packing
        self._counters = counters
        self._on_failure = on_failure
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._queues: dict[Member, _Queue] = {}
        self._is_closed = False
        self.queued_bytes = 0  # those that are being sent included

    def put(self, member: Member, block: Block, data: memoryview) -> bool:
        """Queue a block; False if there is no room for it. Never waits."""
        with self._changed:
            if self._is_closed or not self.has_room(block.length):
                return False
            self.queued_bytes += block.length
            queue = self._queue_of(member)
            queue.blocks.append((block, data))
            self._wake(member, queue)
        return True

    def end_lease(self, member: Member, block: Block) -> None:
        with self._changed:
            if not self._is_closed:
                queue = self._queue_of(member)
                queue.leases.append(block)
                self._wake(member, queue)

    def has_room(self, length: int) -> bool:
        return not self.queued_bytes or self.queued_bytes + length <= self._most_bytes

    def wait_for_room(self, length: int, within_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.has_room(length) or self._is_closed, within_s)

    def wait_until_empty(self, within_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self.queued_bytes, within_s)

    def close(self) -> None:
        """Take nothing more. What is queued is still sent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # -- a member's thread --------------------------------------------------------------------

    def _queue_of(self, member: Member) -> _Queue:
        return self._queues.setdefault(member, _Queue())

    def _wake(self, member: Member, queue: _Queue) -> None:
        if not queue.has_thread:
            queue.has_thread = True
            name = f"fill {member.address}"
            threading.Thread(target=self._run, args=(member, queue), name=name, daemon=True).start()
        self._changed.notify_all()

    def _run(self, member: Member, queue: _Queue) -> None:
        while self._wait(member, queue):
            self._end_leases(member, queue)
            self._send_some(member, queue)

    def _wait(self, member: Member, queue: _Queue) -> bool:
        """Wait for something to send; False if the thread is to end."""

        def has_some() -> bool:
            return bool(queue.blocks or queue.leases)

        with self._changed:
            self._changed.wait_for(lambda: has_some() or self._is_closed, _IDLE_S)
            if not has_some():
                queue.has_thread = False
                if self._queues.get(member) is queue:
                    del self._queues[member]
            return queue.has_thread

    def _end_leases(self, member: Member, queue: _Queue) -> None:
        with self._changed:
            blocks = [queue.leases.popleft() for _ in range(len(queue.leases))]
        if blocks and member.why_out is None:
            try:
                member.delete(self._packing, blocks)
            except FAILURES as error:
                self._on_failure(member, error)
            except AllBusy:
                pass  # they run out by themselves

    def _send_some(self, member: Member, queue: _Queue) -> None:
        """Send the next blocks. No reference to one outlives this: the thread may now sleep."""
        with self._changed:
            batch = queue.take()
        if not batch:
            return
        sent = sum(block.length for block, _ in batch)
        self._send(member, batch)
        with self._changed:
            self.queued_bytes -= sent
            self._changed.notify_all()

    def _send(self, member: Member, blocks: list[tuple[Block, memoryview]]) -> None:
        dropped = [block for block, _ in blocks]
        if member.why_out is None:
            try:
                dropped = member.store(self._packing, blocks)
            except AllBusy:
                pass
            except FAILURES as error:
                self._on_failure(member, error)
            except Exception:  # a bug costs some fills, not the thread that fills
                log.exception("the shared tier was not filled")
        if dropped:
            self._counters.add("shared_fills_dropped", len(dropped))
        if len(dropped) < len(blocks):
            sent = sum(block.length for block, _ in blocks)
            filled = sent - sum(block.length for block in dropped)
            self._counters.add("shared_filled_bytes", filled, str(member.address))
