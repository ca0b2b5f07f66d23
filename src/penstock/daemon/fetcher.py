"""A fetcher: `python -Pm penstock.daemon.fetcher MOUNTPOINT LINK [FUSE]`, started by a server.

It fetches small objects whole, writes each where the server has kept room for it in the cache, and
puts it into the kernel's page cache if that is wanted. It has the server's settings, over the link
and not as arguments, and its own connections and interpreter's lock: that is all that it is for.
It tries once. What fails is told, and the server, which has patience, does it itself.

    server to fetcher                          fetcher to server
    start    settings                          ready    it can be told what to fetch
    fetch    [number, store, key, version,     stored   [number, seconds, checksums]: they lie in
              size, path, inode or 0]                    the cache
                                               pushed   [number, whether the kernel took it]
                                               failed   [number, what had happened]
                                               counts   what to add to the server's counters

Why `stored` is told before a push: who reads a file that is on its way holds its pages locked until
the server answers, which it does when it hears this; and a push waits for locked pages.

It never reads /dev/fuse. It ends with its server, however that ends.

Threading: one takes messages, a pool fetches, one tells, one pushes.
"""

import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import Any

from typing_extensions import Buffer

from penstock.cache import files
from penstock.cache.indexfile import is_full
from penstock.cache.integrity import checksums
from penstock.cache.pool import Pool
from penstock.daemon.hardening import keep_memory_private
from penstock.daemon.link import Link, receive_start
from penstock.daemon.settings_codec import decode
from penstock.errors import AccessDenied, ObjectChanged, ObjectNotFound, PenstockError, StoreError
from penstock.fuse.session import store_pages
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.reliable import open_plain_store
from penstock.store.secrets import LOG_FORMAT, RedactingFormatter

log = logging.getLogger(__name__)

# 256 are in flight at most, shared by four.
_THREADS = 64
# What ends meanwhile is told in one message. Each costs the server a wake-up, which is dearer than
# the news in it; and a reader who came too early has waited for much longer.
_GATHER_S = 0.004
_PR_SET_PDEATHSIG = 1

MISMATCH = "mismatch"  # see penstock.store.verified
# What had happened. Of a rewritten object the fetcher is not to blame.
FULL, DENIED, CHANGED, DISK = "full", "denied", "changed", "disk"


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the server's own is inherited
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    keep_memory_private()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    _, _, link_number, *fuse = sys.argv
    link = Link(socket.socket(fileno=int(link_number)))
    start = receive_start(link)
    if start is not None:
        counters = Counters()
        try:
            stores = [
                open_plain_store(part.source, part.store, counters)
                for part in decode(start["settings"]).parts
            ]
        except PenstockError as error:
            log.warning("a fetcher cannot open its stores: %s", error)
        else:
            _Fetcher(link, stores, counters, int(fuse[0]) if fuse else None).run()
    logging.shutdown()
    os._exit(0)  # at once: threads may hang in a request


class _Fetcher:
    def __init__(
        self, link: Link, stores: list[Store], counters: Counters, fuse: int | None
    ) -> None:
        self._link = link
        self._stores = stores
        self._counters = counters
        self._pool = Pool(_THREADS, "get")
        self._report = _Report(link, counters, fuse)

    def run(self) -> None:
        """Until the server is gone, or wants no more."""
        self._link.send({"ready": True})
        while (received := self._link.receive()) is not None:
            for told in received[0].get("fetch", ()):
                self._pool.put(partial(self._fetch, *told))

    def _fetch(
        self, number: int, store: int, key: str, version: str, size: int, path: str, ino: int
    ) -> None:
        started_s = time.monotonic()
        try:
            data = memoryview(self._get(self._stores[store], key, version, size))
            took_s = time.monotonic() - started_s
            stamp, _ = files.write_file(path, size, 0, data)
        except (PenstockError, OSError) as error:
            log.debug("%s was not fetched: %s", key, error)
            self._report.failed(number, _what_happened(error))
            return
        if stamp is None:
            self._report.failed(number, DISK)
            return
        self._report.stored(number, took_s, checksums(data), ino, data)

    def _get(self, store: Store, key: str, version: str, size: int) -> Buffer:
        try:
            return store.get(key, version, 0, size, size)
        except StoreError as error:
            if error.kind != MISMATCH:
                raise
        # Here and now: that ETags are no MD5s is only seen by the same body twice.
        self._counters.add("store_retries", label=MISMATCH)
        return store.get(key, version, 0, size, size)


class _Report:
    """Tells the server, in as few messages as it takes, and pushes what it has told."""

    def __init__(self, link: Link, counters: Counters, fuse: int | None) -> None:
        self._link = link
        self._counters = counters
        self._fuse = fuse
        self._some = threading.Condition()
        self._said: dict[str, list[Any]] = {}
        self._to_push: list[tuple[int, int, memoryview]] = []
        self._pushes: queue.SimpleQueue[tuple[int, int, memoryview]] = queue.SimpleQueue()
        threading.Thread(target=self._tell, name="tell", daemon=True).start()
        if fuse is not None:
            threading.Thread(target=self._push, args=(fuse,), name="push", daemon=True).start()

    def stored(self, number: int, took_s: float, sums: bytes, ino: int, data: memoryview) -> None:
        push = (number, ino, data) if ino and self._fuse is not None else None
        self._say("stored", (number, round(took_s, 6), sums.hex()), push)

    def failed(self, number: int, what: str) -> None:
        self._say("failed", (number, what))

    def _say(
        self, name: str, news: object, push: tuple[int, int, memoryview] | None = None
    ) -> None:
        with self._some:
            self._said.setdefault(name, []).append(news)
            if push is not None:
                self._to_push.append(push)
            self._some.notify()

    def _tell(self) -> None:
        while True:
            with self._some:
                while not self._said:
                    self._some.wait()
                said, self._said = self._said, {}
                to_push, self._to_push = self._to_push, []
            if counts := self._counters.take():
                said["counts"] = counts
            if not self._link.send(said):
                return  # whoever waits for messages sees it, too
            for push in to_push:
                self._pushes.put(push)
            del to_push[:]
            time.sleep(_GATHER_S)

    def _push(self, fuse: int) -> None:
        while True:
            number, ino, data = self._pushes.get()
            try:
                placed = store_pages(fuse, ino, 0, data)
            except OSError as error:
                log.warning("inode %d was not pushed: %s", ino, error)
                placed = False
            del data  # not while nothing is to be pushed
            self._say("pushed", (number, placed))


def _what_happened(error: Exception) -> str:
    if isinstance(error, (ObjectChanged, ObjectNotFound)):
        return CHANGED
    if isinstance(error, StoreError):
        return error.kind
    if isinstance(error, AccessDenied):
        return DENIED
    return FULL if isinstance(error, OSError) and is_full(error) else DISK


if __name__ == "__main__":
    main()
