"""A load as a feed: all blocks of a selection that are not cached, each fetched once.

Blocks that the tiers have are skipped one by one: so a load that was stopped continues where it
was, without a record of its progress. Blocks that will find no room are not fetched. With
`PagePush`, fetched and cached blocks are also put into the page cache.

    checked ──▶ ready ──▶ in flight ──▶ ended
                  ▲           │
                  └── joined ◀┘  another fetch is in flight, here or on another machine: retried
                                 a moment later. So machines that load the same data share the work

Threading: one thread calls `advance`, which checks the next files, and waits; the prefetcher's
thread takes blocks, and its pool reports results. Any thread may read numbers.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.blocks import block_length
from penstock.cache.contents import Contents
from penstock.cache.fetch import FetchOutcome, FetchResult
from penstock.cache.striped import StripedTier
from penstock.catalog.file_set import Selection
from penstock.catalog.names import decode
from penstock.catalog.tree import Node
from penstock.errors import ObjectChanged, ObjectNotFound, StaleInode
from penstock.vfs.filesystem import FileSystem
from penstock.warm import residency
from penstock.warm.pace import RateLimit
from penstock.warm.page_cache import FILES_PER_PROBE, PageBudget, PageCacheProbe, SelectedFile
from penstock.warm.prefetcher import MOST_IN_FLIGHT, Wanted

# wanted(tier, share) -> bytes of the selection that are there
WantedBytes = Callable[[int, int], int]


class TierRoom:
    """Room in the tiers for a load's bytes, counted before they are fetched.

    Bytes that find no room are not fetched at all: the request would be paid for, and its bytes
    thrown away. The tiers have the last word; this is what they report at the start, minus what
    was taken since. Threading: one thread.
    """

    def __init__(self, tiers: Sequence[StripedTier], wanted: WantedBytes) -> None:
        self._tiers = tiers
        self._free = [
            tier.free_beside(lambda share, depth=depth: wanted(depth, share))
            for depth, tier in enumerate(tiers)
        ]

    @property
    def free_bytes(self) -> int:
        return sum(map(sum, self._free))

    def take(self, digest: bytes, lengths: Sequence[int]) -> bool:
        """Reserve room for all of these blocks of one object, each in the first tier that has some;
        False if not all fit, since half an object is of little use."""
        places = [
            (free, tier.share_of(digest))
            for free, tier in zip(self._free, self._tiers, strict=True)
        ]
        taken: list[tuple[list[int], int, int]] = []
        for length in lengths:
            found = next((one for one in places if one[0][one[1]] >= length), None)
            if found is None:
                for free, share, before in taken:
                    free[share] += before
                return False
            free, share = found
            free[share] -= length
            taken.append((free, share, length))
        return True


def fits_for_sure(tiers: Sequence[StripedTier], size_bytes: int) -> bool:
    """Whether one tier has room for everything, however the bytes fall on its shares."""
    return any(
        min(tier.free_beside(lambda _share: size_bytes), default=0) >= size_bytes for tier in tiers
    )


# Blocks that are checked ahead of the fetches: a few rounds, however many are in flight.
_READY = 4 * MOST_IN_FLIGHT
FAILURES_NAMED = 10
# Until a block that another machine is fetching is asked for again. Without a pause the end of four
# warm-ups at once asks as often as members can answer.
_ELSEWHERE_S = 0.02
# After this many failures in a row, each after a full deadline, storage counts as unavailable.
_GIVE_UP_AFTER = 100
_CHANGED = "it changed or was deleted in the bucket meanwhile"


@dataclass(frozen=True, slots=True)
class PagePush:
    """What a load needs to put files into the page cache."""

    probe: PageCacheProbe
    pages: PageBudget


@dataclass(slots=True)
class Progress:
    """What a load has done so far."""

    looked_files: int = 0
    done_files: int = 0  # every byte was cached, or was fetched
    done_bytes: int = 0
    fetched_files: int = 0  # files of which at least one block came from the store
    fetched_bytes: int = 0
    unfit_files: int = 0  # no room in the tiers
    unfit_bytes: int = 0
    unpushed_files: int = 0  # no room in the page cache
    unpushed_bytes: int = 0
    failed_files: int = 0
    gave_up: bool = False
    failures: list[dict[str, str]] = field(default_factory=list[dict[str, str]])


class _File:
    """A file some of whose blocks have not ended."""

    __slots__ = ("failed", "fetched", "left", "node")

    def __init__(self, node: Node, left: int) -> None:
        self.node = node
        self.left = left
        self.failed = False
        self.fetched = False


@dataclass(frozen=True, slots=True)
class _Piece:
    file: _File
    digest: bytes
    number: int
    length: int
    missing: bool  # in no tier when it was checked
    push: bool


class Load:
    def __init__(
        self,
        files: FileSystem,
        selection: Selection,
        *,
        room: TierRoom | None,
        push: PagePush | None,
        rate_limit: RateLimit | None,
        concurrency: int | None,
        wake: Callable[[], None],
    ) -> None:
        """`room`: None if everything fits. `wake`: called when there are more blocks to take."""
        self.progress = Progress()
        self._files = files
        self._selection = selection
        self._contents = Contents(files.cache)
        self._room = room
        self._push = push
        self._rate_limit = rate_limit
        self._most = concurrency or MOST_IN_FLIGHT
        self._most_bytes = files.cache.buffer_bytes // 2  # the rest is for readers
        self._wake = wake
        self._declined = files.cache.declined_blocks
        self._kept_bytes = 0  # reserved in the page cache
        self._next = 0  # the first file that was not checked
        self._changed = threading.Condition()
        self._ready: deque[_Piece] = deque()
        self._joined: list[_Piece] = []
        # Blocks that another machine is fetching, and when to ask for them again.
        self._elsewhere: deque[tuple[float, _Piece]] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._held_back = False  # `take` stopped because too much was in flight
        self._failures_in_a_row = 0
        self._stopped = False

    # -- the thread that checks files ----------------------------------------------------

    def advance(self, most_s: float) -> bool:
        """Check more files, or wait at most `most_s`; False once everything has ended."""
        if self._next < len(self._selection.inos) and not self._over and len(self._ready) < _READY:
            self._check_more()
            return True
        self._recheck_capacity()
        with self._changed:
            if self._has_ended():
                return False
            self._changed.wait(most_s)
            if not self._over:
                self._ready.extend(self._joined)
                self._joined.clear()
                now_s = time.monotonic()
                while self._elsewhere and self._elsewhere[0][0] <= now_s:
                    self._ready.append(self._elsewhere.popleft()[1])
        self._wake()
        return True

    def stop(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._stopped = True
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._ready.clear()
        self._joined.clear()
        self._elsewhere.clear()

    def close(self) -> None:
        """Release the page cache's budget; the kernel keeps the pages as it likes."""
        self.stop()
        if self._push is not None:
            self._push.pages.give_back(self._kept_bytes)

    @property
    def _over(self) -> bool:
        return self._stopped or self.progress.gave_up

    def _has_ended(self) -> bool:
        is_left = self._ready or self._joined or self._elsewhere or self._in_flight
        return not is_left and (self._over or self._next >= len(self._selection.inos))

    def _check_more(self) -> None:
        inos = self._selection.inos[self._next : self._next + FILES_PER_PROBE]
        nodes = self._files.tree.nodes(inos)
        gone = [nodes.get(ino) for ino in inos if ino not in nodes or nodes[ino].dead]
        alive = [nodes[ino] for ino in inos if ino in nodes and not nodes[ino].dead]
        found = [SelectedFile(node, self._files.object_of(node)) for node in alive]
        states = residency.HELD * len(found)
        if self._push is not None:
            states = self._push.probe.check([self._files.path_of(node) for node in alive])
        held = self._contents.lookup([file.obj for file in found])
        wanted = [file.obj for file, one in zip(found, held, strict=True) if one.cached_bytes]
        self._contents.mark_used(wanted)
        missing = [
            self._contents.missing(file.obj, one) for file, one in zip(found, held, strict=True)
        ]
        with self._changed:
            for node in gone:
                self._note_failure("a file" if node is None else self._path(node), _CHANGED)
            for file, one, numbers, seen in zip(found, held, missing, states, strict=True):
                self.progress.done_bytes += one.cached_bytes
                self._plan_file(file, numbers, resident=seen == residency.RESIDENT[0])
            self._next += len(inos)
            self.progress.looked_files = self._next
        self._wake()

    def _plan_file(self, file: SelectedFile, missing: list[int], *, resident: bool) -> None:
        size, block_bytes = file.obj.size_bytes, self._files.cache.block_bytes
        lengths = [block_length(size, block_bytes, number) for number in missing]
        push = self._push is not None and self._may_push(size) and not resident
        fits = not lengths or self._room is None or self._room.take(file.obj.digest, lengths)
        if not fits and not push:
            self._note_unfit(sum(lengths), files=1)
        numbers = range(-(-size // block_bytes)) if push else missing if fits else []
        if not numbers:
            self.progress.done_files += fits
            return
        one, absent = _File(file.node, len(numbers)), set(missing)
        for number in numbers:
            length = block_length(size, block_bytes, number)
            self._ready.append(_Piece(one, file.obj.digest, number, length, number in absent, push))

    def _may_push(self, size: int) -> bool:
        assert self._push is not None
        if self._push.pages.reserve(size):
            self._kept_bytes += size
            return True
        self.progress.unpushed_files += 1
        self.progress.unpushed_bytes += size
        return False

    def _note_unfit(self, size: int, *, files: int) -> None:
        self.progress.unfit_files += files
        self.progress.unfit_bytes += size

    def _recheck_capacity(self) -> None:
        """Check the room again after tiers declined blocks: other mounts, or other users of the
        disk, have filled them. Drop the ready blocks that will not fit."""
        declined = self._files.cache.declined_blocks
        cache = self._files.cache
        if declined == self._declined or not cache.tiers or cache.shared is not None:
            return
        self._declined = declined
        # an upper bound of what is there, so no share reports more room than it has
        size = self._selection.size_bytes
        self._room = room = TierRoom(self._files.cache.tiers, lambda _tier, _share: size)
        with self._changed:
            waiting, self._ready = self._ready, deque[_Piece]()
            for piece in waiting:
                if piece.push or room.take(piece.digest, [piece.length]):
                    self._ready.append(piece)
                else:
                    piece.file.left -= 1
                    first, piece.file.failed = not piece.file.failed, True
                    self._note_unfit(piece.length, files=first)

    # -- the prefetcher's threads --------------------------------------------------------

    def take(self, most: int) -> list[Wanted]:
        wanted: list[Wanted] = []
        now_s = time.monotonic()
        with self._changed:
            while self._ready and len(wanted) < most:
                piece = self._ready[0]
                full = self._in_flight_bytes + piece.length > self._most_bytes
                if self._in_flight >= self._most or (full and self._in_flight):
                    self._held_back = True
                    break
                if not self._may_fetch(piece):
                    break
                self._ready.popleft()
                self._in_flight += 1
                self._in_flight_bytes += piece.length
                wanted.append(
                    Wanted(
                        piece.file.node.ino,
                        piece.number,
                        piece.push,
                        now_s,
                        partial(self._note_end, piece),
                        self._is_running,
                    )
                )
            if len(self._ready) < _READY // 2:
                self._changed.notify()
        return wanted

    def _may_fetch(self, piece: _Piece) -> bool:
        return self._rate_limit is None or not piece.missing or self._rate_limit.take(piece.length)

    def _is_running(self) -> bool:
        return not self._over

    def _note_end(self, piece: _Piece, result: FetchResult) -> None:
        with self._changed:
            self._in_flight -= 1
            self._in_flight_bytes -= piece.length
            if (
                result.outcome is not FetchOutcome.FETCHED
                and self._rate_limit is not None
                and piece.missing
            ):
                self._rate_limit.give_back(piece.length)
            if not self._over:
                if result.outcome is FetchOutcome.JOINED:
                    self._joined.append(piece)
                elif result.outcome is FetchOutcome.ELSEWHERE:
                    self._elsewhere.append((time.monotonic() + _ELSEWHERE_S, piece))
                else:
                    self._count(piece, result)
            held_back, self._held_back = self._held_back, False
            if not self._ready and not self._in_flight:
                self._changed.notify()
        if held_back:
            self._wake()

    def _count(self, piece: _Piece, result: FetchResult) -> None:
        file, progress = piece.file, self.progress
        file.left -= 1
        if result.outcome is FetchOutcome.FAILED:
            self._count_failure(file, result.error)
        else:
            self._failures_in_a_row = 0
            progress.done_bytes += piece.length if piece.missing else 0
        if result.outcome is FetchOutcome.FETCHED:
            progress.fetched_bytes += piece.length
            progress.fetched_files += not file.fetched
            file.fetched = True
        if not file.left and not file.failed:
            progress.done_files += 1

    def _count_failure(self, file: _File, error: Exception | None) -> None:
        if isinstance(error, (ObjectChanged, ObjectNotFound, StaleInode)):
            why = _CHANGED
            self._files.note_outdated()
        else:
            why = str(error) if error is not None else "it failed"
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= _GIVE_UP_AFTER:
                self.progress.gave_up = True
                self._drop_waiting()
        if not file.failed:
            file.failed = True
            self._note_failure(self._path(file.node), why)

    def _note_failure(self, path: str, why: str) -> None:
        self.progress.failed_files += 1
        if len(self.progress.failures) < FAILURES_NAMED:
            self.progress.failures.append({"path": path, "why": why})

    def _path(self, node: Node) -> str:
        return decode(self._files.path_of(node))

    def describe(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "looked_files": progress.looked_files,
            "done_files": progress.done_files,
            "done_bytes": progress.done_bytes,
            "fetched_files": progress.fetched_files,
            "fetched_bytes": progress.fetched_bytes,
            "unfit_files": progress.unfit_files,
            "unfit_bytes": progress.unfit_bytes,
            "unpushed_files": progress.unpushed_files,
            "unpushed_bytes": progress.unpushed_bytes,
            "failed_files": progress.failed_files,
            "failures": progress.failures,
            "gave_up": progress.gave_up,
            "in_flight": self._in_flight,
        }
