"""Puts the parts together and serves one mount until it is unmounted, or this process ends."""

import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cache.build import build_cache, open_shared_tier
from penstock.cache.guarded import HUNG_S
from penstock.cache.member_stats import ask_members
from penstock.catalog.refresh import Mounted, catalog_path, numbered, refresh, unlisted
from penstock.catalog.sources import check_paths
from penstock.catalog.tree import Tree
from penstock.daemon.catalog_refresher import Refresher
from penstock.daemon.control_socket import ControlServer, as_answer, listen
from penstock.daemon.epoch_plans import EpochPlans, Keeping
from penstock.daemon.fork_server import ForkServer
from penstock.daemon.mount_lifecycle import Progress
from penstock.daemon.mount_metrics import collect_metrics
from penstock.daemon.mount_registry import control_socket
from penstock.daemon.mount_stats import ServedMount, collect, collect_brief
from penstock.daemon.process_setup import (
    DISK_WAITERS,
    LARGE_THREADS,
    can_resend,
    collect_garbage_rarely,
    kernel_options,
    with_removed,
    workers_of,
    yield_to_readers,
)
from penstock.daemon.resource_limits import Limits
from penstock.daemon.shared_stats import SharedEstimate
from penstock.daemon.warm_requests import WarmRequests
from penstock.daemon.worker_pool import WorkerPool
from penstock.errors import (
    CacheDirError,
    OptionError,
    PenstockError,
    SourceError,
    StoreError,
    UsageError,
)
from penstock.fuse import mounting
from penstock.fuse.backing import BackingFiles
from penstock.fuse.device import DeviceCalls, OwnCalls
from penstock.fuse.handlers import Handlers
from penstock.fuse.journal import Journal, Ledger, new_journal, new_ledger
from penstock.fuse.peers import owner_of, receive
from penstock.fuse.protocol import Init
from penstock.fuse.session import Handler, Session
from penstock.metrics import Counters
from penstock.mounttable import filesystem_type, find_mount
from penstock.paths import state_dir
from penstock.settings import MountSettings, encode
from penstock.store import Store
from penstock.store.connect import is_local
from penstock.store.juicefs import refuse_volume
from penstock.store.retry import FIRST_CONTACT_S, open_reliable_store
from penstock.units import MIB
from penstock.vfs.filesystem import FileSystem
from penstock.vfs.readahead import Readahead, SmallFileReadahead
from penstock.warm.page_cache import PageBudget, PageCacheProbe, spare_bytes
from penstock.warm.prefetcher import LocalFetcher, Prefetcher, SmallFileFeed, Wanted
from penstock.warm.regions import RegionLoader

log = logging.getLogger(__name__)

# From this mean size on, files are better read by the kernel from the cache's own files.
_PASSTHROUGH_MEAN_BYTES = 4 * MIB
# Where the kernel has read_ahead_kb of each mount.
_READAHEADS = "/sys/devices/virtual/bdi"
# For so long after the last run of neighbours, workers report all reads of small files.
_FOLLOW_RUNS_S = 2.0
# After this many quick ends in a row of servers that had taken requests, the requests that the
# kernel sends again to every new server are the likely cause. They get an error, so that all others
# go on.
_POISONED = 3
# Wrong keys are refused within one round trip. A bucket on another continent takes 0.3 s.
_STORES_ANSWER_WITHIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Ready:
    """What the user is shown once the mount answers."""

    files: int
    size_bytes: int
    hidden: int
    mode: str
    notes: list[str]  # what this mount does without, and why
    refused: PenstockError | None = None  # a store that refuses us; its saved listing is shown


@dataclass(slots=True)
class Handover:
    """What outlives a server: descriptors that its supervisor keeps open, and values for the next
    server. Empty for the first one."""

    kept: dict[str, int] = field(default_factory=dict[str, int])
    remembered: dict[str, Any] = field(default_factory=dict[str, Any])
    keep: Callable[[str, int], None] = lambda _name, _descriptor: None
    drop: Callable[[str], None] = lambda _name: None
    remember: Callable[[dict[str, Any]], None] = lambda _values: None


