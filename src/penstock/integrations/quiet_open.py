"""`open()` without a message to the mount's server; for `penstock run`, and Python before 3.14.

Before 3.14, `open` asks each file whether it is a terminal, unless a buffer size is given. The
kernel forwards this ioctl to the server of a FUSE mount: 1,786 messages a second when files are
read at that rate, while nothing else of a warm read reaches the server. So for regular files on a
Penstock mount, opened for reading, `open` gets the buffer size that it would have chosen itself.
All other calls are passed on unchanged.

Threading: any thread, as `open`. The known mounts are one tuple, which is replaced as a whole.
"""

import builtins
import io
import os
import stat
import sys
from collections.abc import Iterable
from functools import update_wrapper
from inspect import signature
from pathlib import PurePath
from typing import Any

from penstock.fuse.mounting import FILESYSTEM_TYPE
from penstock.mounttable import mount_table

_READING = frozenset(("r", "rb", "br", "rt", "tr"))
_NAMES = tuple(signature(io.open).parameters)


def install() -> None:
    """Replace `builtins.open` and `io.open`, which are the same function."""
    if (
        sys.version_info < (3, 14)
        and builtins.open is io.open  # else the script has replaced one of them
        and not isinstance(io.open, QuietOpen)
        and not sys.flags.warn_default_encoding  # the warning names the caller of open
    ):
        quiet: Any = QuietOpen(io.open)
        builtins.open = io.open = quiet
        add_roots(())


def add_roots(roots: Iterable[str]) -> None:
    """Add the current mounts, and other absolute paths that lead to them (links). Does nothing if
    `install` did nothing."""
    quiet: Any = io.open
    if isinstance(quiet, QuietOpen):
        ours = [entry.mountpoint for entry in mount_table() if entry.kind == FILESYSTEM_TYPE]
        found = {os.path.join(root, "") for root in (*ours, *roots) if os.path.isabs(root)}
        quiet.roots = tuple(sorted(found.union(quiet.roots) - {"/"}))


class QuietOpen:
    """An object, not a function: as an attribute of a class it must not take a `self`."""

    def __init__(self, original: Any) -> None:
        self.roots: tuple[str, ...] = ()
        self._original = original
        update_wrapper(self, original)  # its name, signature and help
        self.__module__ = (
            "io"  # where pickle finds it; in 3.12 and later it is _io, which keeps the original
        )

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str:
        return "open"  # unpickled as whatever `open` is there

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        size = self._size(arguments, options)
        if size is None:
            return self._original(*arguments, **options)
        if len(arguments) > 2:
            return self._original(*arguments[:2], size, *arguments[3:], **options)
        return self._original(*arguments, **{**options, "buffering": size})

    def _size(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> int | None:
        """Return the buffer size to add; None to pass the call on unchanged."""
        given = {**options, **dict(zip(_NAMES, arguments, strict=False))}
        mode, buffering = given.get("mode", "r"), given.get("buffering", -1)
        if type(mode) is not str or mode not in _READING or given.get("opener") is not None:
            return None
        if type(buffering) is not int or buffering != -1:
            return None
        path = given.get("file")
        if isinstance(path, PurePath):  # its str() has no side effect
            path = str(path)
        if type(path) is not str or not path.startswith(self.roots):
            return None
        try:
            found = os.stat(path)  # answered from the kernel's caches: no message
        except (OSError, ValueError):
            return None  # `open` will raise the error
        if not stat.S_ISREG(found.st_mode):
            return None
        return found.st_blksize if found.st_blksize > 1 else io.DEFAULT_BUFFER_SIZE
