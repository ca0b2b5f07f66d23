"""The mounts of data sets at this moment: which are served, and what they report.

`show` gives resources as `get` prints them: what was observed, completed by the mounts' own counts.
It never waits long: for a mount that does not answer in time it shows what was observed last.
Imports neither models nor stores, so that `get` starts quickly.
"""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import MountNote, all_notes, claimed_by, find_note
from penstock.errors import MountpointError, PenstockError
from penstock.jobs.job_status import ENDED
from penstock.mounttable import mount_table
from penstock.reconcile.conditions import BOUND, EXECUTING, NOT_BOUND, dataset_amounts, stamp
from penstock.reconcile.snapshot import Served, Stored
from penstock.specs.kinds import KINDS, ResourceKey

Json = dict[str, Any]

# Of 200 mounts on two cores, asked at once, the last answers after 0.3 s.
_ANSWER_S = 0.7
# A program that asks for one resource relies on the answer, so it may take longer.
ONE_ANSWERS_WITHIN_S = 5.0
_MOST_THREADS = 32


class Busy(Exception):
    """The mount is being made or removed by another process: look again in a moment."""


def served_mounts() -> Served:
    """Read the mount table and the notes once; return a test for (mount point, data set)."""
    mounted = {entry.mountpoint for entry in mount_table() if entry.kind.startswith("fuse")}
    notes = {note.mountpoint: note for note in all_notes()}

    def is_served(mountpoint: Path, key: ResourceKey) -> bool:
        path = str(mountpoint)
        return path in mounted and _is_of(notes.get(path), str(key))

    return is_served


def find_mount_note(mountpoint: Path, key: ResourceKey) -> MountNote | None:
    """Return the note of the data set's mount, if it is there and has processes.

    Raises Busy while a mount is being made or removed there, and MountpointError if another
    source is mounted there.
    """
    try:
        note = find_note(mountpoint)
    except MountpointError:
        note = None
    if note is not None and note.alive:
        if note.source != str(key):
            raise occupied(mountpoint, note.source)
        return note
    if claimed_by(mountpoint) is not None:
        raise Busy
    return None


def occupied(mountpoint: Path, source: str) -> MountpointError:
    return MountpointError(
        f"{source} is mounted at {mountpoint}",
        hint="the annotation penstock.dev/mount-path names another place",
    )


def ask_brief(mountpoint: Path, timeout_s: float = 5.0) -> Json | None:
    """Return the mount's own summary; None if it does not answer."""
    try:
        return ask(find_note(mountpoint).socket_path, "brief", timeout_s=timeout_s)
    except (PenstockError, OSError):
        return None


# -- resources as `get` shows them -----------------------------------------------------


def show(stored: Iterable[Stored], *, within_s: float | None = None) -> list[Json]:
    """Return whole objects, as `-o json` prints them. Secrets are not in them: they are sealed."""
    stored = list(stored)
    bound = {
        one.uid: (one.note["mountpoint"], str(one.key))
        for one in stored
        if one.key.kind == "Dataset" and one.status.get("phase") == BOUND
    }
    briefs = _ask_all(bound, _ANSWER_S if within_s is None else within_s)
    return [_show_one(one, _status(one, briefs)) for one in stored]


def is_missing(shown: Json) -> bool:
    """Is it Bound by its status, but not mounted?"""
    return bool(shown.get("status", {}).get("missing"))


def has_work(stored: Iterable[Stored]) -> bool:
    """Is there work that no loop has looked at? Its loop, or the client, may have been killed."""
    for one in stored:
        if one.deleting is not None:
            return True
        category = KINDS[one.key.kind].category
        if category in ("dataset", "runtime"):
            if one.status.get("observedGeneration") != one.generation:
                return True
        elif category == "operation":
            if one.status.get("phase") in (None, EXECUTING):
                return True
        elif category == "job" and _job_has_work(one):
            return True
    return False


def _job_has_work(job: Stored) -> bool:
    if job.status.get("phase") not in ENDED:
        return True
    ttl_s: int | None = job.spec.get("ttlSecondsAfterFinished")
    return ttl_s is not None and job.note.get("ended_s", 0.0) + ttl_s <= time.time()


def _show_one(one: Stored, status: Json) -> Json:
    metadata = {
        **one.manifest["metadata"],
        "uid": one.uid,
        "generation": one.generation,
        "creationTimestamp": stamp(one.created_s),
    }
    if one.deleting is not None:
        metadata["deletionTimestamp"] = stamp(one.deleting["at_s"])
    shown = {**one.manifest, "metadata": metadata}
    return {**shown, "status": status} if one.key.kind != "Secret" else shown


def _status(one: Stored, briefs: Mapping[str, Json | None]) -> Json:
    if one.uid not in briefs:
        return one.status
    brief = briefs[one.uid]
    if brief is None:  # it was unmounted by hand, or the machine was restarted
        return {**one.status, "phase": NOT_BOUND, "missing": True}
    return {**one.status, **dataset_amounts(brief)} if brief else one.status


def _ask_all(bound: Mapping[str, tuple[str, str]], within_s: float) -> dict[str, Json | None]:
    """Return each mount's summary by uid; {} if it does not answer in time, None if not mounted."""
    if not bound:
        return {}
    mounted = {entry.mountpoint for entry in mount_table()}
    notes = {note.mountpoint: note for note in all_notes()}
    until_s = time.monotonic() + within_s

    def brief(wanted: tuple[str, str]) -> Json | None:
        mountpoint, title = wanted
        note = notes.get(mountpoint)
        if mountpoint not in mounted or note is None or not _is_of(note, title):
            return None
        timeout_s = until_s - time.monotonic()
        if timeout_s <= 0:
            return {}
        try:
            return ask(Path(note.socket_path), "brief", timeout_s=timeout_s)
        except (PenstockError, OSError):
            return {}

    with ThreadPoolExecutor(_MOST_THREADS) as threads:
        return dict(zip(bound, threads.map(brief, bound.values()), strict=True))


def _is_of(note: MountNote | None, title: str) -> bool:
    return note is not None and note.source == title and bool(note.processes)
