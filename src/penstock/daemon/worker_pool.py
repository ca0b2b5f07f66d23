"""The workers of one server: starts them, exchanges messages with them, and replaces them.

Each has a slot: a number, a clone of /dev/fuse and an inbox, which outlive the process in it. The
supervisor holds the clones too, so that no request is lost with the process that had taken it.

    starting ── ready ──▶ serving ── ends, for whatever reason ──▶ starting
                                        the kernel sends its requests again, blocks that it was
                                        to fetch are retried, and its room is released

Threading: one thread receives from each worker; one waits for exits and starts replacements; any
thread may send.
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
from penstock.fuse.device import DeviceCalls
from penstock.fuse.peers import Inbox
from penstock.metrics import Counters
from penstock.units import MIB
from penstock.warm.prefetcher import Ended, Wanted

log = logging.getLogger(__name__)

# Room that a worker gets at once: what a fast store delivers in a tenth of a second.
_GRANT_BYTES = 64 * MIB
_SYNC_WITHIN_S = 10.0
_CLOSE_WITHIN_S = 4.0
_READY_WITHIN_S = 30.0
# For so long after the last fetch ahead, workers still hand over what others might be fetching.
_AHEAD_S = 2.0
# After so many crashes (kills do not count) in so short a time, the requests that the kernel sends
# again to each new worker are the likely cause.
_POISONED, _POISONED_S = 3, 60.0
# If workers end this often, the server ends too, and the supervisor starts everything again.
_MOST_ENDS, _MOST_ENDS_S = 30, 10.0


@dataclass(slots=True)
class _Totals:
    """What a worker has counted since it started."""

    requests: Counter[str] = field(default_factory=Counter[str])
    read_bytes: int = 0
    declined: int = 0
    fetching: int = 0
    buffered_bytes: int = 0
    shared_out: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, message: Message) -> "_Totals":
        return cls(
            Counter(message["requests"]),
            message["read_bytes"],
            message["declined"],
            message["fetching"],
            message["buffered_bytes"],
            message["shared_out"],
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

    def close(self) -> None:
        with self.lock:
            os.close(self.end)
            self.end = -1


class WorkerPool:
    """Also fetches for the server's prefetcher, and is the buffers of the server's cache."""

    def __init__(
        self,
        fork_server: ForkServer,
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
        on_random_reads: Callable[[int, int, int], None],
        on_outdated: Callable[[], None],
        on_damaged: Callable[[], None],
        on_unmounted: Callable[[], None],
        on_hopeless: Callable[[str], None],
    ) -> None:
        self.count = count
        self._fork_server = fork_server
        self._start_message = start
        self._directories = directories
        self._identities = identities
        self._block_bytes = block_bytes
        self._counters = counters
        self._owner_of = owner_of
        self._watchdog_s = watchdog_s
        self._on_reads = on_reads
        self._on_random_reads = on_random_reads
        self._on_outdated = on_outdated
        self._on_damaged = on_damaged
        self._on_unmounted = on_unmounted
        self._on_hopeless = on_hopeless
        self._workers: list[_Worker | None] = [None] * count
        self._inboxes = [Inbox.new() for _ in range(count + 1)]  # the server's is the last
        self._clones: list[int] = []
        # Memory that their file systems share, with what each worker is fetching.
        self._memory = os.memfd_create("penstock-workers", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, mmap.PAGESIZE + claims_bytes(count))
        self.shared = memoryview(mmap.mmap(self._memory, mmap.PAGESIZE)).cast("Q")
        self._changed = threading.Condition()
        self._ended_totals = _Totals()  # of workers that have ended
        self.restarts = 0
        self._ends: deque[float] = deque(maxlen=_MOST_ENDS)
        self._crashes: deque[float] = deque(maxlen=_POISONED)
        self._numbers = 0
        self._runs_until_s = 0.0
        self._refuse_resent = False
        self._is_ahead = False  # blocks are being fetched ahead, or were a moment ago
        self._fetched_ahead_s = 0.0
        self._started = False
        self._closing = False
        self._resend: Callable[[], None] = lambda: None
        self._keep: Callable[[str, int], None] = lambda _name, _descriptor: None
        for number, directory in enumerate(directories):
            directory.on_change = partial(self._send_directory_state, number)

    # -- start and end ------------------------------------------------------------------------

    def start(
        self,
        fuse: int,
        kept: Mapping[str, int],
        keep: Callable[[str, int], None],
        resend: Callable[[], None],
        calls: DeviceCalls,
        *,
        takeover: bool,
        refuse_resent: bool,
    ) -> None:
        """Return when all of them serve. `resend` asks the kernel to send unanswered requests
        again, of which there may be many after another server."""
        self._resend = resend
        self._keep = keep
        self._refuse_resent = refuse_resent
        for slot in range(self.count):
            self._spawn(slot)
        for name in (f"clone-{slot}" for slot in range(self.count)):
            if name in kept:
                self._clones.append(kept[name])
            else:
                self._clones.append(calls.clone(fuse))
                keep(name, self._clones[-1])
        for worker in self._running():
            if not worker.is_ready.wait(_READY_WITHIN_S):
                raise PenstockError(f"worker {worker.pid} was not ready in time")
        _wait_for_ends([kept[name] for name in kept if name.startswith("worker-")])
        if takeover:
            resend()
        self._started = True
        for worker in self._running():
            self._let_serve(worker)
        threading.Thread(target=self._wait_for_ends, name="ends", daemon=True).start()
        threading.Thread(target=self._watch, name="watch-workers", daemon=True).start()

    @property
    def inbox(self) -> Inbox:
        """The server's own inbox."""
        return self._inboxes[-1]

    @property
    def clones(self) -> Sequence[int]:
        return self._clones

    def close(self) -> None:
        """The mount is over: let the workers report what they have stored, and end."""
        with self._changed:
            self._closing = True
        self._send_all({"close": True})
        self._wait_until(lambda: not any(self._workers), _CLOSE_WITHIN_S)
        for worker in self._running():
            worker.kill()

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._running()]

    def _running(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker is not None]

    def _spawn(self, slot: int) -> None:
        link, theirs = Channel.pair()
        with theirs:
            forked = self._fork_server.spawn(theirs)
        worker = _Worker(slot, link, forked.pid, forked.end)
        # Before it may read a request: the next server waits for its end.
        self._keep(f"worker-{slot}", forked.end)
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
        threading.Thread(target=self._receive, args=(worker,), name="worker", daemon=True).start()

    def _let_serve(self, worker: _Worker) -> None:
        """Let a worker serve: from here on it takes requests."""
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
        while (ended := self._fork_server.next_end()) is not None:
            pid, status = ended
            for worker in self._running():
                if worker.pid == pid:
                    self._reap(worker, status)
        if not self._closing:
            self._on_hopeless("the process that forks workers is gone")

    def _reap(self, worker: _Worker, status: int) -> None:
        with self._changed:
            # Under one lock with the sums below: a total that fell for a moment would look to
            # Prometheus like a server that begins at 0 again.
            self._workers[worker.slot] = None
            totals, gone = worker.totals, self._ended_totals
            gone.requests += totals.requests
            gone.read_bytes += totals.read_bytes
            gone.declined += totals.declined
            self._changed.notify_all()
        worker.close()
        for number, length in worker.granted.items():
            self._directories[number].call(partial(CacheDirectory.give_back, length=length), None)
        with worker.lock:
            fetches_ahead, worker.fetches_ahead = worker.fetches_ahead, {}
        for wanted, ended in fetches_ahead.values():
            ended([(wanted, FetchResult(FetchOutcome.NO_ROOM, 0))])  # it is tried again
        if self._closing:
            return
        now_s = time.monotonic()
        self.restarts += 1
        self._ends.append(now_s)
        log.error("worker %d ended (%d); restart %d", worker.pid, status, self.restarts)
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
        """Kill workers that send nothing: they hang."""
        while not self._closing:
            time.sleep(min(1.0, self._watchdog_s / 6))
            now_s = time.monotonic()
            for worker in self._running():
                if worker.is_serving and now_s - worker.heard_s > self._watchdog_s:
                    log.error(
                        "worker %d: no message for %g s: killed", worker.pid, self._watchdog_s
                    )
                    worker.kill()
            if any(one.fetches_ahead for one in self._running()):
                self._fetched_ahead_s = now_s
            elif self._is_ahead and now_s - self._fetched_ahead_s > _AHEAD_S:
                self._is_ahead = False
                self._send_all({"ahead": False})
            if self._runs_until_s and now_s > self._runs_until_s:
                self._runs_until_s = 0.0
                self._send_all({"runs": False})

    # -- messages to workers -------------------------------------------------------------

    def _send_all(self, message: Message) -> None:
        for worker in self._running():
            if worker.is_serving:
                worker.link.send(message)

    def _send_directory_state(self, number: int) -> None:
        is_in = self._directories[number].is_available
        self._send_all({"in" if is_in else "out": number})
        for worker in self._running():
            # Granted room is lost with the directory, and starts at zero when it is back.
            with worker.lock:
                worker.granted[number] = 0
            if is_in and worker.is_serving:
                self._grant(worker, number, 0)

    def follow_runs(self, for_s: float) -> None:
        """Files are being read in the order of their listing: have workers report all reads of the
        next `for_s` seconds, cache hits included."""
        if not self._runs_until_s:
            self._send_all({"runs": True})
        self._runs_until_s = time.monotonic() + for_s

    def fetch_ahead(self, wanted: list[Wanted], ended: Ended) -> None:
        """Fetch each block in the worker that owns it. Once all workers know that blocks are
        fetched ahead, a worker that has to fetch for a reader hands that to the owner, too."""
        self._fetched_ahead_s = time.monotonic()
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
        blocks: list[tuple[int, int, int, bool, float]] = []
        with worker.lock:
            for one in some:
                if one in over:
                    continue
                self._numbers += 1
                worker.fetches_ahead[self._numbers] = one, ended
                blocks.append((self._numbers, one.ino, one.number, one.push, one.missing_since_s))
        if blocks and not worker.link.try_send({"fetch_ahead": blocks}):  # stopped, or gone
            with worker.lock:
                lost = [worker.fetches_ahead.pop(number, None) for number, *_ in blocks]
            ended(
                [(one[0], FetchResult(FetchOutcome.NO_ROOM, 0)) for one in lost if one is not None]
            )

    # What the cache of the server calls: see Fetches.

    def wait_until_stored(self, digest: bytes | None = None) -> None:
        """Returns when all that they have fetched so far is stored, and we know of it."""
        self._settle({}, digest)

    def _settle(self, message: Message, digest: bytes | None = None) -> None:
        """Send a message to all, and return when all have handled it."""
        with self._changed:
            self._numbers += 1
            number = self._numbers
        asked = [worker for worker in self._running() if worker.is_serving]
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
            self._send_all({"release": some})

    def drop_idle(self) -> None:
        self._send_all({"let_go": True})

    @property
    def in_flight(self) -> int:
        return sum(worker.totals.fetching for worker in self._running())

    @property
    def held_bytes(self) -> int:
        return sum(worker.totals.buffered_bytes for worker in self._running())

    @property
    def declined_blocks(self) -> int:
        with self._changed:
            return self._ended_totals.declined + sum(one.totals.declined for one in self._running())

    def requests(self) -> dict[str, int]:
        """How many requests of each kind the kernel has sent."""
        with self._changed:
            total = self._ended_totals.requests.copy()
            for worker in self._running():
                total += worker.totals.requests
        return dict(total)

    def read_bytes(self) -> int:
        with self._changed:
            running = sum(one.totals.read_bytes for one in self._running())
            return self._ended_totals.read_bytes + running

    def shared_out(self) -> dict[str, str]:
        """Return the members of the shared tier that a worker does without, and why."""
        found: dict[str, str] = {}
        for worker in self._running():
            found |= worker.totals.shared_out
        return found

    def describe(self) -> dict[str, Any]:
        """For `penstock stats`."""
        return {"count": self.count, "pids": self.pids(), "restarts": self.restarts}

    # -- messages from workers ------------------------------------------------------------------

    def _receive(self, worker: _Worker) -> None:
        while (received := worker.link.receive()) is not None:
            message, descriptors = received
            for descriptor in descriptors:
                os.close(descriptor)
            worker.heard_s = time.monotonic()
            for name, value in message.items():
                try:
                    self._handle(worker, name, value)
                except Exception:  # one bad message must not stop the others
                    log.exception("cannot handle the message %r of a worker", name)
        worker.link.close()

    def _handle(self, worker: _Worker, name: str, news: Any) -> None:
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
                self._counters.add_all(
                    [(counter, tuple(labels), amount) for counter, labels, amount in news]
                )
            case "totals":
                worker.totals = _Totals.of(news[-1])
            case "room":
                for number, length in news:
                    self._grant(worker, number, length)
            case "reads":
                for parent, ino in news:
                    self._on_reads(parent, ino)
            case "random":
                for ino, offset, length in news:
                    self._on_random_reads(ino, offset, length)
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
                worker.kill()  # it has reported everything
            case _:
                self._note_cache(name, news)

    def _take_over(self, worker: _Worker) -> None:
        """Let a replacement serve, and have the requests of its predecessor sent again."""
        self._let_serve(worker)
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
        """Reserve room for what a worker is about to store; with 0, only ahead of its needs."""
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
                log.warning("unknown message %r from a worker", name)

    def _wait_until(self, ready: Callable[[], bool], within_s: float) -> None:
        with self._changed:
            self._changed.wait_for(ready, within_s)


def reserve_for_worker(directory: CacheDirectory, *, length: int, held: int, workers: int) -> int:
    """Reserve `length` bytes, or more while there is much room; return how many. Room of one worker
    is missing to the others, so together they hold at most a quarter of what is free."""
    free_bytes = directory.high_bytes - directory.used_bytes
    share = min(_GRANT_BYTES, (free_bytes + held) // (4 * workers))
    ahead = share - held
    # Not for each file that it stores: only once part of its share is used.
    if ahead > max(length, share // 4) and directory.reserve(ahead):
        return ahead
    return length if length and directory.reserve(length) else 0


def _as_error(message: Message | None) -> Exception | None:
    if message is None:
        return None
    kind = getattr(errors, message["kind"], PenstockError)
    return kind(message["text"], hint=message["hint"])


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