class Server:
    """Call prepare, then attach, then wait. A server that takes over is prepared while its
    predecessor still serves."""

    def __init__(
        self,
        settings: MountSettings,
        *,
        takeover: bool = False,
        mounted: bool = False,
        asked_for: bool = True,
        fork_server: ForkServer | None = None,
        keeper: DeviceCalls | None = None,
    ) -> None:
        """`fork_server` forks workers; None if this process answers the kernel itself. `mounted`:
        the mount is there. `keeper`: makes calls on /dev/fuse for a server without privileges."""
        self._settings = settings
        self._fork_server = fork_server
        self._workers: WorkerPool | None = None
        self.why_to_end: str | None = None  # set when another server should take over
        self._asked_for = asked_for
        self._takeover = takeover
        self._mounted = mounted or takeover
        self._keeper = keeper
        self._calls: DeviceCalls = keeper or OwnCalls()
        self._counters = Counters()
        self.limits = Limits(settings)
        self._initialised = threading.Event()
        self._agreed = Init(0)
        self._notes: list[str] = []

    def prepare(self, progress: Progress) -> None:
        """Do all that can be done before the mount is there."""
        settings = self._settings
        yield_to_readers()  # first: threads inherit it, those of obstore too
        collect_garbage_rarely()
        if not self._mounted:
            mounting.check_mountpoint(settings.mountpoint, nonempty=settings.nonempty)
        self._check_cache_is_outside()
        check_paths([part.path for part in settings.parts])
        for endpoint in self._guessed_endpoints():
            self._note(
                f"the endpoint {endpoint} names no http:// or https://: it is taken as https"
            )
        stores = {
            part.path: open_reliable_store(part.source, part.store, self._counters)
            for part in settings.parts
        }
        self._cache = build_cache(
            list(settings.tiers),
            policy=settings.policy,
            block_bytes=settings.block_bytes,
            buffer_bytes=settings.buffer_bytes,
            large_threads=LARGE_THREADS,
            counters=self._counters,
            threads=settings.threads,
            deadline_s=settings.deadline_s,
            shared=open_shared_tier(
                settings.shared,
                settings.shared_key,
                self._counters,
                buffer_bytes=settings.buffer_bytes,
                deadline_s=settings.deadline_s,
                must_open=self._asked_for,
            ),
            # A bad directory is an error for the user who mounts, and not for readers later.
            must_open=self._asked_for,
            warn=self._note,
        )
        self._mounts = [Mounted(path, store) for path, store in stores.items()]
        self._tree = Tree(catalog_path(state_dir(), settings.catalog or _name(self._mounts)))
        self._numbers = self._tree.with_repair(lambda: numbered(self._tree, self._mounts))
        self._saved = self._takeover
        if not self._takeover:
            hurried = [
                Mounted(path, store.with_first_contact_limit(FIRST_CONTACT_S))
                for path, store in stores.items()
            ]
            self._tree.with_repair(lambda: self._list_missing_sources(hurried, progress))
        files, size = self._tree.with_repair(self._tree.totals)
        self._mode = self._choose_mode(files, size)

    def _list_missing_sources(self, mounts: list[Mounted], progress: Progress) -> None:
        """List all sources without a listing, before anything is shown. Raises what fails."""
        settings, tree = self._settings, self._tree
        missing = [*unlisted(tree, mounts), *self._with_newer_manifests(mounts)]
        # An empty listing is not worth keeping: mostly it was a mistake that has been corrected.
        if not tree.totals()[0]:
            missing = mounts
        self._saved = not missing
        unseen = {mounted.path for mounted in missing}
        for part in (part for part in settings.parts if part.path in unseen):
            refuse_volume(part.source, part.store)
        try:
            summary = refresh(tree, mounts, progress, only=missing, most_files=settings.max_files)
            if summary.failures:
                raise summary.failures[0].error
        except PenstockError as error:
            if not tree.is_complete():
                self._explain_damage(error)
            if isinstance(error, StoreError) and self._guessed_endpoints():
                error.hint = "write http:// before the endpoint if the store has no TLS"
            raise
        # A declared data set may be empty so far; in a command, the prefix is probably mistyped.
        by_hand = settings.catalog is None and any(part.source.prefix for part in settings.parts)
        if missing and not summary.files and not summary.hidden and by_hand:
            raise SourceError(
                f"{settings.shown}: nothing is there",
                hint="check the prefix, and --endpoint and --region if the bucket is elsewhere",
            )

    def _guessed_endpoints(self) -> list[str]:
        """Return the endpoints that were given without a scheme, of other machines."""
        given = {part.store.endpoint or "://" for part in self._settings.parts}
        return sorted(one for one in given if "://" not in one and not is_local(f"http://{one}"))

    def _explain_damage(self, error: PenstockError) -> None:
        """Add to the hint why a source that was listed before must be listed again."""
        error.hint = f"{error.hint}; " if error.hint else ""
        error.hint += f"it has to be listed again, since {self._tree.damage()}"

    def attach(self, handover: Handover) -> Ready:
        """Mount, or go on with the mount that is there; return once it answers."""
        self._handover = handover
        settings = self._settings
        if "fuse" in handover.kept:
            descriptor = handover.kept["fuse"]
        else:
            descriptor = mounting.open_and_mount(
                settings.mountpoint,
                settings.name or settings.shown,
                max_read_bytes=settings.max_read_bytes,
                allow_other=settings.allow_other,
            )
            handover.keep("fuse", descriptor)
        if "agreed" in handover.remembered:
            self._mode = handover.remembered["mode"]
            self._agreed = Init(handover.remembered["agreed"])
        else:
            handover.remember({"mode": self._mode, "started_s": time.time()})
        if "catalog" not in handover.kept:
            # While it is held, no other mount removes nodes that the kernel may hold for this one.
            handover.keep("catalog", self._tree.users_lock)
        self._started_s = handover.remembered.get("started_s", time.time())
        self._serve(descriptor)
        if settings.allow_other:
            self._notes.append(
                "--allow-other: every user of this machine can read these files (modes "
                f"{settings.file_mode:04o}/{settings.dir_mode:04o}); the cache and the control "
                "socket stay yours"
            )
        files, size = self._tree.with_repair(self._tree.totals)
        hidden = sum(self._tree.with_repair(self._tree.hidden_counts).values())
        notes = self._notes
        if self._tree.found_damaged is not None:
            notes = [*notes, f"{self._tree.found_damaged}; it was rebuilt from a listing"]
        return Ready(files, size, hidden, self.mode, notes, self._refusal())

    def _refusal(self) -> PenstockError | None:
        """Return the error of a store that refuses us, though its saved listing can be shown.

        The mount is served already. A store that is slow or away is no mistake of the user's, and
        not waited for.
        """
        if self._takeover or not self._saved or self._settings.refresh_s is None:
            return None
        error = self._refresher.first_answer(_STORES_ANSWER_WITHIN_S)
        return error if isinstance(error, UsageError) else None

    def wait(self) -> None:
        """Return when the mount is over and everything is closed."""
        self._session.join()
        self._refresher.stop()
        self._control.close()
        self._prefetcher.close()
        self._fetcher.close()
        if self._probe is not None:
            self._probe.close()
        if self._regions is not None:
            self._regions.close()
        self._cache.close()
        self._tree.close()
        # /dev/fuse stays open: a thread may still write a late answer, and must not write it into
        # another file that got the same descriptor in the meantime.

    def flush(self) -> None:
        """Write the indexes of the cache to disk: another server is about to take over."""
        self._cache.flush()

    @property
    def mode(self) -> str:
        return "pagecache" if self._backings is None else "passthrough"

    def free_memory(self) -> None:
        """Free memory that is not needed at once."""
        self._cache.drop_idle()

    def is_stuck(self, longer_than_s: float) -> bool:
        """Return whether a thread that must never wait hangs in a request."""
        return self._session.stuck_for_s() > longer_than_s

    def check_for_hung_disks(self) -> None:
        """Called now and then by a thread that never touches a disk."""
        self._cache.check_for_hangs()
        self._session.replace_stuck_receivers(HUNG_S + 1)
        self._session.retry_parked(self._settings.deadline_s)

    @property
    def worker_pids(self) -> list[int]:
        return [] if self._workers is None else self._workers.pids()

    def _note(self, text: str) -> None:
        if text not in self._notes:  # a tier that comes back reports again
            self._notes.append(text)

    # -- wiring -------------------------------------------------------------------------

    def _with_newer_manifests(self, mounts: list[Mounted]) -> list[Mounted]:
        """Return sources whose manifest, which is their listing, is newer than their catalog."""
        listed_at = {row.path: row.listed_at or 0.0 for row in self._tree.sources() if row.present}
        manifests = {
            part.path: part.store.manifest
            for part in self._settings.parts
            if part.store.manifest is not None and part.store.manifest.exists()
        }
        return [
            mounted
            for mounted in mounts
            if (manifest := manifests.get(mounted.path)) is not None
            and manifest.stat().st_mtime > listed_at.get(mounted.path, 0.0)
        ]

    def _check_cache_is_outside(self) -> None:
        for path in (path for tier in self._settings.tiers for path in tier.paths):
            if Path(os.path.realpath(path)).is_relative_to(self._settings.mountpoint):
                raise CacheDirError(
                    f"cache directory {path} lies below the mount point itself",
                    hint="give a directory elsewhere, on a local disk",
                )

    def _serve(self, descriptor: int) -> None:
        settings, handover = self._settings, self._handover
        resend = can_resend(settings)
        journal = None if resend else Journal(self._memory("journal", new_journal))
        self._session = Session(
            descriptor, DISK_WAITERS, self._counters, journal, max_receivers=settings.threads
        )
        readahead = Readahead(settings.block_bytes, settings.prefetch_blocks)
        opened = {number: mounted.store for number, mounted in self._numbers.items()}
        stores = self._tree.with_repair(lambda: with_removed(self._tree, opened))
        # A keeper's mount is not visible to its servers. In passthrough mode the kernel reads the
        # cache's own files.
        self._regions = None
        if self._mode == "pagecache" and self._keeper is None:
            self._regions = RegionLoader(
                settings.mountpoint,
                settings.block_bytes,
                settings.page_cache_bytes,
                self._path_of,
                self._counters,
            )
        neighbours = self._runs = SmallFileReadahead(self._announce)
        if self._fork_server is not None:
            self._workers = self._make_workers(self._fork_server, stores)
            self._cache.buffers = self._workers
        self._files = FileSystem(
            self._tree,
            stores,
            self._cache,
            readahead,
            lambda: self._refresher.request(),
            neighbours if settings.prefetch_blocks else None,
            shared=None if self._workers is None else self._workers.shared,
            random_reads=self._regions,
        )
        shared = self._cache.shared
        self._estimate = None if shared is None else SharedEstimate(self._files, shared)
        self._backings = None
        if self._mode == "passthrough":
            self._backings = BackingFiles(
                descriptor,
                self._files,
                self._session.invalidate_pages,
                Ledger(self._memory("opens", new_ledger)),
                self._calls,
            )
        options = kernel_options(settings, stack_depth=self._stack_depth())
        handlers = Handlers(self._files, options, self._backings, self._on_init)
        self._refresher = Refresher(
            self._tree,
            self._mounts,
            self._files,
            self._session,
            settings.refresh_s,
            settings.max_files,
            self._counters,
            handover.remembered.get("seen"),
            lambda seen: handover.remember({"seen": seen}),
        )
        self._tree.on_damage = self._refresher.heal
        self._make_plans_and_loads()
        self._control = ControlServer(
            self._control_socket(),
            {
                "stats": self._stats,
                "brief": self._brief,
                "metrics": self._metrics,
                "refresh": self._refresh,
                "doctor": self._doctor,
            },
            {"plan": self._plans.converse, "warm": self._loads.converse},
        )
        refuse_resent = handover.remembered.get("quick_ends", 0) >= _POISONED
        if self._agreed:
            self._apply_agreed()
        else:
            handover.remember({"seen": self._refresher.seen})
        if self._workers is not None:
            self._start_workers(self._workers, handlers.table(), refuse_resent=refuse_resent)
        else:
            if self._agreed:
                self._session.take_over(refuse_resent=refuse_resent)
            # Unmounted at once, it is never initialised.
            self._session.start(handlers.table(), on_end=self._initialised.set)
        if not self._initialised.wait(30):
            raise PenstockError("the kernel did not open the connection within 30 s")
        self._tune_readahead()
        self._plans.adopt(handover.kept, handover.remembered)
        self._refresher.start(at_once=self._saved and not self._takeover)

    def _make_workers(self, fork_server: ForkServer, stores: dict[int, Store]) -> WorkerPool:
        settings = self._settings
        start = {
            "settings": encode(settings),
            "catalog": str(self._tree.path),
            "sources": {str(number): one.path for number, one in self._numbers.items()},
            "passthrough": self._mode == "passthrough",
        }
        identities = {number: store.identity for number, store in stores.items()}
        directories = [one for tier in self._cache.tiers for one in tier.directories]
        return WorkerPool(
            fork_server,
            workers_of(settings),
            start,
            directories,
            identities,
            settings.block_bytes,
            self._counters,
            self._owner_of,
            watchdog_s=settings.watchdog_s,
            on_reads=self._note_read,
            on_random_reads=self._note_random_read,
            on_outdated=lambda: self._refresher.request(),
            on_damaged=lambda: self._refresher.heal(),
            on_unmounted=self._session.end,
            on_hopeless=self._give_up,
        )

    def _start_workers(
        self, workers: WorkerPool, table: dict[int, Handler], *, refuse_resent: bool
    ) -> None:
        self._session.set_handlers(table)
        takeover = bool(self._agreed)
        while not self._initialised.is_set():  # the first request is INIT
            if not self._session.receive_one():
                self._session.end()
                self._initialised.set()
                return
        handover = self._handover
        workers.start(
            self._session.descriptor,
            handover.kept,
            handover.keep,
            self._session.resend,
            self._calls,
            takeover=takeover,
            refuse_resent=refuse_resent,
        )
        threading.Thread(
            target=receive,
            name="inbox",
            daemon=True,
            args=(workers.inbox.receiving, self._session, workers.clones, self._files.prefetch),
        ).start()

    def _owner_of(self, wanted: Wanted) -> int:
        assert self._workers is not None
        try:
            obj = self._files.file(wanted.ino).obj
        except (PenstockError, OSError):
            return 0  # any worker reports the same error
        return owner_of(obj, wanted.number, self._workers.count)

    def _note_read(self, parent: int, ino: int) -> None:
        """A worker has read a small file."""
        self._runs.observe(parent, ino)

    def _path_of(self, ino: int) -> bytes:
        return self._files.path_of(self._files.node(ino))

    def _note_random_read(self, ino: int, offset: int, length: int) -> None:
        """A worker has read cached bytes of a large file."""
        if self._regions is not None:
            self._regions.observe(ino, self._files.file(ino).obj, offset, length)

    def _announce(self, parent: int, after: int, up_to: int) -> None:
        if self._workers is not None:
            self._workers.follow_runs(_FOLLOW_RUNS_S)
        self._neighbours.announce(parent, after, up_to)

    def _give_up(self, why: str) -> None:
        self.why_to_end = why

    def _make_plans_and_loads(self) -> None:
        handover, pagecache = self._handover, self._backings is None
        # A keeper's mount is not visible to its servers.
        can_probe = pagecache and self._keeper is None
        self._probe = PageCacheProbe(self._settings.mountpoint) if can_probe else None
        # In passthrough mode the kernel reads the cache's own files: there is nothing to push.
        push = self._session.store_pages if pagecache else None
        self._fetcher = self._workers or LocalFetcher(self._files, push, self._counters)
        self._prefetcher = Prefetcher(self._fetcher, self._counters)
        self._neighbours = SmallFileFeed(self._files, self._prefetcher.add, self._prefetcher.remove)
        page_cache_bytes = self._settings.page_cache_bytes
        budget = PageBudget(spare_bytes() if page_cache_bytes is None else page_cache_bytes)
        self._plans = EpochPlans(
            self._files,
            self._prefetcher,
            self._probe,
            budget,
            self._session.invalidate_pages,
            Keeping(handover.keep, handover.drop, handover.remember),
        )
        self._loads = WarmRequests(
            self._files,
            self._prefetcher,
            budget,
            self._settings.mountpoint,
            passthrough=not pagecache,
            is_held=self._session.holds,
            drop_pages=self._session.invalidate_pages,
        )

    def _memory(self, name: str, make: Callable[[], int]) -> int:
        """Return the descriptor of memory that outlives this server."""
        kept = self._handover.kept
        if name not in kept:
            kept[name] = make()
            self._handover.keep(name, kept[name])
        return kept[name]

    def _control_socket(self) -> socket.socket:
        """Return the socket of the server before this one, with the clients that wait on it."""
        if "control" not in self._handover.kept:
            listener = listen(control_socket(self._settings.mountpoint))
            self._handover.keep("control", listener.fileno())
            return listener
        return socket.socket(fileno=self._handover.kept["control"])

    def _on_init(self, agreed: Init) -> None:
        self._agreed = agreed
        self._handover.remember({"agreed": int(agreed)})
        self._apply_agreed()

    def _apply_agreed(self) -> None:
        if self._backings is not None and not self._agreed & Init.PASSTHROUGH:
            self._backings.enabled = False
            self._notes.append("this kernel offers no passthrough; reads go through the server")
        self._initialised.set()

    def _choose_mode(self, files: int, size_bytes: int) -> str:
        wanted = self._settings.mode
        missing = self._why_no_passthrough()
        if wanted == "passthrough" and missing:
            raise OptionError(
                f"--mode passthrough: {missing}", hint="use --mode auto, which does without"
            )
        if wanted != "auto":
            return wanted
        large = files > 0 and size_bytes / files >= _PASSTHROUGH_MEAN_BYTES
        if large and missing:
            self._notes.append(f"passthrough would suit these large files, but {missing}")
        return "passthrough" if large and not missing else "pagecache"

    def _why_no_passthrough(self) -> str | None:
        if not self._settings.tiers:
            return "it needs a cache"
        if self._keeper is None and os.geteuid() != 0:
            return "it needs root"
        if mounting.kernel_release() < (6, 9):
            return "it needs kernel 6.9 or later"
        return None

    def _stack_depth(self) -> int:
        """A cache on overlayfs is stacked already: the kernel must allow one more level."""
        paths = [path for tier in self._settings.tiers for path in tier.paths]
        return 2 if any(filesystem_type(path) == "overlay" for path in paths) else 1

    def _tune_readahead(self) -> None:
        if self._keeper is not None:
            return  # it has done that
        entry = find_mount(self._settings.mountpoint)
        is_raised = entry is not None and mounting.raise_readahead(entry)
        if not is_raised:
            why = "raising it needs root"
            if os.geteuid() == 0:
                why = f"/sys is read-only; in a container add -v {_READAHEADS}:{_READAHEADS}"
            self._notes.append(f"readahead stays at 128 KiB: {why}")
        if self._regions is not None:
            self._regions.readahead_is_raised = is_raised

    @property
    def _answering(self) -> "Session | WorkerPool":
        """What counts the requests of the kernel."""
        return self._session if self._workers is None else self._workers

    # -- verbs of the control socket --------------------------------------------------------

    def _served(self) -> ServedMount:
        return ServedMount(
            settings=self._settings,
            numbers=self._numbers,
            mode=self.mode,
            files=self._files,
            session=self._answering,
            backings=self._backings,
            refresher=self._refresher,
            counters=self._counters,
            started_s=self._started_s,
            remembered=self._handover.remembered,
            limits=self.limits,
            plans=self._plans,
            loads=self._loads,
            prefetcher=self._prefetcher,
            workers=self._workers,
            estimate=self._estimate,
        )

    def _stats(self, _request: dict[str, Any]) -> dict[str, Any]:
        return collect(self._served())

    def _brief(self, _request: dict[str, Any]) -> dict[str, Any]:
        return collect_brief(self._served())

    def _metrics(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {"values": collect_metrics(self._served())}

    def _refresh(self, request: dict[str, Any]) -> dict[str, Any]:
        only_new = bool(request.get("only_new"))
        summary = self._refresher.list_new() if only_new else self._refresher.refresh_now()
        return {
            "files": summary.files,
            "bytes": summary.size_bytes,
            "changed": summary.changed,
            "hidden": summary.hidden,
            "failed": [{"path": one.path, **as_answer(one.error)} for one in summary.failures],
        }

    def _doctor(self, request: dict[str, Any]) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "notes": self._notes,
            "refresh_error": self._refresher.last_error,
            "hidden_counts": self._tree.hidden_counts(),
            "hidden": self._tree.hidden(int(request.get("limit", 1000))),
            "shared": self._members(),
        }

    def _members(self) -> list[dict[str, Any]]:
        """What the members of the shared tier report, as this process reaches them."""
        tier = self._cache.shared
        return [] if tier is None else ask_members([(one.host, one.port) for one in tier.addresses])


def _name(mounts: list[Mounted]) -> str:
    """Return a catalog name made from the stores and their paths."""
    text = "\0".join(sorted(f"{mount.path}\0{mount.store.identity}" for mount in mounts))
    # Without the first separator: the name of a single store is older than mounts of several.
    return hashlib.blake2b(text.removeprefix("\0").encode(), digest_size=12).hexdigest()
