"""Proofs that an experiment is what it claims. Each is a sentence with figures, and holds or not.

    cold    pages were dropped, and are gone; the cache was empty; at least as much came from the
            store as was read
    warm    nothing came from the store (where only the network's bytes are counted, or with the
            workload `read`, next to nothing), and the page cache has the files
    whole   every epoch read every sample once, and as many bytes as there are

A proof that fails marks the run invalid. It never ends it: what happened is still of interest.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.bench import measure
from penstock.bench.arms import Arm, Mount, Penstock
from penstock.bench.datasets import Dataset, Entry, scan
from penstock.bench.experiments.storeline import StoreCounts
from penstock.bench.plans.known_arms import ArmPlan
from penstock.mounttable import filesystem_type
from penstock.units import MIB, format_size
from penstock.warm.residency import pages_by_cachestat, pages_by_mincore

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Other processes read while an experiment runs, the store's server among them: pages that came back
# between dropping and checking do not mean a warm start.
_FEW = 0.01
_MOST_DROPS = 3
# What the kernel may have taken back between a read and the count, where memory is short.
_MOST_RECLAIMED = 0.05
_QUOTA_SLACK = 0.02
_INDEX_BYTES = 4 * MIB  # what a cache keeps beside the data, and what it rounds up to
_SHARE_SLACK = 0.05


@dataclass(frozen=True, slots=True)
class Proof:
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Residency:
    """How many pages of a data set's files the page cache holds."""

    resident: int
    pages: int
    in_memory: bool  # on tmpfs, where pages are the files and cannot be dropped

    @property
    def share(self) -> float:
        return self.resident / self.pages if self.pages else 0.0

    def __str__(self) -> str:
        return f"{self.resident:,} of {self.pages:,} pages of the files are resident"


def residency(root: Path, entries: Iterable[Entry]) -> Residency:
    resident = pages = 0
    for entry in entries:
        descriptor = os.open(root / entry.path, os.O_RDONLY)
        try:
            found = pages_by_cachestat(descriptor)
            if found is None:
                found = pages_by_mincore(descriptor, entry.size_bytes)
        finally:
            os.close(descriptor)
        resident += found or 0
        pages += -(-entry.size_bytes // _PAGE_BYTES)
    return Residency(resident, pages, filesystem_type(root) == "tmpfs")


def pages_dropped(dataset: Dataset, *, native: bool) -> Proof:
    """Drop the page cache, and check it. `native`: these files will be read; else they lie below
    the store's server, and the mount, which has not started yet, has no pages."""
    name = "pages-dropped"
    if not measure.can_drop_pages():
        return Proof(name, False, "the page cache was not dropped: that needs root")
    measure.drop_pages()
    found = residency(dataset.root, dataset.entries)
    for _ in range(_MOST_DROPS - 1):
        if found.in_memory or found.share <= _FEW:
            break
        measure.drop_pages()
        found = residency(dataset.root, dataset.entries)
    if found.in_memory:
        detail = "the files lie on tmpfs: in memory, whatever is dropped"
        if native:
            return Proof(name, False, detail)
        return Proof(name, True, f"dropped; the mount is new, so it has no pages; {detail}")
    where = "" if native else " (below the store's server; the mount is new)"
    return Proof(name, found.share <= _FEW, f"{found}{where}")


def pages_resident(dataset: Dataset, arm: Arm) -> Proof | None:
    """Check the opposite, for files that were read before: native ones, and those of Penstock,
    which claims it. None for other systems: what they let the kernel keep is their own."""
    if not isinstance(arm, Mount):
        found, least = residency(arm.root, dataset.entries), 1 - _FEW
    elif not isinstance(arm, Penstock):
        return None
    elif arm.mode() == "passthrough":  # the kernel reads, and keeps, the files of the cache
        found, least = residency(arm.cache, scan(arm.cache)), 1 - _MOST_RECLAIMED
    else:
        found, least = residency(arm.root, dataset.entries), 1 - _MOST_RECLAIMED
    return Proof("pages-resident", found.share >= least, str(found))


def cache_empty(folder: Path) -> Proof:
    held = _held_bytes(folder)
    detail = f"{format_size(held)} in the cache folder before the mount"
    return Proof("cache-empty", held == 0, detail)


def cache_within(folder: Path, quota_bytes: int) -> Proof:
    held = _held_bytes(folder)
    detail = f"{format_size(held)} in the cache, {format_size(quota_bytes)} allowed"
    most = quota_bytes * (1 + _QUOTA_SLACK) + _INDEX_BYTES
    return Proof("cache-within-its-share", held <= most, detail)


def from_the_store(name: str, counts: StoreCounts, size_bytes: float, least: float = 1.0) -> Proof:
    """Check a cold epoch that read so many bytes: at least that share of them came from there."""
    share = counts.get_bytes / size_bytes
    return Proof(name, share >= least, f"{_counted(counts)}, {share:.3f} of the data read")


def rest_from_the_store(name: str, counts: StoreCounts, size_bytes: float, arm: ArmPlan) -> Proof:
    """Check an epoch with a cache for a share of the data: the rest must come from the store, or
    something else has kept it."""
    proof = from_the_store(name, counts, size_bytes, 1 - arm.cache_share - _SHARE_SLACK)
    return replace(proof, detail=f"{proof.detail}; the cache holds {arm.cache_share:.2f} of it")


def little_from_the_store(name: str, counts: StoreCounts, size_bytes: int) -> Proof:
    """Check an epoch from caches; a system may fetch again what it could not keep of one file."""
    share = counts.get_bytes / size_bytes
    return Proof(name, share <= _FEW, f"{_counted(counts)}, {share:.4f} of the data read")


def nothing_from_the_store(name: str, counts: StoreCounts, size_bytes: int) -> Proof:
    if counts.gets is None:  # whatever else the network brings is among it
        return little_from_the_store(name, counts, size_bytes)
    return Proof(name, counts.get_bytes == counts.gets == 0, _counted(counts))


def whole(epoch: int, samples: int, size_bytes: int, wanted: tuple[int, int]) -> Proof:
    wanted_samples, wanted_bytes = wanted
    detail = (
        f"{samples:,} of {wanted_samples:,} samples, {size_bytes:,} of {wanted_bytes:,} bytes read"
    )
    return Proof(f"whole-epoch-{epoch + 1}", (samples, size_bytes) == wanted, detail)


def hinted(plans: Sequence[dict[str, Any]], ranks: int, files: int) -> Proof:
    """Check that the mount has a plan of each rank, with all its files."""
    known = sum(1 for plan in plans if plan["files"] == files)
    detail = f"the mount has the plans of {known} of {ranks} readers, with {files:,} files each"
    return Proof("hinted", known == ranks, detail)


def unhinted(plans: Sequence[dict[str, Any]]) -> Proof:
    return Proof("not-hinted", not plans, f"the mount has {len(plans)} plans")


def _counted(counts: StoreCounts) -> str:
    if counts.gets is None:
        return f"the network received {counts.get_bytes:,} bytes (the store speaks TLS)"
    return f"{counts.get_bytes:,} bytes in {counts.gets:,} GETs came from the store"


def _held_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder; 0 if there is none."""
    held = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the mount goes on working there
                held += os.lstat(os.path.join(place, name)).st_size
    return held
