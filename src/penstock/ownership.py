"""Checks that no other user can change a directory before root keeps files in it.

The owner of a folder, and every user who may write to it, can put a link or a file where root is
about to read or write. So every parent folder is checked too, as sshd does. Ordinary users decide
themselves which folders they trust. May be called from any thread.
"""

import os
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_INITIAL_NAMESPACE = ["0", "0", "4294967295"]


def is_trusted(folder: Path) -> bool:
    """Return whether the folder belongs to us or to root."""
    return os.lstat(folder).st_uid in (0, os.geteuid())


def why_untrusted(path: Path, entries: Iterable[str], *, may_be_sticky: bool) -> str | None:
    """Return how another user could change the directory or one of these entries; None if no other
    user could, or we are not root.

    Missing folders are trusted: root will create them. In a sticky folder, such as /tmp, others
    cannot change our files, but they can add files.
    """
    if os.geteuid() != 0:
        return None
    why = _why_untrusted(path, may_be_sticky=may_be_sticky)
    found = (_why_untrusted(path / entry, may_be_sticky=True) for entry in entries)
    return why or next((one for one in found if one), None)


def _why_untrusted(path: Path, *, may_be_sticky: bool) -> str | None:
    for folder in reversed((path, *path.parents)):
        try:
            status = os.lstat(folder)
            if stat.S_ISLNK(status.st_mode):
                os.stat(folder)  # raises for a loop of links
        except OSError:  # missing or unusable: creating or opening it reports that
            continue
        sticky_is_safe = may_be_sticky or folder != path
        if status.st_uid not in _trusted_users():
            return f"{folder} belongs to another user (uid {status.st_uid})"
        if stat.S_ISLNK(status.st_mode):
            why = _why_untrusted(folder.parent / os.readlink(folder), may_be_sticky=sticky_is_safe)
            if why is not None:
                return why
        elif _others_write(status) and not (sticky_is_safe and status.st_mode & stat.S_ISVTX):
            return f"other users may write to {folder}"
    return None


def _others_write(status: os.stat_result) -> bool:
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
    return bool(by_group or status.st_mode & stat.S_IWOTH)


@cache
def _trusted_users() -> frozenset[int]:
    """Return root; in a user namespace also users that it does not map, such as the real root."""
    with open("/proc/self/uid_map") as uid_map, open("/proc/sys/kernel/overflowuid") as overflow:
        if uid_map.read().split() == _INITIAL_NAMESPACE:
            return frozenset((0,))
        return frozenset((0, int(overflow.read())))
