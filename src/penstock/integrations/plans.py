"""Sends the mounts a plan: which files this process will read next, in which order, and a cursor.

    with open_plan(paths, lag=workers * prefetch * batch) as plan:
        plan.extend(order_of_this_epoch)
        for position, index in enumerate(order_of_this_epoch, 1):
            plan.reached(position)
            ...

Threading: any thread; a lock for each plan. After `open_plan` nothing is sent: `extend` and
`reached` write to memory that the server reads. A replacement server continues with it. The plan
ends with `close`, or with this process; a forked child does not hold it.
"""

import json
import os
import sys
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from penstock.daemon.control_socket import Connection, connect, exchange
from penstock.daemon.mount_registry import find_served
from penstock.errors import NotOnAMount, PenstockError, PlanError
from penstock.fuse.mounting import FILESYSTEM_TYPE
from penstock.mounttable import mount_table
from penstock.warm.order import NOT_ON_MOUNT, OrderWriter

_SPARE_POSITIONS = 1024


def mount_of(path: str | os.PathLike[str]) -> Path | None:
    """Return the Penstock mount that this path is on, by the mount table; None if on none."""
    found = _Mounts().mount_of(os.fspath(path))
    return None if found is None else Path(found)


def open_plan(
    paths: Sequence[str], *, label: str = "", capacity: int | None = None, lag: int = 0
) -> "Plan":
    """Send a plan to the server of each mount that some of `paths` are on. Orders refer to a path
    by its index in `paths`; paths on no mount are skipped.

    label     the plan's name in `penstock stats`
    capacity  how many positions may be published and not yet done; more are queued here
    lag       how many positions are handed out before the first of them is done
    """
    mounts = _Mounts()
    by_mount = mounts.split_by_mount(paths)
    if not by_mount:
        where = f"{paths[0]} and {len(paths) - 1:,} more" if paths else "an empty list"
        raise NotOnAMount(f"no Penstock mount holds these files: {where}")
    room = (2 * len(paths) + _SPARE_POSITIONS) if capacity is None else capacity
    shares: list[_MountPlan] = []
    try:
        for mountpoint, (names, places) in by_mount.items():
            numbers = None
            if len(names) != len(paths):
                numbers = array("I", [NOT_ON_MOUNT]) * len(paths)
                for number, place in enumerate(places):
                    numbers[place] = number
            shares.append(_MountPlan(mountpoint, names, numbers, room, label))
    except BaseException:
        for share in shares:
            share.close()
        raise
    return Plan(len(paths), shares, lag, mounts.roots)


class Plan:
    def __init__(
        self, files: int, shares: "list[_MountPlan]", lag: int, roots: Iterable[str]
    ) -> None:
        self.roots = frozenset(roots)  # the mount points, or links to them, as the paths spell them
        self._files = files
        self._shares = shares
        self._lag = lag
        self._lock = threading.Lock()
        self._handed_out = 0
        _open_plans.add(self)

    def extend(self, indices: Iterable[int]) -> None:
        """Append the files that are read next, in this order. What exceeds the capacity is queued,
        and published as the cursor moves."""
        numbers = array("I", indices)
        if numbers and max(numbers) >= self._files:
            raise PlanError(f"a plan of {self._files:,} files has no file {max(numbers):,}")
        with self._lock:
            for share in self._shares:
                share.extend(numbers)

    def reached(self, handed_out: int, done: int | None = None) -> None:
        """Move the cursor: how many positions were handed out to readers, and how many of them the
        readers are done with. Both never decrease."""
        if done is None:
            done = max(0, handed_out - self._lag)
        with self._lock:
            self._handed_out = handed_out
            for share in self._shares:
                share.move(handed_out, done)

    def restart(self, indices: Iterable[int]) -> None:
        """Replace the order beyond `handed_out`."""
        with self._lock:
            for share in self._shares:
                share.cut()
        self.extend(indices)

    def problems(self) -> str | None:
        """Return a sentence for the user about a problem; None if there is none."""
        with self._lock:
            for share in self._shares:
                if (problem := share.problem()) is not None:
                    return problem
        return None

    def close(self) -> None:
        _open_plans.discard(self)
        with self._lock:
            shares, self._shares = self._shares, []
        for share in shares:
            share.close()

    def __enter__(self) -> "Plan":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def drop_in_child(self) -> None:
        """Drop the plan in a forked child, which must neither keep it alive nor move its cursor."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        for share in self._shares:
            share.close()
        self._shares = []


class _MountPlan:
    """The part of a plan that is on one mount."""

    def __init__(
        self,
        mountpoint: str,
        names: list[bytes],
        numbers: "array[int] | None",
        capacity: int,
        label: str,
    ) -> None:
        self._mountpoint = mountpoint
        self._numbers = numbers  # by index in the plan's paths; None if all paths are on this mount
        self._waiting: deque[array[int]] = deque()
        self._order = OrderWriter(names, max(1, capacity))
        try:
            self._line = _send(mountpoint, self._order.descriptor, label)
        except BaseException:
            self._order.close()
            raise

    def extend(self, indices: "array[int]") -> None:
        numbers = self._numbers
        if numbers is not None:
            indices = array("I", [numbers[index] for index in indices])
        self._waiting.append(indices)
        self._publish()

    def move(self, handed_out: int, done: int) -> None:
        self._order.move(handed_out, done)
        if self._waiting:
            self._publish()

    def cut(self) -> None:
        self._waiting.clear()
        self._order.cut()

    def _publish(self) -> None:
        while self._waiting and (room := self._order.room) > 0:
            first = self._waiting[0]
            self._order.add(first[:room])
            if room < len(first):
                self._waiting[0] = first[room:]
            else:
                self._waiting.popleft()

    def problem(self) -> str | None:
        if self._line.is_over():  # stays open while a server is replaced
            return f"{self._mountpoint} is no longer mounted"
        missing, first = self._order.missing
        if missing:
            return (
                f"{missing:,} of the files that will be read are not on the mount, "
                f"{self._mountpoint}/{os.fsdecode(first)} for one"
            )
        return None

    def close(self) -> None:
        self._line.close()
        self._order.close()


def _send(mountpoint: str, descriptor: int, label: str) -> Connection:
    request = {"verb": "plan", "label": label, "pid": os.getpid()}
    try:
        # If the server is killed during the exchange, its replacement is tried, once.
        for _ in range(2):
            line = connect(_socket_of(mountpoint))
            try:
                if exchange(line, request, [descriptor]) is not None:
                    return line
            except BaseException:
                line.close()
                raise
            line.close()
    except PenstockError as error:  # a server of an older release does not know plans
        raise PlanError(f"{mountpoint} takes no plan: {error}", hint=error.hint) from error
    raise PlanError(f"{mountpoint} takes no plan: its server ended twice")


def _job_data() -> dict[str, list[str]]:
    """In a training job a mount is visible at another path than where it is served: by that path,
    the server's socket, and the folder of the mount that is visible there."""
    return json.loads(os.environ.get("PENSTOCK_JOB_DATA") or "{}")


