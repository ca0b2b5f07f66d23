"""Survey what is cached of a selection: by tier, in all, and in the page cache. Exact to the byte.

Nothing is remembered from a load, and nothing is estimated: each survey asks the tiers and the
kernel. The shared tier is asked only for what no tier of this machine has.

Threading: one thread. `tick` is called between batches with the number of files checked so far, and
raises to end the survey.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.cache.contents import CachedBytes, Contents
from penstock.cache.identity import block_of
from penstock.cache.shared_tier import SharedTier
from penstock.catalog.file_set import Selection
from penstock.vfs.filesystem import FileSystem
from penstock.warm.page_cache import Pages, SelectedFile

BATCH = 256
_FILLED_WITHIN_S = 5.0  # what a load has just fetched may still be on its way to the members

Tick = Callable[[int], None]


@dataclass(slots=True)
class Report:
    names: list[str]  # of the tiers
    tier_bytes: list[int]
    tier_files: list[int]
    files: int = 0
    size_bytes: int = 0
    cached_files: int = 0  # files of which every byte is cached
    cached_bytes: int = 0
    page_cache_files: int = 0
    page_cache_bytes: int | None = None  # None: not checked, or the kernel does not report it
    gone: int = 0  # selected, but no longer in the bucket
    share_bytes: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def as_message(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "bytes": self.size_bytes,
            "cached_files": self.cached_files,
            "cached_bytes": self.cached_bytes,
            "cached_percentage": percentage(self.cached_bytes, self.size_bytes),
            "tiers": [
                {"name": name, "bytes": size, "files": count}
                for name, size, count in zip(
                    self.names, self.tier_bytes, self.tier_files, strict=True
                )
            ],
            "page_cache_files": self.page_cache_files,
            "page_cache_bytes": self.page_cache_bytes,
        }


def percentage(part: int, whole: int) -> float:
    """Truncated, not rounded: 100 means all of it."""
    return part * 10_000 // whole / 100 if whole else 100.0


def batches(
    files: FileSystem, selection: Selection, tick: Tick
) -> Iterator[tuple[list[SelectedFile], int]]:
    """Yield the selection's files in batches, with the number of files in the batch that are
    gone."""
    for first in range(0, len(selection.inos), BATCH):
        tick(first)
        inos = selection.inos[first : first + BATCH]
        nodes = files.tree.nodes(inos)
        alive = [nodes[ino] for ino in inos if ino in nodes and not nodes[ino].dead]
        found = [SelectedFile(node, files.object_of(node)) for node in alive]
        yield found, len(inos) - len(alive)
    tick(len(selection.inos))


def survey(files: FileSystem, selection: Selection, pages: Pages | None, tick: Tick) -> Report:
    tiers, contents, shared = files.cache.tiers, Contents(files.cache), files.cache.shared
    names = [tier.name for tier in tiers]
    if shared is not None:
        names.append(shared.name)
        shared.wait_until_filled(_FILLED_WITHIN_S)
    report = Report(names, [0] * len(names), [0] * len(names))
    report.page_cache_bytes = 0 if pages is not None else None
    for found, gone in batches(files, selection, tick):
        report.gone += gone
        known = contents.lookup([file.obj for file in found])
        if shared is not None:
            known = _with_shared(files, shared, contents, found, known)
        for file, held in zip(found, known, strict=True):
            _count(report, file, held)
            for depth, size in enumerate(held.tier_bytes[: len(tiers)]):
                if size:
                    place = depth, tiers[depth].share_of(file.obj.digest)
                    report.share_bytes[place] = report.share_bytes.get(place, 0) + size
        if pages is not None:
            _count_pages(report, found, pages.resident_bytes(found))
    return report


def _with_shared(
    files: FileSystem,
    shared: SharedTier,
    contents: Contents,
    found: list[SelectedFile],
    known: list[CachedBytes],
) -> list[CachedBytes]:
    """Add what only the shared tier has, as the last tier."""
    block_bytes = files.cache.block_bytes
    wanted = [
        (place, block_of(file.obj, number, block_bytes))
        for place, (file, held) in enumerate(zip(found, known, strict=True))
        for number in contents.missing(file.obj, held)
    ]
    there = shared.has_all([block for _, block in wanted])
    sizes = [0] * len(found)
    for (place, block), is_there in zip(wanted, there, strict=True):
        sizes[place] += block.length * is_there
    return [
        CachedBytes((*held.tier_bytes, size), held.cached_bytes + size)
        for held, size in zip(known, sizes, strict=True)
    ]


def _count(report: Report, file: SelectedFile, held: CachedBytes) -> None:
    report.files += 1
    report.size_bytes += file.obj.size_bytes
    report.cached_bytes += held.cached_bytes
    report.cached_files += held.cached_bytes == file.obj.size_bytes
    for depth, size in enumerate(held.tier_bytes):
        report.tier_bytes[depth] += size
        report.tier_files[depth] += size > 0


def _count_pages(report: Report, found: list[SelectedFile], sizes: list[int]) -> None:
    if report.page_cache_bytes is None or any(size < 0 for size in sizes):
        report.page_cache_bytes = None
        return
    report.page_cache_bytes += sum(sizes)
    report.page_cache_files += sum(
        size == file.obj.size_bytes > 0 for size, file in zip(sizes, found, strict=True)
    )
