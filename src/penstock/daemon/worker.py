"""The main of a worker: takes requests from its own clone of /dev/fuse, and answers them.

It has all that a read needs: the catalog and the indexes of the caches (opened read-only), the
stores, memory for blocks. It changes no shared state: it reports to its server what it stores,
finds damaged or needs room for, and fetches ahead of readers what the server asks for.

    server to worker                           worker to server
    start    settings, its number, the         ready     it can serve
             parts of the catalog              stored    blocks that are in the cache now
    go       clones, inboxes, shared memory    brought   results of fetches ahead
    fetch_ahead  blocks to fetch ahead         room      it needs room in a directory
    room     bytes granted, or none            wrong, lost, used, failed: of the cache
    out, in  directories of the cache          reads     of small files, for runs of neighbours
    runs     whether cache hits matter         outdated  the bucket is newer than our listing
    ahead    whether fetches ahead go on       damaged   the catalog seems to be damaged
    release  objects, from memory              random    reads of cached parts of large files
                                               counts    to add to the server's counters
    let_go   free memory that is not needed    totals    its counts since it started
    sync     report all that you have done     synced    done
    close    the mount is over                 ended     the mount is over; closed: all reported

It is forked by the fork server and may be killed at any moment: the kernel sends its requests
again, to any worker.

Threading: one thread takes requests, one takes those that other processes hand over, the main
thread receives from the server, one sends reports, one is the watchdog's pulse; pools fetch.
"""

import logging
import mmap
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.cache.build import open_shared_tier
from penstock.cache.claims import Claims, claims_bytes
from penstock.cache.fetch import FetchResult
from penstock.cache.files import FileStamp
from penstock.cache.guarded import HUNG_S
from penstock.cache.identity import Block, CachedObject
from penstock.cache.indexfile import is_damage
from penstock.cache.policy import POLICIES
from penstock.cache.tiered import Cache
from penstock.cache.worker_tier import WorkerDirectory, WorkerTier
from penstock.catalog.tree import Tree
from penstock.daemon.channel import Channel, Message, receive_start
from penstock.daemon.log_file import stop_rotating
from penstock.daemon.process_setup import (
    DISK_WAITERS,
    LARGE_THREADS,
    collect_garbage_rarely,
    kernel_options,
    open_stores,
    yield_to_readers,
)
from penstock.errors import PenstockError
from penstock.fuse.handlers import Handlers
from penstock.fuse.peers import Peers, receive
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.settings import MountSettings, decode
from penstock.vfs.filesystem import FileSystem
from penstock.vfs.readahead import Readahead
from penstock.warm.prefetcher import LocalFetcher, Wanted
from penstock.warm.regions import LoadBudget

log = logging.getLogger(__name__)

# Reports of this time go in one message: each message costs the server a wake-up, which is dearer
# than its contents. Reports that the server waits for are sent sooner.
_GATHER_S = 0.01
_SOON = ("room", "synced", "closed", "ended", "failed", "outdated", "damaged")
# Reports of one kind in a message, so that it fits into 128 KiB.
_MOST_REPORTS = 128
_BEAT_S = 1.0
_CLOSE_WITHIN_S = 2.0


def main(link: Channel) -> None:
    """Run as a worker; called in a process that the fork server has forked."""
    _name_process()
    stop_rotating()
    yield_to_readers()
    collect_garbage_rarely()
    # Each worker has a Tokio runtime; with a thread for each core there would be hundreds.
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")
    start = receive_start(link)
    if start is None:
        return
    status = 0
    try:
        _Worker(link, start).run()
    except PenstockError as error:
        log.error("this worker ends: %s", error)
    except Exception:  # an internal error, which nobody would see otherwise
        log.exception("this worker ends")
        status = 1
    finally:
        logging.shutdown()
        os._exit(status)  # at once: threads may hang in a request


def receive_go(link: Channel) -> tuple[Message, list[int], list[Message]] | None:
    """Wait for `go`. Return it, its descriptors, and the messages that came before it; None if the
    server is gone.

    The server marks a worker as serving before it sends `go`, so that the worker misses no state
    that changes meanwhile. Another thread of the server may then send first.
    """
    early: list[Message] = []
    while (received := link.receive()) is not None:
        message, descriptors = received
        if "go" in message:
            return message["go"], descriptors, early
        early.append(message)
    return None