def _socket_of(mountpoint: str) -> Path:
    if (seen := _job_data().get(mountpoint)) is not None:
        return Path(seen[0])
    return find_served(Path(mountpoint)).socket_path


class _Mounts:
    """Finds the mounts of paths. Resolves each folder once: a million files are in few folders."""

    def __init__(self) -> None:
        table = mount_table()
        self._ours = {entry.mountpoint for entry in table if entry.kind == FILESYSTEM_TYPE}
        # Other file systems may be mounted below a Penstock mount, and hide its files.
        self._all = sorted({entry.mountpoint for entry in table}, key=len, reverse=True)
        self.roots: set[str] = set()  # of `split_by_mount`
        self._job_data = _job_data()

    def split_by_mount(self, paths: Sequence[str]) -> "dict[str, tuple[list[bytes], array[int]]]":
        """Return, for each mount point, the names below it and the index of each in `paths`.

        1.28 million in 1,000 folders take 0.6 s, 1.2 s if shuffled: the first batch waits.
        """
        shares: dict[str, tuple[list[str], array[int]]] = {}
        folders: dict[str, tuple[list[str], array[int], str] | None] = {}
        share, last = None, ""
        for place, path in enumerate(paths if self._ours else ()):
            folder, slash, name = path.rpartition("/")
            if folder != last or not folder:  # paths mostly come folder by folder
                last, key = folder, folder + slash
                if key not in folders:
                    folders[key] = self._part_of(key, shares)
                share = folders[key]
            if share is not None:
                names, places, below = share
                names.append(below + name)
                places.append(place)
        how = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
        return {
            mountpoint: ([name.encode(*how) for name in names], places)
            for mountpoint, (names, places) in shares.items()
        }

    def _part_of(
        self, folder: str, shares: "dict[str, tuple[list[str], array[int]]]"
    ) -> "tuple[list[str], array[int], str] | None":
        if (found := self._find_folder(folder)) is None:
            return None
        mountpoint, below = found
        self.roots.add(_root_of(folder, below))
        _, seen = self._job_data.get(mountpoint, ("", ""))
        above = f"{seen}/" if seen else ""
        return *shares.setdefault(mountpoint, ([], array("I"))), above + below

    def mount_of(self, path: str) -> str | None:
        folder, name = os.path.split(path)
        itself = os.path.join(os.path.realpath(folder or "."), name)
        if itself in self._all:
            return itself if itself in self._ours else None
        found = self._find_folder(folder)
        return None if found is None else found[0]

    def _find_folder(self, folder: str) -> tuple[str, str] | None:
        """Return (mount point, path below it with a slash at its end)."""
        # The mount table spells paths with links resolved.
        real = os.path.realpath(folder or ".")
        for mountpoint in self._all:
            if real == mountpoint or real.startswith(mountpoint.rstrip("/") + "/"):
                if mountpoint not in self._ours:
                    return None
                below = os.path.relpath(real, mountpoint)
                return mountpoint, "" if below == "." else below + "/"
        return None


def _root_of(folder: str, below: str) -> str:
    """Return the part of `folder` that leads to the mount, possibly through a link. `below` is the
    folder's path on the mount; what both end in comes after the link."""
    names, ends = folder.split("/"), below.split("/")
    while names and ends and names[-1] == ends[-1]:
        names.pop()
        ends.pop()
    return "/".join(names)


_open_plans: "weakref.WeakSet[Plan]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for plan in list(_open_plans):
        plan.drop_in_child()
    _open_plans.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
