"""Which directories root may keep things in: those that no other user can change.

Whoever owns a folder, or may write to it, can put a link or a file of his own where root is about
to write or read. So every folder on the way to a directory counts, as for sshd. An ordinary user
decides for himself whom he trusts. Functions only; may be called from any thread.
"""

import os
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_INITIAL_NAMESPACE = ["0", "0", "4294967295"]


def is_trusted(folder: Path) -> bool:
    """Whether it belongs to us or to root."""
    return os.lstat(folder).st_uid in (0, os.geteuid())


def why_untrusted(path: Path, entries: Iterable[str], *, may_be_sticky: bool) -> str | None:
    """Return how another user could change the directory, or had a hand in one of these entries;
    None if nobody could, or we are not root. What does not exist yet is ours to make.

    In a sticky folder, as /tmp or a tmpfs is, others cannot touch what is ours, but add to it."""
    if os.geteuid() != 0:
        return None
    why = _why_foreign(path, may_be_sticky=may_be_sticky)
    found = (_why_foreign(path / entry, may_be_sticky=True) for entry in entries)
    return why or next((one for one in found if one), None)


def _why_foreign(path: Path, *, may_be_sticky: bool) -> str | None:
    for folder in reversed((path, *path.parents)):
        try:
            status = os.lstat(folder)
            if stat.S_ISLNK(status.st_mode):
                os.stat(folder)  # one that leads round in circles ends here
        except OSError:  # missing, or of no use: who makes or opens it says so
            continue
        on_the_way = may_be_sticky or folder != path
        if status.st_uid not in _trusted_users():
            return f"{folder} belongs to another user (uid {status.st_uid})"
        if stat.S_ISLNK(status.st_mode):
            why = _why_foreign(folder.parent / os.readlink(folder), may_be_sticky=on_the_way)
            if why is not None:
                return why
        elif _others_write(status) and not (on_the_way and status.st_mode & stat.S_ISVTX):
            return f"other users may write to {folder}"
    return None


def _others_write(status: os.stat_result) -> bool:
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
    return bool(by_group or status.st_mode & stat.S_IWOTH)


@cache
def _trusted_users() -> frozenset[int]:
    """Root; in a user namespace also whoever has no number in it, like root of the machine."""
    with open("/proc/self/uid_map") as uid_map, open("/proc/sys/kernel/overflowuid") as overflow:
        if uid_map.read().split() == _INITIAL_NAMESPACE:
            return frozenset((0,))
        return frozenset((0, int(overflow.read())))