class ServerReports:
    """Sends reports to the server, in few messages. See Reporter for those of the cache."""

    def __init__(self, link: Channel, counters: Counters, sources: dict[str, int]) -> None:
        """`sources`: the numbers by which the server knows the stores."""
        self._link = link
        self._counters = counters
        self._sources = sources
        self._pending: deque[tuple[str, object]] = deque()
        # A new report wakes the sender only if it is idle, or the server waits for the report.
        self._any, self._soon = threading.Event(), threading.Event()
        self.runs = False  # are reads that hit the cache of interest?
        threading.Thread(target=self._send_all, name="reports", daemon=True).start()

    def add(self, name: str, value: object) -> None:
        self._pending.append((name, value))
        if name in _SOON:
            self._soon.set()
        if not self._any.is_set():
            self._any.set()

    def stored(
        self,
        directory: int,
        obj: CachedObject,
        block: Block,
        sums: bytes,
        stamp: FileStamp | None,
        is_new: bool,
    ) -> None:
        source = self._sources[obj.source]
        self.add(
            "stored",
            (
                directory,
                source,
                obj.key,
                obj.version,
                obj.size_bytes,
                block.number,
                sums.hex(),
                stamp,
                is_new,
            ),
        )

    def wants_room(self, directory: int, length: int) -> None:
        self.add("room", (directory, length))

    def wrong(self, directory: int, block: Block) -> None:
        self.add("wrong", (directory, block.digest.hex(), *block[1:]))

    def lost(self, directory: int, digest: bytes) -> None:
        self.add("lost", (directory, digest.hex()))

    def used(self, directory: int, digest: bytes) -> None:
        self.add("used", (directory, digest.hex()))

    def failed(self, directory: int, error: Exception) -> None:
        code = getattr(error, "errno", None)
        self.add("failed", (directory, code, str(error), is_damage(error)))

    def observe(self, parent: int, ino: int, *, is_stored: bool) -> None:
        """See SmallReadObserver. A reader that only hits the cache needs no help, unless the hits
        were fetched for it."""
        if self.runs or not is_stored:
            self.add("reads", (parent, ino))

    def random_read(self, ino: int, offset: int, length: int) -> None:
        self.add("random", (ino, offset, length))

    def outdated(self) -> None:
        self.add("outdated", True)

    def damaged(self) -> None:
        self.add("damaged", True)

    def _send_all(self) -> None:
        while True:
            self._any.wait()
            self._soon.wait(_GATHER_S)
            self._soon.clear()
            self._any.clear()  # before the last look: a report added now is seen, or wakes us again
            while self._pending:
                if not self._send(self._gather()):
                    return  # the server is gone, and so are we, soon

    def _gather(self) -> dict[str, list[object]]:
        """Return what fits into one message, in the order in which it was added."""
        message: dict[str, list[object]] = {}
        while self._pending:
            name, value = self._pending.popleft()
            values = message.setdefault(name, [])
            values.append(value)
            if len(values) >= _MOST_REPORTS or name in ("synced", "closed"):
                break
        return message

    def _send(self, message: dict[str, list[object]]) -> bool:
        counts: list[object] = list(self._counters.take())
        # Counts go first: after `synced`, the server has all that was counted before it.
        return self._link.send({"counts": counts, **message})


class RandomReadReports:
    """Reports random reads to the server. See RandomReadObserver."""

    def __init__(self, reports: ServerReports, settings: MountSettings) -> None:
        self._reports = reports
        self._budget = LoadBudget(settings.page_cache_bytes)

    def observe(self, ino: int, obj: CachedObject, offset: int, length: int) -> None:
        if obj.size_bytes <= self._budget.current_bytes():  # of larger files nothing is loaded
            self._reports.random_read(ino, offset, length)


