"""What is asked of a data set's mount: whether it is served, how it is, to list new parts.

A server that takes over asks no store, so that an upgrade cannot fail for one. Who declares a part
wants to know: a store that refuses must leave what was there, so the stores of parts that a running
mount gets are asked before it changes; and one that is taken must be seen, so it is listed after.
"""

from pathlib import Path
from typing import Any

from penstock.daemon.claim import claimed_by
from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, find_note
from penstock.errors import MountpointError, PenstockError
from penstock.metrics import Counters
from penstock.settings import MountSettings
from penstock.specs.kinds import ResourceKey
from penstock.store.patience import FIRST_CONTACT_S, open_reliable_store

Json = dict[str, Any]

_LISTING_TAKES_AT_MOST_S = 3600


class Busy(Exception):
    """Someone else is at it: look again in a moment."""


def served(mountpoint: Path, key: ResourceKey) -> MountNote | None:
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


def ask_new_stores(current: MountSettings, wanted: MountSettings) -> None:
    """The first page of each that is elsewhere now, or asked with other keys. Raises what it
    answers."""
    for part in wanted.parts:
        if part not in current.parts:
            store = open_reliable_store(part.source, part.store, Counters())
            next(iter(store.hurried(FIRST_CONTACT_S).list_all("")), None)


def list_new_parts(mountpoint: Path) -> None:
    """Returns when they are in the tree. Raises what the first that cannot be listed says."""
    answer: dict[str, Any] = ask(
        find_note(mountpoint).socket_path,
        "refresh",
        timeout_s=_LISTING_TAKES_AT_MOST_S,
        only_new=True,
    )
    for failure in answer["failed"]:
        error = PenstockError(f"{failure['path']}: {failure['error']}", hint=failure["hint"])
        error.exit_code = failure["exit_code"]
        raise error
