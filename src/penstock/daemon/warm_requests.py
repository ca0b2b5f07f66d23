"""`penstock warm` in the server: one conversation for each, over the control socket.

The client gets the progress a few times a second, and at the end the state that was found. When
the client is gone, the work stops: nothing remains of a load but what it has cached.

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

_WRITE_EVERY_S = 0.2
_WAIT_S = 0.05
_PROBED_WITHIN_S = 5.0  # do not wait for a disk that hangs


class _ClientIsGone(Exception):
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
        """`is_held` says whether the kernel holds an inode."""
        self._files = files
        self._prefetcher = prefetcher
        self._budget = budget
        self._mountpoint = mountpoint
        self._passthrough = passthrough
        self._is_held = is_held
        self._drop_pages = drop_pages
        self._loads: set[Load] = set()

    @property
    def loads(self) -> int:
        """How many loads are running."""
        return len(self._loads)

    def converse(self, request: Answer, line: Connection, descriptors: list[int]) -> None:
        """Handle the verb `warm` of the control socket. A file of paths comes with it, each ended
        by NUL: first as many patterns as `patterns` says, then literal paths; none means all."""
        work = {
            "load": self._load,
            "check": self._check,
            "verify": self._verify,
            "evict": self._evict,
            "list": self._list,
        }[request["action"]]
        writer = _ProgressWriter(line)
        try:
            selection = self._select(request, descriptors)
            answer = work(request | {"output": descriptors[-1]}, selection, writer)
            writer.send({"done": answer})
        except _ClientIsGone:
            pass
        for descriptor in descriptors:
            os.close(descriptor)
        line.close()

    def _select(self, request: Answer, descriptors: list[int]) -> Selection:
        order = request.get("order", "name")
        if order not in ORDERS:
            raise UsageError(f"unknown order: {order}")
        if not descriptors:
            raise UsageError("the list of paths is missing")
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

    # -- actions ----------------------------------------------------------------------

    def _load(self, request: Answer, selection: Selection, writer: "_ProgressWriter") -> Answer:
        tiers, page_cache = self._files.cache.tiers, bool(request.get("page_cache"))
        if not tiers and not page_cache and self._files.cache.shared is None:
            raise UsageError(
                "this mount has no cache to fill",
                hint="mount it without --no-cache, or warm the page cache with --page-cache",
            )
        self._look_after_cache(writer)
        times_out = self._times_out()
        room = self._find_room(selection, writer)
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
        self._loads.add(load)
        self._prefetcher.add(load)
        try:
            while load.advance(_WAIT_S):
                writer.write(lambda: {"phase": "loading", **_totals(selection), **load.describe()})
        finally:
            self._loads.discard(load)
            self._prefetcher.remove(load)
            load.close()
            if push is not None:
                push.probe.close()
        answer = load.describe()
        if page_cache and self._passthrough:
            answer |= self._read_through(selection, writer)
        # Fetched blocks may have been declined or evicted: survey what is cached now.
        report = self._survey(selection, writer, page_cache=page_cache)
        return (
            answer
            | report.as_message()
            | {
                "page_cache_budget_bytes": self._budget.kept_bytes,
                "cache_problem": self._describe_outage(times_out),
            }
        )

    def _look_after_cache(self, writer: "_ProgressWriter") -> None:
        """Have removed cache directories created again now, so that they can be filled."""
        for directory in self._directories:
            directory.check_now()
        until_s = time.monotonic() + _PROBED_WITHIN_S
        while any(one.is_probing for one in self._directories) and time.monotonic() < until_s:
            writer.check_client()
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
            return "a cache directory failed in between; run the same command again to continue"
        return None

    @property
    def _directories(self) -> list[GuardedDirectory]:
        return [one for tier in self._files.cache.tiers for one in tier.directories]

    def _find_room(self, selection: Selection, writer: "_ProgressWriter") -> TierRoom | None:
        tiers = self._files.cache.tiers
        # What the local tiers have no room for still goes into the shared one.
        if (
            not tiers
            or self._files.cache.shared is not None
            or fits_for_sure(tiers, selection.size_bytes)
        ):
            writer.send({"start": _totals(selection) | {"fits": True}})
            return None
        report = self._survey(selection, writer, page_cache=False)
        room = TierRoom(tiers, lambda tier, share: report.share_bytes.get((tier, share), 0))
        missing = report.size_bytes - report.cached_bytes
        fits = missing <= room.free_bytes
        writer.send(
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

    def _read_through(self, selection: Selection, writer: "_ProgressWriter") -> Answer:
        """Passthrough: read the cache's files, so that the kernel keeps their pages."""
        reserved = unpushed = unpushed_bytes = 0

        def tick(looked: int) -> None:
            writer.write(lambda: {"phase": "reading", **_totals(selection), "looked_files": looked})

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

    def _check(self, _request: Answer, selection: Selection, writer: "_ProgressWriter") -> Answer:
        return self._survey(selection, writer, page_cache=True).as_message()

    def _verify(self, _request: Answer, selection: Selection, writer: "_ProgressWriter") -> Answer:
        contents = Contents(self._files.cache)
        verified_files = verified_bytes = damaged = blocks = 0
        named: list[dict[str, str]] = []

        def tick(looked: int) -> None:
            writer.write(
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
                writer.check_client()
        return {
            "files": len(selection.inos),
            "verified_files": verified_files,
            "verified_bytes": verified_bytes,
            "damaged_files": damaged,
            "damaged_blocks": blocks,
            "damaged": named,
        }

    def _evict(self, _request: Answer, selection: Selection, writer: "_ProgressWriter") -> Answer:
        contents = Contents(self._files.cache)
        freed = 0

        def tick(looked: int) -> None:
            writer.write(
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

    def _list(self, request: Answer, selection: Selection, writer: "_ProgressWriter") -> Answer:
        """Write one JSON line for each file with cached bytes to the second descriptor of the
        request."""
        output: int = request["output"]
        contents = Contents(self._files.cache)
        count = cached_bytes = 0

        def tick(looked: int) -> None:
            writer.write(lambda: {"phase": "looking", **_totals(selection), "looked_files": looked})

        # After a server died in the middle, the client sends the same file again.
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

    def _survey(
        self, selection: Selection, writer: "_ProgressWriter", *, page_cache: bool
    ) -> Report:
        def tick(looked: int) -> None:
            writer.write(lambda: {"phase": "looking", **_totals(selection), "looked_files": looked})

        if not page_cache:
            return survey(self._files, selection, None, tick)
        with closing(self._pages()) as pages:
            return survey(self._files, selection, pages, tick)

    def _pages(self) -> Pages:
        if self._passthrough:
            return FilePages(self._files.cache.tiers)
        return MountPages(self._files, PageCacheProbe(self._mountpoint), self._is_held)


class _ProgressWriter:
    """Sends progress to the client, not too often; raises once it is gone."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._written_s = 0.0

    def write(self, progress: Callable[[], dict[str, Any]]) -> None:
        self.check_client()
        if time.monotonic() - self._written_s >= _WRITE_EVERY_S:
            self._written_s = time.monotonic()
            self.send({"progress": progress()})

    def check_client(self) -> None:
        if self._line.is_over():
            raise _ClientIsGone

    def send(self, message: Answer) -> None:
        try:
            self._line.send(message)
        except ConnectionError as error:
            raise _ClientIsGone from error


def _totals(selection: Selection) -> dict[str, Any]:
    return {"files": len(selection.inos), "bytes": selection.size_bytes}


def _read_paths(descriptor: int) -> Iterator[str]:
    # After a server died in the middle, the client sends the same file again, at any offset.
    os.lseek(descriptor, 0, os.SEEK_SET)
    rest = b""
    while received := os.read(descriptor, 1 << 16):
        paths = (rest + received).split(b"\0")
        rest = paths.pop()
        yield from map(decode, paths)
