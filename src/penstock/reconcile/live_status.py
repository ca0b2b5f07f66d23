"""Resources as they are shown: what was observed, and what mounts tell of themselves right now.

Never waits long: a mount that does not answer in time is shown as it was seen last. Imports neither
models nor stores, so that `get` is quick.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.daemon.claim import claimed_by
from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, all_notes, find_note
from penstock.errors import MountpointError, PenstockError
from penstock.jobs.job_status import ENDED
from penstock.mounttable import mount_table
from penstock.reconcile.conditions import BOUND, EXECUTING, NOT_BOUND, dataset_amounts, stamp
from penstock.reconcile.snapshot import Stored
from penstock.specs.kinds import KINDS, ResourceKey

Served = Callable[[Path, ResourceKey], bool]


def served_mounts() -> Served:
    """Looks at the mount table once for all of them."""
    mounted = {entry.mountpoint for entry in mount_table() if entry.kind.startswith("fuse")}
    noted = {note.mountpoint: note for note in all_notes()}

    def is_served(mountpoint: Path, key: ResourceKey) -> bool:
        note = noted.get(str(mountpoint))
        return (
            str(mountpoint) in mounted
            and note is not None
            and note.source == str(key)
            and bool(note.processes)
        )

    return is_served


Json = dict[str, Any]

# Of 200 mounts on two cores, asked at once, the last answers after 0.3 s.
_ANSWERS_WITHIN_S = 0.7
# A program that asks for one goes by what it is told.
ONE_ANSWERS_WITHIN_S = 5.0
_ASKED_AT_ONCE = 32


def show(stored: Iterable[Stored], *, within_s: float | None = None) -> list[Json]:
    """Whole objects, as `-o json` prints them. Secrets are hidden: they are stored apart."""
    stored = list(stored)
    bound = {
        one.uid: (one.note["mountpoint"], str(one.key))
        for one in stored
        if one.key.kind == "Dataset" and one.status.get("phase") == BOUND
    }
    briefs = _ask_all(bound, _ANSWERS_WITHIN_S if within_s is None else within_s)
    return [_shown(one, _status(one, briefs)) for one in stored]


def is_missing(shown: Json) -> bool:
    """Should it be mounted, and is not?"""
    return bool(shown.get("status", {}).get("missing"))


def has_work(stored: Iterable[Stored]) -> bool:
    """Is something wanted that no loop has looked at yet? Who wanted it was killed, or the loop."""
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
        elif category == "job" and _has_job_work(one):
            return True
    return False


def _has_job_work(job: Stored) -> bool:
    if job.status.get("phase") not in ENDED:
        return True
    ttl_s: int | None = job.spec.get("ttlSecondsAfterFinished")
    return ttl_s is not None and job.note.get("ended_s", 0.0) + ttl_s <= time.time()


def _shown(one: Stored, status: Json) -> Json:
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
    if brief is None:  # nobody serves it: it was unmounted, or the machine has been restarted
        return {**one.status, "phase": NOT_BOUND, "missing": True}
    return {**one.status, **dataset_amounts(brief)} if brief else one.status


def _ask_all(bound: Mapping[str, tuple[str, str]], within_s: float) -> dict[str, Json | None]:
    """By uid: what its mount says; {} if it does not say anything in time; None without one."""
    if not bound:
        return {}
    mounted = {entry.mountpoint for entry in mount_table()}
    notes = {note.mountpoint: note for note in all_notes()}
    until_s = time.monotonic() + within_s

    def brief(wanted: tuple[str, str]) -> Json | None:
        mountpoint, title = wanted
        note = notes.get(mountpoint)
        if note is None or mountpoint not in mounted or note.source != title or not note.processes:
            return None
        return _brief(note, until_s - time.monotonic())

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        return dict(zip(bound, threads.map(brief, bound.values()), strict=True))


def _brief(note: MountNote, timeout_s: float) -> Json:
    if timeout_s <= 0:
        return {}
    try:
        return ask(Path(note.socket_path), "brief", timeout_s=timeout_s)
    except (PenstockError, OSError):
        return {}


class Busy(Exception):
    """Someone else is at it: look again in a moment."""


def find_mount_note(mountpoint: Path, key: ResourceKey) -> MountNote | None:
    """The note of the data set's mount, if it is there and has processes. Raises Busy while one is
    being made, or is on its way out, and MountpointError if another one is there."""
    try:
        note = find_note(mountpoint)
    except MountpointError:
        note = None
    if note is not None and note.alive:
        if note.source != str(key):
            raise not_ours(mountpoint, note.source)
        return note
    if claimed_by(mountpoint) is not None:
        raise Busy
    return None


def ask_brief(mountpoint: Path, timeout_s: float = 5.0) -> Json | None:
    """What a mount tells of itself; None if it cannot just now."""
    try:
        return ask(find_note(mountpoint).socket_path, "brief", timeout_s=timeout_s)
    except (PenstockError, OSError):
        return None


def not_ours(mountpoint: Path, whose: str) -> MountpointError:
    return MountpointError(
        f"{mountpoint} is where {whose} is mounted",
        hint="the annotation penstock.dev/mount-path names another place",
    )
