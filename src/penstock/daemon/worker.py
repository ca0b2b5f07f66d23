"""A worker: takes requests from its own clone of /dev/fuse, and answers them.

It has all that a read needs: the catalog and the indexes of the caches (opened read-only), the
stores, memory for blocks. It decides nothing that lasts. What it stores, finds damaged, or needs
room for, it tells its server; what the server wants fetched ahead of readers, it fetches.

    server to worker                           worker to server
    start    settings, its number, the         ready     it can be let go
             parts of the catalog              stored    blocks that lie in the cache now
    go       clones, inboxes, shared memory    brought   what became of what was wanted ahead
    bring    blocks to fetch ahead             room      that it needs some, in a directory
    room     so many bytes, or none            wrong, lost, used, failed: of the cache
    out, in  directories of the cache          reads     of small files, for runs of neighbours
    runs     whether reads that hit matter     outdated  the bucket is ahead of our listing
    ahead    whether anything is brought       damaged   the catalog, as far as we can see
    release  objects, from memory              counts    what to add to the server's counters
    let_go   of memory that is not needed      totals    what it has counted in its life
    sync     tell all that you have done       synced    done
    close    the mount is over                 ended     the mount is over; closed: all is told

It is a child of the nursery and may be killed at any moment: the kernel sends its requests again,
to any worker.

Threading: one takes requests, one what other processes hand over, one messages of the server (the
main thread), one tells, one beats; pools fetch.
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

from penstock.cache.claims import Claims, claims_bytes
from penstock.cache.fetch import FetchResult
from penstock.cache.files import FileStamp
from penstock.cache.guarded import HUNG_S
from penstock.cache.identity import Block, CachedObject
from penstock.cache.indexfile import is_damage
from penstock.cache.policy import POLICIES
from penstock.cache.shared import SharedDirectory, SharedTier
from penstock.cache.tiered import Cache
from penstock.catalog.tree import Tree
from penstock.daemon.channel import Channel, Message, receive_start
from penstock.daemon.log_file import stop_rotating
from penstock.daemon.process_setup import (
    DISK_WAITERS,
    LARGE_THREADS,
    collect_garbage_seldom,
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

log = logging.getLogger(__name__)

# What happens meanwhile is told in one message. Each costs the server a wake-up, which is dearer
# than the news in it. What someone waits for is told sooner.
_GATHER_S = 0.01
_SOON = ("room", "synced", "closed", "ended", "failed", "outdated", "damaged")
# News of one kind in a message, so that it fits into 128 KiB.
_MOST_NEWS = 128
_BEAT_S = 1.0
_CLOSE_WITHIN_S = 2.0


def main(link: Channel) -> None:
    """What a child of the nursery does."""
    _name_process()
    stop_rotating()
    yield_to_readers()
    collect_garbage_seldom()
    # Each has a runtime of its own; with a thread for each core there would be hundreds.
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")
    start = receive_start(link)
    if start is None:
        return
    try:
        _Worker(link, start).run()
    except PenstockError as error:
        log.error("a worker ends: %s", error)
    finally:
        logging.shutdown()
        os._exit(0)  # at once: threads may hang in a request


class Reports:
    """Tells the server, in as few messages as it takes. See Reporter for those of the cache."""

    def __init__(self, link: Channel, counters: Counters, sources: dict[str, int]) -> None:
        """`sources`: the numbers by which the server knows the stores."""
        self._link = link
        self._counters = counters
        self._sources = sources
        self._news: deque[tuple[str, object]] = deque()
        # Who has news wakes nobody, unless all were told, or someone waits for them.
        self._some, self._soon = threading.Event(), threading.Event()
        self.runs = False  # are reads that hit the cache of interest?
        threading.Thread(target=self._tell, name="tell", daemon=True).start()

    def say(self, name: str, news: object) -> None:
        self._news.append((name, news))
        if name in _SOON:
            self._soon.set()
        if not self._some.is_set():
            self._some.set()

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
        self.say(
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
        self.say("room", (directory, length))

    def wrong(self, directory: int, block: Block) -> None:
        self.say("wrong", (directory, block.digest.hex(), *block[1:]))

    def lost(self, directory: int, digest: bytes) -> None:
        self.say("lost", (directory, digest.hex()))

    def used(self, directory: int, digest: bytes) -> None:
        self.say("used", (directory, digest.hex()))

    def failed(self, directory: int, error: Exception) -> None:
        code = getattr(error, "errno", None)
        self.say("failed", (directory, code, str(error), is_damage(error)))

    def observe(self, parent: int, ino: int, *, is_stored: bool) -> None:
        """See SmallReadObserver. A reader that only hits the cache needs no help, unless what it
        hits was fetched for it."""
        if self.runs or not is_stored:
            self.say("reads", (parent, ino))

    def outdated(self) -> None:
        self.say("outdated", True)

    def damaged(self) -> None:
        self.say("damaged", True)

    def _tell(self) -> None:
        while True:
            self._some.wait()
            self._soon.wait(_GATHER_S)
            self._soon.clear()
            self._some.clear()  # before the last look: what comes now is seen, or wakes us again
            while self._news:
                if not self._send(self._gather()):
                    return  # the server is gone, and we are about to be

    def _gather(self) -> dict[str, list[object]]:
        """What fits into one message, in the order in which it was said."""
        message: dict[str, list[object]] = {}
        while self._news:
            name, news = self._news.popleft()
            told = message.setdefault(name, [])
            told.append(news)
            if len(told) >= _MOST_NEWS or name in ("synced", "closed"):
                break
        return message

    def _send(self, message: dict[str, list[object]]) -> bool:
        counts: list[object] = list(self._counters.take())
        # First: who is told that we are in step knows all that we have counted.
        return self._link.send({"counts": counts, **message})


class _Worker:
    def __init__(self, link: Channel, start: Message) -> None:
        self._link = link
        settings = self._settings = decode(start["settings"])
        self._number: int = start["number"]
        self._passthrough: bool = start["passthrough"]
        self._counters = Counters()
        self._tree = Tree(Path(start["catalog"]), read_only=True)
        stores, identities = open_stores(settings, start["sources"], self._tree, self._counters)
        self._reports = Reports(link, self._counters, identities)
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
            counters=self._counters,
        )
        self._stores = stores
        self._refuse_resent: bool = start["refuse_resent"]
        self._is_closing = threading.Event()

    def run(self) -> None:
        self._link.send({"ready": True})
        received = self._link.receive()
        if received is None:
            return
        message, descriptors = received
        self._serve(message["go"], descriptors)
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        while (received := self._link.receive()) is not None:
            for name, value in received[0].items():
                self._obey(name, value)

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
        )
        push = None if self._passthrough else session.store_pages
        self._fetcher = LocalFetcher(self._files, push, self._counters)
        peers.others_fetch = go["ahead"]
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
        """The mount is over: the server puts everything away, us too."""
        self._reports.say("ended", True)

    # -- the server's words -----------------------------------------------------------------

    def _obey(self, name: str, value: Any) -> None:
        obey: dict[str, Callable[[Any], None]] = {
            "fetch_ahead": self._fetch_ahead,
            "room": self._grant,
            "out": self._take_out,
            "in": self._let_in,
            "runs": self._follow_runs,
            "ahead": self._note_ahead,
            "release": self._release,
            "let_go": self._let_go,
            "sync": self._sync,
            "close": self._close,
        }
        obey[name](value)

    def _fetch_ahead(self, wanted: list[tuple[int, int, int, bool, float]]) -> None:
        for number, ino, block, push, missing_since_s in wanted:
            self._fetcher.fetch_ahead(
                [Wanted(ino, block, push, missing_since_s, _ignore)],
                partial(self._note_outcomes, number),
            )

    def _note_outcomes(self, number: int, ends: list[tuple[Wanted, FetchResult]]) -> None:
        for _, arrival in ends:
            self._reports.say("brought", _as_news(number, arrival))

    def _grant(self, granted: list[tuple[int, int]]) -> None:
        for directory, length in granted:
            self._directories[directory].room.grant(length)

    def _take_out(self, directory: int) -> None:
        self._directories[directory].disable()

    def _let_in(self, directory: int) -> None:
        self._directories[directory].enable()

    def _follow_runs(self, value: bool) -> None:
        self._reports.runs = value

    def _note_ahead(self, value: bool) -> None:
        self._peers.others_fetch = value

    def _release(self, digests: list[str]) -> None:
        gone = [bytes.fromhex(digest) for digest in digests]
        self._cache.fetches.release_objects(gone)
        for directory in self._directories:
            directory.forget(gone)

    def _let_go(self, _value: bool) -> None:
        self._cache.drop_idle()

    def _sync(self, sync: tuple[int, str | None]) -> None:
        """In a thread: what is being stored may take a while, and other words must not wait."""
        number, digest = sync

        def wait_until_stored() -> None:
            self._cache.wait_until_stored(None if digest is None else bytes.fromhex(digest))
            self._say_totals()
            self._reports.say("synced", number)

        threading.Thread(target=wait_until_stored, name="sync", daemon=True).start()

    def _close(self, _value: bool) -> None:
        if not self._is_closing.is_set():
            self._is_closing.set()

            def close() -> None:
                self._fetcher.close()
                self._cache.fetches.close(_CLOSE_WITHIN_S)
                self._say_totals()
                self._reports.say("closed", True)

            threading.Thread(target=close, name="close", daemon=True).start()

    def _say_totals(self) -> None:
        requests = self._session.requests()
        read_bytes = self._session.read_bytes() + self._forwarded.read_bytes()
        fetches = self._cache.fetches
        self._reports.say(
            "totals",
            {
                "requests": requests,
                "read_bytes": read_bytes,
                "fetching": fetches.in_flight,
                "buffered_bytes": fetches.held_bytes,
                "declined": fetches.declined_blocks,
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
                self._say_totals()


def _shared_tiers(
    settings: MountSettings, reports: Reports
) -> tuple[list[SharedDirectory], list[SharedTier]]:
    """Directories are numbered in the order in which the settings name them."""
    tracks_use = POLICIES[settings.policy]().tracks_use
    directories: list[SharedDirectory] = []
    tiers: list[SharedTier] = []
    for spec in settings.tiers:
        some = [
            SharedDirectory(len(directories) + at, path, reports, tracks_use=tracks_use)
            for at, path in enumerate(spec.paths)
        ]
        directories += some
        tiers.append(SharedTier(spec.medium, some))
    return directories, tiers


def _as_news(
    number: int, arrival: FetchResult
) -> tuple[int, str, int, float | None, Message | None]:
    error = None
    if arrival.error is not None:
        error = {
            "kind": type(arrival.error).__name__,
            "text": str(arrival.error),
            "hint": getattr(arrival.error, "hint", None),
        }
    return number, arrival.outcome.value, arrival.length, arrival.took_s, error


def _ignore(_arrival: FetchResult) -> None:
    """The server is told, and tells whoever wanted it."""


def _name_process() -> None:
    with open("/proc/self/comm", "w") as file:
        file.write("penstock-worker")
