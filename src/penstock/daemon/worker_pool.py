"""The workers of one server: started, told, heard, replaced. Where the server talks to them.

Each has a slot: a number, a clone of /dev/fuse and an inbox, which outlive the process in it. The
supervisor holds the clones too, so that no request is lost with whoever had taken it.

    starting ── ready ──▶ serving ── ends, for whatever reason ──▶ starting
                                        what it had read is sent again by the kernel, what it was
                                        told to bring is told to the next, its room is given back

Threading: one thread listens to each worker; one waits for ends and starts the next; any thread
tells.
"""

import logging
import mmap
import os
import select
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock import errors
from penstock.cache.claims import claims_bytes
from penstock.cache.directory import CacheDirectory
from penstock.cache.fetch import FetchOutcome, FetchResult
from penstock.cache.files import FileStamp
from penstock.cache.guarded import GuardedDirectory
from penstock.cache.identity import Block, block_of, identify
from penstock.cache.indexfile import IndexDamaged
from penstock.daemon.channel import Channel, Message, send_start
from penstock.daemon.fork_server import ForkServer
from penstock.daemon.server_process import HALF_DEAD_AFTER_S
from penstock.errors import PenstockError
from penstock.fuse.peers import Inbox, clone
from penstock.metrics import Counters
from penstock.units import MIB
from penstock.warm.prefetcher import Ended, Wanted

log = logging.getLogger(__name__)

# Room that a worker is given at once: for a tenth of a second of what a fast store brings.
_GRANT_BYTES = 64 * MIB
_SYNC_WITHIN_S = 10.0
_CLOSE_WITHIN_S = 4.0
_READY_WITHIN_S = 30.0
# So long after the last block was brought workers still hand over what others might be fetching.
_AHEAD_S = 2.0
# After so many crashes (not: kills) in so short a time, the requests that each new worker gets
# again are the likely cause.
_POISONED, _POISONED_S = 3, 60.0
# A worker that cannot stay is a matter for the supervisor, who starts all of it anew.
_MOST_ENDS, _MOST_ENDS_S = 30, 10.0


@dataclass(slots=True)
class _Totals:
    """What a worker has counted in its life."""

    requests: Counter[str] = field(default_factory=Counter[str])
    read_bytes: int = 0
    declined: int = 0
    fetching: int = 0
    buffered_bytes: int = 0

    @classmethod
    def of(cls, told: Message) -> "_Totals":
        return cls(
            Counter(told["requests"]),
            told["read_bytes"],
            told["declined"],
            told["fetching"],
            told["buffered_bytes"],
        )


class _Worker:
    """One process, as the server sees it."""

    def __init__(self, slot: int, link: Channel, pid: int, end: int) -> None:
        self.slot = slot
        self.link = link
        self.pid = pid
        self.end = end
        self.is_ready = threading.Event()
        self.is_serving = False
        self.heard_s = time.monotonic()
        self.totals = _Totals()
        self.lock = threading.Lock()
        self.fetches_ahead: dict[int, tuple[Wanted, Ended]] = {}
        self.granted: Counter[int] = Counter()  # bytes of each directory, not yet stored
        self.synced: set[int] = set()

    def kill(self) -> None:
        with self.lock, suppress(ProcessLookupError):
            if self.end >= 0:
                signal.pidfd_send_signal(self.end, signal.SIGKILL)

    def bury(self) -> None:
        with self.lock:
            os.close(self.end)
            self.end = -1