class _Worker:
    def __init__(self, link: Channel, start: Message) -> None:
        self._link = link
        settings = self._settings = decode(start["settings"])
        self._number: int = start["number"]
        self._passthrough: bool = start["passthrough"]
        self._counters = Counters()
        self._tree = Tree(Path(start["catalog"]), read_only=True)
        stores, identities = open_stores(settings, start["sources"], self._tree, self._counters)
        self._reports = ServerReports(link, self._counters, identities)
        self._tree.on_damage = self._reports.damaged
        self._directories, tiers = _shared_tiers(settings, self._reports)
        share = max(settings.block_bytes, settings.buffer_bytes // start["workers"])
        self._cache = Cache(
            tiers,
            block_bytes=settings.block_bytes,
            buffer_bytes=share,
            large_threads=LARGE_THREADS,
            threads=settings.threads,
            deadline_s=settings.deadline_s,
            shared=open_shared_tier(
                settings.shared,
                settings.shared_key,
                self._counters,
                buffer_bytes=share,
                deadline_s=settings.deadline_s,
                workers=start["workers"],
                must_open=False,
            ),
            counters=self._counters,
        )
        self._stores = stores
        self._refuse_resent: bool = start["refuse_resent"]
        self._is_closing = threading.Event()

    def run(self) -> None:
        self._link.send({"ready": True})
        received = receive_go(self._link)
        if received is None:
            return
        go, descriptors, early = received
        self._serve(go, descriptors)
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        for message in early:
            self._handle_all(message)
        while (later := self._link.receive()) is not None:
            self._handle_all(later[0])

    def _handle_all(self, message: Message) -> None:
        for name, value in message.items():
            self._handle(name, value)

    # -- wiring -------------------------------------------------------------------------

    def _serve(self, go: Message, descriptors: list[int]) -> None:
        settings, count = self._settings, go["workers"]
        clones = descriptors[:count]
        *senders, inbox = (socket.socket(fileno=one) for one in descriptors[count:-1])
        memory = mmap.mmap(descriptors[-1], mmap.PAGESIZE + claims_bytes(count))
        shared = memoryview(memory)[: mmap.PAGESIZE].cast("Q")
        claims = Claims(memory, mmap.PAGESIZE, self._number, count)
        peers = self._peers = Peers(self._number, senders, claims, settings.deadline_s)
        self._cache.fetches.claims = claims
        session = self._session = Session(
            clones[self._number], DISK_WAITERS, self._counters, max_receivers=settings.threads
        )
        if self._refuse_resent:
            session.refuse_resent()
        self._files = FileSystem(
            self._tree,
            self._stores,
            self._cache,
            Readahead(settings.block_bytes, settings.prefetch_blocks),
            self._reports.outdated,
            self._reports if settings.prefetch_blocks else None,
            peers,
            shared,
            None if self._passthrough else RandomReadReports(self._reports, settings),
        )
        push = None if self._passthrough else session.store_pages
        self._fetcher = LocalFetcher(self._files, push, self._counters)
        peers.others_prefetch = go["ahead"]
        for number in go["in"]:
            self._directories[number].enable()
        handlers = Handlers(
            self._files, kernel_options(settings), None, lambda _agreed: None, peers
        )
        table = handlers.table()
        forwarded = Session(clones[self._number], DISK_WAITERS, self._counters)
        forwarded.set_handlers(table)
        self._forwarded = forwarded
        threading.Thread(
            target=receive,
            args=(inbox, forwarded, clones, self._prefetch),
            name="inbox",
            daemon=True,
        ).start()
        session.start(handlers.worker_table(passthrough=self._passthrough), on_end=self._end)

    def _prefetch(self, ino: int, number: int, window: int) -> None:
        try:
            self._files.prefetch(ino, number, window)
        except (PenstockError, OSError) as error:
            log.debug("inode %d was not fetched ahead: %s", ino, error)

    def _end(self) -> None:
        """The mount is over: the server closes everything, workers too."""
        self._reports.add("ended", True)

    # -- messages of the server -----------------------------------------------------------------

    def _handle(self, name: str, value: Any) -> None:
        handlers: dict[str, Callable[[Any], None]] = {
            "fetch_ahead": self._fetch_ahead,
            "room": self._grant,
            "out": self._take_out,
            "in": self._put_in,
            "runs": self._follow_runs,
            "ahead": self._note_ahead,
            "release": self._release,
            "let_go": self._free_memory,
            "sync": self._sync,
            "close": self._close,
        }
        handlers[name](value)

    def _fetch_ahead(self, wanted: list[tuple[int, int, int, bool, float]]) -> None:
        for number, ino, block, push, missing_since_s in wanted:
            self._fetcher.fetch_ahead(
                [Wanted(ino, block, push, missing_since_s, _ignore)],
                partial(self._note_outcomes, number),
            )

    def _note_outcomes(self, number: int, ends: list[tuple[Wanted, FetchResult]]) -> None:
        for _, result in ends:
            self._reports.add("brought", _encode_result(number, result))

    def _grant(self, granted: list[tuple[int, int]]) -> None:
        for directory, length in granted:
            self._directories[directory].room.grant(length)

    def _take_out(self, directory: int) -> None:
        self._directories[directory].disable()

    def _put_in(self, directory: int) -> None:
        self._directories[directory].enable()

    def _follow_runs(self, value: bool) -> None:
        self._reports.runs = value

    def _note_ahead(self, value: bool) -> None:
        self._peers.others_prefetch = value

    def _release(self, digests: list[str]) -> None:
        gone = [bytes.fromhex(digest) for digest in digests]
        self._cache.fetches.release_objects(gone)
        for directory in self._directories:
            directory.forget(gone)

    def _free_memory(self, _value: bool) -> None:
        self._cache.drop_idle()

    def _sync(self, sync: tuple[int, str | None]) -> None:
        """In a thread: storing may take a while, and other messages must not wait for it."""
        number, digest = sync

        def wait_until_stored() -> None:
            self._cache.wait_until_stored(None if digest is None else bytes.fromhex(digest))
            if self._cache.shared is not None:
                self._cache.shared.wait_until_filled(_CLOSE_WITHIN_S)
            self._report_totals()
            self._reports.add("synced", number)

        threading.Thread(target=wait_until_stored, name="sync", daemon=True).start()

    def _close(self, _value: bool) -> None:
        if not self._is_closing.is_set():
            self._is_closing.set()

            def close() -> None:
                self._fetcher.close()
                self._cache.fetches.close(_CLOSE_WITHIN_S)
                self._report_totals()
                self._reports.add("closed", True)

            threading.Thread(target=close, name="close", daemon=True).start()

    def _report_totals(self) -> None:
        requests = self._session.requests()
        read_bytes = self._session.read_bytes() + self._forwarded.read_bytes()
        fetches, shared = self._cache.fetches, self._cache.shared
        self._reports.add(
            "totals",
            {
                "requests": requests,
                "read_bytes": read_bytes,
                "fetching": fetches.in_flight,
                "buffered_bytes": fetches.held_bytes,
                "declined": fetches.declined_blocks,
                "shared_out": {} if shared is None else shared.out_of_service(),
            },
        )

    def _beat(self) -> None:
        while True:
            time.sleep(min(_BEAT_S, self._settings.watchdog_s / 6))
            for directory in self._directories:
                directory.check_for_hang()
            self._session.replace_stuck_receivers(HUNG_S + 1)
            for session in (self._session, self._forwarded):
                session.retry_parked(self._settings.deadline_s)
            if self._session.stuck_for_s() < self._settings.watchdog_s:
                self._report_totals()


def _shared_tiers(
    settings: MountSettings, reports: ServerReports
) -> tuple[list[WorkerDirectory], list[WorkerTier]]:
    """Directories are numbered in the order in which the settings name them."""
    tracks_use = POLICIES[settings.policy]().tracks_use
    directories: list[WorkerDirectory] = []
    tiers: list[WorkerTier] = []
    for spec in settings.tiers:
        some = [
            WorkerDirectory(len(directories) + at, path, reports, tracks_use=tracks_use)
            for at, path in enumerate(spec.paths)
        ]
        directories += some
        tiers.append(WorkerTier(spec.medium, some))
    return directories, tiers


def _encode_result(
    number: int, result: FetchResult
) -> tuple[int, str, int, float | None, Message | None]:
    error = None
    if result.error is not None:
        error = {
            "kind": type(result.error).__name__,
            "text": str(result.error),
            "hint": getattr(result.error, "hint", None),
        }
    return number, result.outcome.value, result.length, result.took_s, error


def _ignore(_result: FetchResult) -> None:
    """The report to the server is enough."""


def _name_process() -> None:
    with open("/proc/self/comm", "w") as file:
        file.write("penstock-worker")
