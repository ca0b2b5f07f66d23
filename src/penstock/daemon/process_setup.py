"""What a server and its workers set up alike, since both answer the kernel."""

import gc
import os
from collections.abc import Mapping

from penstock.catalog.tree import Tree
from penstock.fuse import mounting
from penstock.fuse.handlers import KernelOptions
from penstock.metrics import Counters
from penstock.settings import MountSettings
from penstock.store import Store
from penstock.store.removed import RemovedStore
from penstock.store.retry import open_reliable_store

# Threads of each process: for blocks of large objects, and for the local disk.
LARGE_THREADS = 16
DISK_WAITERS = 4
# More workers than this brought nothing on 16 cores, and each takes 20 MB.
_MOST_WORKERS = 8
_CORES_A_WORKER = 2
_LEAST_CORES = 4


def workers_of(settings: MountSettings) -> int:
    """Return how many processes answer the kernel; 1: the server itself."""
    if not can_resend(settings):
        return 1  # unanswered requests must go to the process that replaces the one that took them
    if settings.workers is not None:
        return settings.workers
    cores = len(os.sched_getaffinity(0))
    return 1 if cores < _LEAST_CORES else min(_MOST_WORKERS, cores // _CORES_A_WORKER)


def can_resend(settings: MountSettings) -> bool:
    """Return whether the kernel can send requests again that a dead process left unanswered."""
    return settings.kernel_resend and mounting.kernel_release() >= (6, 9)


def kernel_options(settings: MountSettings, *, stack_depth: int = 1) -> KernelOptions:
    return KernelOptions(
        uid=os.getuid() if settings.uid is None else settings.uid,
        gid=os.getgid() if settings.gid is None else settings.gid,
        file_mode=settings.file_mode,
        dir_mode=settings.dir_mode,
        attr_timeout_s=settings.attr_timeout_s,
        entry_timeout_s=settings.entry_timeout_s,
        max_read_bytes=settings.max_read_bytes,
        cache_listings=_listings_can_be_cached(),
        stack_depth=stack_depth,
        resend=can_resend(settings),
    )


def open_stores(
    settings: MountSettings, paths: Mapping[str, str], tree: Tree, counters: Counters
) -> tuple[dict[int, Store], dict[str, int]]:
    """Return the stores of a mount by their numbers in the catalog, and the numbers by the stores'
    identities. Includes removed stores, of which readers may hold open files. `paths` are those of
    the parts, by number."""
    parts = {part.path: part for part in settings.parts}
    opened: dict[int, Store] = {
        int(number): open_reliable_store(parts[path].source, parts[path].store, counters)
        for number, path in paths.items()
    }
    stores = with_removed(tree, opened)
    return stores, {store.identity: number for number, store in stores.items()}


def with_removed(tree: Tree, stores: Mapping[int, Store]) -> dict[int, Store]:
    removed: dict[int, Store] = {row.number: RemovedStore(row.identity) for row in tree.sources()}
    return removed | dict(stores)


def yield_to_readers() -> None:
    """Have our threads wait for their turn when they wake up, instead of preempting a reader. In a
    session or cgroup of its own, as every daemon has, the server preempted and was preempted 7
    times for each cold file. With this, cold small files are 12% faster."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def collect_garbage_rarely() -> None:
    """Run the garbage collector rarely. Requests leave no cycles behind, so it finds nothing, and
    by default it runs every 700 objects, that is for every tenth cold file. With this, cold small
    files are 5% faster."""
    gc.set_threshold(50_000, 20, 100)


def _listings_can_be_cached() -> bool:
    # Kernels 6.9 to 6.12 do not drop a cached listing when they are told to.
    return not (6, 9) <= mounting.kernel_release() <= (6, 12)
