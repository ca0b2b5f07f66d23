"""Parts that a running mount gets: their stores are asked before it changes, and listed behind it.

A server that takes over asks no store, so that an upgrade cannot fail for one. Who declares a part
wants to know: a store that refuses must leave what was there, and one that is taken must be seen.
"""

from pathlib import Path
from typing import Any

from penstock.daemon.control import ask
from penstock.daemon.registry import find_note
from penstock.daemon.settings import MountSettings
from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.store.reliable import FIRST_CONTACT_S, open_reliable_store

_LISTING_TAKES_AT_MOST_S = 3600


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
        find_note(mountpoint).socket_path, "refresh", timeout_s=_LISTING_TAKES_AT_MOST_S,
        only_new=True,
    )  # fmt: skip
    for failure in answer["failed"]:
        error = PenstockError(f"{failure['path']}: {failure['error']}", hint=failure["hint"])
        error.exit_code = failure["exit_code"]
        raise error