class WorkerPool:
    """Also the `Bringer` of the server's prefetcher, and what its cache holds in memory."""

    def __init__(
        self,
        nursery: ForkServer,
        count: int,
        start: Message,
        directories: Sequence[GuardedDirectory],
        identities: Mapping[int, str],
        block_bytes: int,
        counters: Counters,
        owner_of: Callable[[Wanted], int],
        *,
        watchdog_s: float,
        on_reads: Callable[[int, int], None],
        on_outdated: Callable[[], None],
        on_damaged: Callable[[], None],
        on_unmounted: Callable[[], None],
        on_hopeless: Callable[[str], None],
    ) -> None:
        self.count = count
        self._nursery = nursery
        self._start_message = start
        self._directories = directories
        self._identities = identities
        self._block_bytes = block_bytes
        self._counters = counters
        self._owner_of = owner_of
        self._watchdog_s = watchdog_s
        self._on_reads = on_reads
        self._on_outdated = on_outdated
        self._on_damaged = on_damaged
        self._on_unmounted = on_unmounted
        self._on_hopeless = on_hopeless
        self._workers: list[_Worker | None] = [None] * count
        self._inboxes = [Inbox.new() for _ in range(count + 1)]  # the server's is the last
        self._clones: list[int] = []
        # What their file systems share, and what each worker is fetching.
        self._memory = os.memfd_create("penstock-workers", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, mmap.PAGESIZE + claims_bytes(count))
        self.shared = memoryview(mmap.mmap(self._memory, mmap.PAGESIZE)).cast("Q")
        self._changed = threading.Condition()
        self._gone = _Totals()  # of those that have ended
        self._restarts = 0
        self._ends: deque[float] = deque(maxlen=_MOST_ENDS)
        self._crashes: deque[float] = deque(maxlen=_POISONED)
        self._numbers = 0
        self._runs_until_s = 0.0
        self._refuse_resent = False
        self._is_ahead = False  # blocks are being brought, or were a moment ago
        self._brought_s = 0.0
        self._started = False
        self._closing = False
        self._resend: Callable[[], None] = lambda: None
        self._keep: Callable[[str, int], None] = lambda _name, _descriptor: None
        for number, directory in enumerate(directories):
            directory.on_change = partial(self._tell_of_directory, number)

    # -- their lives ------------------------------------------------------------------------

    def start(
        self,
        fuse: int,
        kept: Mapping[str, int],
        keep: Callable[[str, int], None],
        resend: Callable[[], None],
        *,
        takeover: bool,
        refuse_resent: bool,
    ) -> None:
        """Returns when all of them serve. `resend`: asks the kernel to send again what nobody has
        answered, which may be much if another server was here before."""
        self._resend = resend
        self._keep = keep
        self._refuse_resent = refuse_resent
        for slot in range(self.count):
            self._spawn(slot)
        for name in (f"clone-{slot}" for slot in range(self.count)):
            if name in kept:
                self._clones.append(kept[name])
            else:
                self._clones.append(clone(fuse))
                keep(name, self._clones[-1])
        for worker in self._serving_or_not():
            if not worker.is_ready.wait(_READY_WITHIN_S):
                raise PenstockError(f"worker {worker.pid} was not ready in time")
        _wait_for_ends([kept[name] for name in kept if name.startswith("worker-")])
        if takeover:
            resend()
        self._started = True
        for worker in self._serving_or_not():
            self._let_go(worker)
        threading.Thread(target=self._wait_for_ends, name="ends", daemon=True).start()
        threading.Thread(target=self._watch, name="watch-workers", daemon=True).start()

    @property
    def inbox(self) -> Inbox:
        """The server's own."""
        return self._inboxes[-1]

    @property
    def clones(self) -> Sequence[int]:
        return self._clones

    def close(self) -> None:
        """The mount is over: they tell what they have stored, and end."""
        with self._changed:
            self._closing = True
        self._tell_all({"close": True})
        self._wait_until(lambda: not any(self._workers), _CLOSE_WITHIN_S)
        for worker in self._serving_or_not():
            worker.kill()

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._serving_or_not()]

    def _serving_or_not(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker is not None]

    def _spawn(self, slot: int) -> None:
        link, theirs = Channel.pair()
        with theirs:
            born = self._nursery.spawn(theirs)
        worker = _Worker(slot, link, born.pid, born.end)
        # Before it may read a request: whoever comes after us waits for its end.
        self._keep(f"worker-{slot}", born.end)
        with self._changed:
            self._workers[slot] = worker
        poisoned_s = time.monotonic() - _POISONED_S
        refuse = self._refuse_resent or (
            len(self._crashes) == _POISONED and self._crashes[0] > poisoned_s
        )
        send_start(
            link,
            {**self._start_message, "number": slot, "workers": self.count, "refuse_resent": refuse},
        )
        threading.Thread(target=self._listen, args=(worker,), name="worker", daemon=True).start()

    def _let_go(self, worker: _Worker) -> None:
        """From here on it takes requests."""
        descriptors = [
            *self._clones,
            *(inbox.sending.fileno() for inbox in self._inboxes),
            self._inboxes[worker.slot].receiving.fileno(),
            self._memory,
        ]
        inside = [number for number, one in enumerate(self._directories) if one.is_available]
        worker.heard_s = time.monotonic()
        worker.is_serving = True
        go = {"workers": self.count, "in": inside, "ahead": self._is_ahead}
        worker.link.send({"go": go}, descriptors)
        for number in inside:
            self._grant(worker, number, 0)

    def _wait_for_ends(self) -> None:
        while (ended := self._nursery.next_end()) is not None:
            pid, status = ended
            for worker in self._serving_or_not():
                if worker.pid == pid:
                    self._bury(worker, status)
        if not self._closing:
            self._on_hopeless("the process that starts workers is gone")

    def _bury(self, worker: _Worker, status: int) -> None:
        with self._changed:
            self._workers[worker.slot] = None
            totals, gone = worker.totals, self._gone
            gone.requests += totals.requests
            gone.read_bytes += totals.read_bytes
            gone.declined += totals.declined
            self._changed.notify_all()
        worker.bury()
        for number, length in worker.granted.items():
            self._directories[number].call(partial(CacheDirectory.give_back, length=length), None)
        with worker.lock:
            fetches_ahead, worker.fetches_ahead = worker.fetches_ahead, {}
        for wanted, ended in fetches_ahead.values():
            ended([(wanted, FetchResult(FetchOutcome.NO_ROOM, 0))])  # it is tried again
        if self._closing:
            return
        now_s = time.monotonic()
        self._restarts += 1
        self._ends.append(now_s)
        log.error("worker %d ended (%d); restart %d", worker.pid, status, self._restarts)
        if status not in (0, -signal.SIGKILL):
            self._crashes.append(now_s)
        if len(self._ends) == _MOST_ENDS and now_s - self._ends[0] < _MOST_ENDS_S:
            self._on_hopeless("its workers end again and again")
            return
        try:
            self._spawn(worker.slot)
        except PenstockError as error:
            self._on_hopeless(str(error))

    def _watch(self) -> None:
        """A worker that says nothing hangs."""
        while not self._closing:
            time.sleep(min(1.0, self._watchdog_s / 6))
            now_s = time.monotonic()
            for worker in self._serving_or_not():
                if worker.is_serving and now_s - worker.heard_s > self._watchdog_s:
                    log.error(
                        "worker %d: no sign of life for %g s: killed", worker.pid, self._watchdog_s
                    )
                    worker.kill()
            if any(one.fetches_ahead for one in self._serving_or_not()):
                self._brought_s = now_s
            elif self._is_ahead and now_s - self._brought_s > _AHEAD_S:
                self._is_ahead = False
                self._tell_all({"ahead": False})
            if self._runs_until_s and now_s > self._runs_until_s:
                self._runs_until_s = 0.0
                self._tell_all({"runs": False})

    # -- what they are told -------------------------------------------------------------

    def _tell_all(self, message: Message) -> None:
        for worker in self._serving_or_not():
            if worker.is_serving:
                worker.link.send(message)

    def _tell_of_directory(self, number: int) -> None:
        is_in = self._directories[number].is_available
        self._tell_all({"in" if is_in else "out": number})
        for worker in self._serving_or_not():
            # What was granted went with the directory: it counts anew when it is back.
            with worker.lock:
                worker.granted[number] = 0
            if is_in and worker.is_serving:
                self._grant(worker, number, 0)

    def follow_runs(self, for_s: float) -> None:
        """Someone reads files in the order of their listing: of the next reads we want to know all,
        also those that hit."""
        if not self._runs_until_s:
            self._tell_all({"runs": True})
        self._runs_until_s = time.monotonic() + for_s

    def fetch_ahead(self, wanted: list[Wanted], ended: Ended) -> None:
        """See Bringer. Each block is fetched by the worker that owns it. Once all workers know that
        blocks are being brought, who has to fetch for a reader hands it to the owner, too."""
        self._brought_s = time.monotonic()
        if not self._is_ahead:
            self._is_ahead = True
            self._settle({"ahead": True})
        shares: dict[int, list[Wanted]] = {}
        for one in wanted:
            shares.setdefault(self._owner_of(one), []).append(one)
        for slot, some in shares.items():
            worker = self._workers[slot]
            if worker is None or not worker.is_serving:
                ended([(one, FetchResult(FetchOutcome.NO_ROOM, 0)) for one in some])
            else:
                self._fetch_ahead_by(worker, some, ended)

    def _fetch_ahead_by(self, worker: _Worker, some: list[Wanted], ended: Ended) -> None:
        over = [one for one in some if not one.is_wanted()]
        if over:
            ended([(one, FetchResult(FetchOutcome.FAILED, 0)) for one in over])
        told: list[tuple[int, int, int, bool, float]] = []
        with worker.lock:
            for one in some:
                if one in over:
                    continue
                self._numbers += 1
                worker.fetches_ahead[self._numbers] = one, ended
                told.append((self._numbers, one.ino, one.number, one.push, one.missing_since_s))
        if told and not worker.link.try_send({"fetch_ahead": told}):  # it is stopped, or gone
            with worker.lock:
                lost = [worker.fetches_ahead.pop(number, None) for number, *_ in told]
            ended(
                [(one[0], FetchResult(FetchOutcome.NO_ROOM, 0)) for one in lost if one is not None]
            )

    # What the cache of the server asks for: see Fetches.

    def wait_until_stored(self, digest: bytes | None = None) -> None:
        """Returns when all that they have fetched so far is stored, and we know of it."""
        self._settle({}, digest)

    def _settle(self, message: Message, digest: bytes | None = None) -> None:
        """Tells them something, and returns when all have heard and done it."""
        with self._changed:
            self._numbers += 1
            number = self._numbers
        asked = [worker for worker in self._serving_or_not() if worker.is_serving]
        for worker in asked:
            sync = number, None if digest is None else digest.hex()
            worker.link.send({**message, "sync": sync})
        self._wait_until(
            lambda: all(
                number in worker.synced or self._workers[worker.slot] is not worker
                for worker in asked
            ),
            _SYNC_WITHIN_S,
        )

    def release_objects(self, digests: Sequence[bytes]) -> None:
        for first in range(0, len(digests), 1024):
            some = [digest.hex() for digest in digests[first : first + 1024]]
            self._tell_all({"release": some})

    def drop_idle(self) -> None:
        self._tell_all({"let_go": True})

    @property
    def in_flight(self) -> int:
        return sum(worker.totals.fetching for worker in self._serving_or_not())

    @property
    def held_bytes(self) -> int:
        return sum(worker.totals.buffered_bytes for worker in self._serving_or_not())

    @property
    def declined_blocks(self) -> int:
        return self._gone.declined + sum(one.totals.declined for one in self._serving_or_not())

    def requests(self) -> dict[str, int]:
        """How many requests of each kind the kernel has sent."""
        total = self._gone.requests.copy()
        for worker in self._serving_or_not():
            total += worker.totals.requests
        return dict(total)

    def read_bytes(self) -> int:
        return self._gone.read_bytes + sum(one.totals.read_bytes for one in self._serving_or_not())

    def describe(self) -> dict[str, Any]:
        """For `penstock stats`."""
        return {"count": self.count, "pids": self.pids(), "restarts": self._restarts}

    # -- what they say ------------------------------------------------------------------

    def _listen(self, worker: _Worker) -> None:
        while (received := worker.link.receive()) is not None:
            message, descriptors = received
            for descriptor in descriptors:
                os.close(descriptor)
            worker.heard_s = time.monotonic()
            for name, value in message.items():
                try:
                    self._heed(worker, name, value)
                except Exception:  # one bad message must not silence a worker
                    log.exception("a worker said %r", name)
        worker.link.close()

    def _heed(self, worker: _Worker, name: str, news: Any) -> None:
        match name:
            case "ready":
                worker.is_ready.set()
                if self._started:
                    self._take_over(worker)
            case "stored":
                self._note_stored(worker, news)
            case "brought":
                self._note_outcomes(worker, news)
            case "counts":
                for counter, label, amount in news:
                    self._counters.add(counter, amount, label)
            case "totals":
                worker.totals = _Totals.of(news[-1])
            case "room":
                for number, length in news:
                    self._grant(worker, number, length)
            case "reads":
                for parent, ino in news:
                    self._on_reads(parent, ino)
            case "outdated":
                self._on_outdated()
            case "damaged":
                self._on_damaged()
            case "synced":
                with self._changed:
                    worker.synced.update(news)
                    self._changed.notify_all()
            case "ended":
                self._on_unmounted()
            case "closed":
                worker.kill()  # all is told
            case _:
                self._note_cache(name, news)

    def _take_over(self, worker: _Worker) -> None:
        """One that was started in the place of another."""
        self._let_go(worker)
        self._resend()

    def _note_stored(self, worker: _Worker, news: list[Any]) -> None:
        for number, source, key, version, size, block_number, sums, stamp, is_new in news:
            obj = identify(self._identities[source], key, version, size, self._block_bytes)
            block = block_of(obj, block_number, self._block_bytes)
            with worker.lock:
                worker.granted[number] -= block.length
            commit = partial(
                CacheDirectory.commit_written,
                obj=obj,
                block_bytes=self._block_bytes,
                block=block,
                sums=bytes.fromhex(sums),
                stamp=None if stamp is None else FileStamp(*stamp),
                is_new=is_new,
            )
            self._directories[number].call(commit, None)
        for number in {one[0] for one in news}:
            self._grant(worker, number, 0)

    def _grant(self, worker: _Worker, number: int, length: int) -> None:
        """Room for what a worker is about to store. 0: what it may have ahead of its needs."""
        held = worker.granted[number]
        reserve = partial(reserve_for_worker, length=length, held=held, workers=self.count)
        granted = self._directories[number].call(reserve, 0)
        with worker.lock:
            worker.granted[number] += granted
        if granted or length:
            worker.link.send({"room": [(number, granted)]})

    def _note_outcomes(self, worker: _Worker, news: list[Any]) -> None:
        by_ended: dict[Ended, list[tuple[Wanted, FetchResult]]] = {}
        with worker.lock:
            for number, how, length, took_s, error in news:
                known = worker.fetches_ahead.pop(number, None)
                if known is not None:
                    wanted, ended = known
                    arrival = FetchResult(FetchOutcome(how), length, took_s, _as_error(error))
                    by_ended.setdefault(ended, []).append((wanted, arrival))
        for ended, some in by_ended.items():
            ended(some)

    def _note_cache(self, name: str, news: list[Any]) -> None:
        for number, *rest in news:
            guarded = self._directories[int(number)]
            if name == "wrong":
                digest, *fields = rest
                block = Block(bytes.fromhex(digest), *fields)
                guarded.call(partial(CacheDirectory.recheck, block=block), None)
            elif name == "lost":
                digest = bytes.fromhex(rest[0])
                guarded.call(partial(CacheDirectory.forget_lost, digest=digest), None)
            elif name == "used":
                digests = [bytes.fromhex(rest[0])]
                guarded.call(partial(CacheDirectory.touch, digests=digests), None)
            elif name == "failed":
                code, text, is_damaged = rest
                error = OSError(code, text) if code else OSError(text)
                guarded.report_failure(IndexDamaged(text) if is_damaged else error)
            else:
                log.warning("a worker said %r, which this server does not know", name)

    def _wait_until(self, ready: Callable[[], bool], within_s: float) -> None:
        with self._changed:
            self._changed.wait_for(ready, within_s)


def reserve_for_worker(directory: CacheDirectory, *, length: int, held: int, workers: int) -> int:
    """Return how many bytes were reserved: `length`, or more while there is much room. What one
    worker holds another lacks, so all of them together hold a quarter of what is free at most."""
    free_bytes = directory.high_bytes - directory.used_bytes
    share = min(_GRANT_BYTES, (free_bytes + held) // (4 * workers))
    ahead = share - held
    # Not for each file that it stores: only once a part of its share is used up.
    if ahead > max(length, share // 4) and directory.reserve(ahead):
        return ahead
    return length if length and directory.reserve(length) else 0


def _as_error(told: Message | None) -> Exception | None:
    if told is None:
        return None
    kind = getattr(errors, told["kind"], PenstockError)
    return kind(told["text"], hint=told["hint"])


def _wait_for_ends(pidfds: list[int]) -> None:
    """Wait until the workers of a server that is gone have died, as they do with it. One that can
    still run may take a request, which is lost with it once the kernel has sent all again."""
    until_s = time.monotonic() + HALF_DEAD_AFTER_S
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    left = set(pidfds)
    while left and (wait_s := until_s - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(wait_s * 1000):
            poll.unregister(pidfd)
            left.discard(pidfd)
