"""`penstock warm` on the server's side: one conversation for each, over the control socket.

The asker is told how far it is a few times a second, and at the end what is the truth. An asker
that is gone has stopped it: nothing is kept of a load but what it has cached.

Threading: any thread; each conversation runs in its own.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.cache.contents import Contents
from penstock.cache.guarded import GuardedDirectory
from penstock.catalog.file_set import ORDERS, Selection
from penstock.catalog.names import decode
from penstock.daemon.control_socket import Answer, Connection
from penstock.errors import UsageError
from penstock.vfs.filesystem import FileSystem
from penstock.warm.load import FAILURES_NAMED, Load, PagePush, TierRoom, fits_for_sure
from penstock.warm.pace import RateLimit
from penstock.warm.page_cache import (
    FilePages,
    MountPages,
    PageBudget,
    PageCacheProbe,
    Pages,
    read_through,
)
from penstock.warm.prefetcher import Prefetcher
from penstock.warm.selection import select
from penstock.warm.survey import Report, batches, survey

_TELL_S = 0.2
_WAIT_S = 0.05
_PROBED_WITHIN_S = 5.0  # a disk that hangs is not waited for


class _AskerIsGone(Exception):
    pass


class WarmRequests:
    def __init__(
        self,
        files: FileSystem,
        prefetcher: Prefetcher,
        budget: PageBudget,
        mountpoint: Path,
        *,
        passthrough: bool,
        is_held: Callable[[int], bool],
        drop_pages: Callable[[int], None],
    ) -> None:
        """`is_held`: does the kernel hold this inode?"""
        self._files = files
        self._prefetcher = prefetcher
        self._budget = budget
        self._mountpoint = mountpoint
        self._passthrough = passthrough
        self._is_held = is_held
        self._drop_pages = drop_pages

    def converse(self, request: Answer, line: Connection, descriptors: list[int]) -> None:
        """The verb `warm` of the control socket. With it comes a file of paths, each ended by NUL:
        so many `patterns` first, then such as mean themselves; none at all are everything."""
        work = {
            "load": self._load,
            "check": self._check,
            "verify": self._verify,
            "evict": self._evict,
            "list": self._list,
        }[request["action"]]
        teller = _Teller(line)
        try:
            selection = self._select(request, descriptors)
            answer = work(request | {"output": descriptors[-1]}, selection, teller)
            teller.send({"done": answer})
        except _AskerIsGone:
            pass
        for descriptor in descriptors:
            os.close(descriptor)
        line.close()

    def _select(self, request: Answer, descriptors: list[int]) -> Selection:
        order = request.get("order", "name")
        if order not in ORDERS:
            raise UsageError(f"an unknown order: {order}")
        if not descriptors:
            raise UsageError("a list of paths has to come with it")
        paths = _read_paths(descriptors[0])
        patterns = list(islice(paths, int(request["patterns"])))
        everything = bool(request["everything"])
        return select(
            self._files.tree,
            patterns,
            paths,
            order,
            everything=everything,
            skip_missing=bool(request.get("skip_missing")),
        )

    # -- what is done ----------------------------------------------------------------------

    def _load(self, request: Answer, selection: Selection, teller: "_Teller") -> Answer:
        tiers, page_cache = self._files.cache.tiers, bool(request.get("page_cache"))
        if not tiers and not page_cache:
            raise UsageError(
                "this mount has no cache to fill",
                hint="mount it without --no-cache, or warm the page cache with --page-cache",
            )
        self._look_after_cache(teller)
        times_out = self._times_out()
        room = self._find_room(selection, teller)
        rate, concurrency = request.get("bytes_per_s"), request.get("concurrency")
        push = None
        if page_cache and not self._passthrough:
            push = PagePush(PageCacheProbe(self._mountpoint), self._budget)
        load = Load(
            self._files,
            selection,
            room=room,
            push=push,
            rate_limit=RateLimit(int(rate)) if rate else None,
            concurrency=concurrency,
            wake=self._prefetcher.wake,
        )
        self._prefetcher.add(load)
        try:
            while load.advance(_WAIT_S):
                teller.tell(lambda: {"phase": "loading", **_totals(selection), **load.describe()})
        finally:
            self._prefetcher.remove(load)
            load.close()
            if push is not None:
                push.probe.close()
        told = load.describe()
        if page_cache and self._passthrough:
            told |= self._read_through(selection, teller)
        # What was fetched may have been declined, or driven out by others: only a look tells.
        report = self._survey(selection, teller, page_cache=page_cache)
        return (
            told
            | report.as_message()
            | {
                "page_cache_budget_bytes": self._budget.kept_bytes,
                "cache_problem": self._describe_outage(times_out),
            }
        )

    def _look_after_cache(self, teller: "_Teller") -> None:
        """A directory that someone has removed is made anew now, and filled."""
        for directory in self._directories:
            directory.check_now()
        until_s = time.monotonic() + _PROBED_WITHIN_S
        while any(one.is_probing for one in self._directories) and time.monotonic() < until_s:
            teller.look_up()
            time.sleep(_WAIT_S)

    def _times_out(self) -> int:
        return sum(directory.outages for directory in self._directories)

    def _describe_outage(self, times_out_before: int) -> str | None:
        """Return why the tiers may hold less than they have room for."""
        found = [directory.status() for directory in self._directories]
        for one in found:
            if one.state == "out":
                return f"cache directory {one.path} is out: {one.error}"
        if self._times_out() > times_out_before:
            return "a cache directory failed meanwhile; the same command goes on where it was"
        return None

    @property
    def _directories(self) -> list[GuardedDirectory]:
        return [one for tier in self._files.cache.tiers for one in tier.directories]

    def _find_room(self, selection: Selection, teller: "_Teller") -> TierRoom | None:
        tiers = self._files.cache.tiers
        if not tiers or fits_for_sure(tiers, selection.size_bytes):
            teller.send({"start": _totals(selection) | {"fits": True}})
            return None
        report = self._survey(selection, teller, page_cache=False)
        room = TierRoom(tiers, lambda tier, share: report.share_bytes.get((tier, share), 0))
        missing = report.size_bytes - report.cached_bytes
        fits = missing <= room.free_bytes
        teller.send(
            {
                "start": _totals(selection)
                | {
                    "fits": fits,
                    "cached_bytes": report.cached_bytes,
                    "room_bytes": room.free_bytes,
                    "fitting_bytes": report.cached_bytes + min(missing, room.free_bytes),
                }
            }
        )
        return room

    def _read_through(self, selection: Selection, teller: "_Teller") -> Answer:
        """Passthrough: the kernel keeps pages of the cache's own files, once these were read."""
        reserved = unpushed = unpushed_bytes = 0

        def tick(looked: int) -> None:
            teller.tell(lambda: {"phase": "reading", **_totals(selection), "looked_files": looked})

        try:
            for found, _ in batches(self._files, selection, tick):
                for file in found:
                    size = file.obj.size_bytes
                    path = self._files.cache.complete_file(file.obj)
                    if path is not None and self._budget.reserve(size):
                        reserved += size
                        read_through(str(path))
                    elif size:
                        unpushed, unpushed_bytes = unpushed + 1, unpushed_bytes + size
        finally:
            self._budget.give_back(reserved)
        return {"unpushed_files": unpushed, "unpushed_bytes": unpushed_bytes}

    def _check(self, _request: Answer, selection: Selection, teller: "_Teller") -> Answer:
        return self._survey(selection, teller, page_cache=True).as_message()

    def _verify(self, _request: Answer, selection: Selection, teller: "_Teller") -> Answer:
        contents = Contents(self._files.cache)
        verified_files = verified_bytes = damaged = blocks = 0
        named: list[dict[str, str]] = []

        def tick(looked: int) -> None:
            teller.tell(
                lambda: {
                    "phase": "verifying",
                    **_totals(selection),
                    "looked_files": looked,
                    "done_files": looked,
                    "done_bytes": verified_bytes,
                }
            )

        for found, _ in batches(self._files, selection, tick):
            held = contents.lookup([file.obj for file in found])
            for file, one in zip(found, held, strict=True):
                if not any(one.tier_bytes):
                    continue
                verified_files += 1
                verified_bytes += sum(one.tier_bytes)
                if wrong := contents.verify(file.obj):
                    damaged, blocks = damaged + 1, blocks + wrong
                    if len(named) < FAILURES_NAMED:
                        path = decode(self._files.path_of(file.node))
                        named.append({"path": path, "why": f"{wrong} blocks dropped"})
                teller.look_up()
        return {
            "files": len(selection.inos),
            "verified_files": verified_files,
            "verified_bytes": verified_bytes,
            "damaged_files": damaged,
            "damaged_blocks": blocks,
            "damaged": named,
        }

    def _evict(self, _request: Answer, selection: Selection, teller: "_Teller") -> Answer:
        contents = Contents(self._files.cache)
        freed = 0

        def tick(looked: int) -> None:
            teller.tell(
                lambda: {
                    "phase": "evicting",
                    **_totals(selection),
                    "looked_files": looked,
                    "done_files": looked,
                    "done_bytes": freed,
                }
            )

        for found, _ in batches(self._files, selection, tick):
            freed += contents.remove([file.obj for file in found])
            for file in found:
                self._drop_pages(file.node.ino)
        return {"files": len(selection.inos), "bytes": selection.size_bytes, "freed_bytes": freed}

    def _list(self, request: Answer, selection: Selection, teller: "_Teller") -> Answer:
        """What is cached, one JSON line for each file of which something is, into the second file
        that came with the request."""
        output: int = request["output"]
        contents = Contents(self._files.cache)
        count = cached_bytes = 0

        def tick(looked: int) -> None:
            teller.tell(lambda: {"phase": "looking", **_totals(selection), "looked_files": looked})

        # Whoever asked a server that died in the middle sends the same file again.
        os.ftruncate(output, 0)
        with os.fdopen(os.dup(output), "wb") as file:
            file.seek(0)
            for found, _ in batches(self._files, selection, tick):
                held = contents.lookup([one.obj for one in found])
                for one, of_it in zip(found, held, strict=True):
                    if of_it.cached_bytes:
                        count, cached_bytes = count + 1, cached_bytes + of_it.cached_bytes
                        entry = {
                            "path": decode(self._files.path_of(one.node)),
                            "version": one.obj.version,
                            "size": one.obj.size_bytes,
                            "cached": of_it.cached_bytes,
                        }
                        file.write(json.dumps(entry).encode() + b"\n")
        return _totals(selection) | {"listed_files": count, "cached_bytes": cached_bytes}

    def _survey(self, selection: Selection, teller: "_Teller", *, page_cache: bool) -> Report:
        def tick(looked: int) -> None:
            teller.tell(lambda: {"phase": "looking", **_totals(selection), "looked_files": looked})

        if not page_cache:
            return survey(self._files, selection, None, tick)
        with closing(self._pages()) as pages:
            return survey(self._files, selection, pages, tick)

    def _pages(self) -> Pages:
        if self._passthrough:
            return FilePages(self._files.cache.tiers)
        return MountPages(self._files, PageCacheProbe(self._mountpoint), self._is_held)


class _Teller:
    """Tells the asker how far it is, not too often; raises once they are gone."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._told_s = 0.0

    def tell(self, progress: Callable[[], dict[str, Any]]) -> None:
        self.look_up()
        if time.monotonic() - self._told_s >= _TELL_S:
            self._told_s = time.monotonic()
            self.send({"progress": progress()})

    def look_up(self) -> None:
        if self._line.is_over():
            raise _AskerIsGone

    def send(self, message: Answer) -> None:
        try:
            self._line.send(message)
        except ConnectionError as error:
            raise _AskerIsGone from error


def _totals(selection: Selection) -> dict[str, Any]:
    return {"files": len(selection.inos), "bytes": selection.size_bytes}


def _read_paths(descriptor: int) -> Iterator[str]:
    # Whoever asked a server that died in the middle sends the same file again, read to anywhere.
    os.lseek(descriptor, 0, os.SEEK_SET)
    early = b""
    while received := os.read(descriptor, 1 << 16):
        paths = (early + received).split(b"\0")
        early = paths.pop()
        yield from map(decode, paths)
