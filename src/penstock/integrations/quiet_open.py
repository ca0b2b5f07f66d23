"""`open()` without a message to the mount's server; for `penstock run`, and Python before 3.14.

Before 3.14 `open` asks each file that it opens whether it is a terminal, unless it is told a buffer
size. The kernel passes that question (an ioctl) on to the server of a FUSE mount: 1,786 messages a
second when files are read at that rate, besides which nothing else of a warm read reaches it. So
for regular files on a Penstock mount, opened for reading, `open` is given the size that it would
have chosen. All else it gets as the script gave it.

Threading: any thread, as `open`. What is known of mounts is one tuple, which is replaced.
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
    """In place of `builtins.open` and `io.open`, which are the same."""
    if (
        sys.version_info < (3, 14)
        and builtins.open is io.open  # or the script has put its own there
        and not isinstance(io.open, QuietOpen)
        and not sys.flags.warn_default_encoding  # who wants to know who calls it should see that
    ):
        quiet: Any = QuietOpen(io.open)
        builtins.open = io.open = quiet
        learn(())


def learn(roots: Iterable[str]) -> None:
    """The mounts that there are now, and other names of theirs (links), as absolute paths. Nothing
    if it is not installed."""
    quiet: Any = io.open
    if isinstance(quiet, QuietOpen):
        ours = [entry.mountpoint for entry in mount_table() if entry.kind == FILESYSTEM_TYPE]
        found = {os.path.join(root, "") for root in (*ours, *roots) if os.path.isabs(root)}
        quiet.roots = tuple(sorted(found.union(quiet.roots) - {"/"}))


class QuietOpen:
    """An object, and not a function: as an attribute of a class it must not take a `self`."""

    def __init__(self, original: Any) -> None:
        self.roots: tuple[str, ...] = ()
        self._original = original
        update_wrapper(self, original)  # its name, signature, what help() says
        self.__module__ = "io"  # where pickle finds it; 3.12 and later say _io, which keeps its own

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str:
        return "open"  # where it is unpickled, it is what is there

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        size = self._size(arguments, options)
        if size is None:
            return self._original(*arguments, **options)
        if len(arguments) > 2:
            return self._original(*arguments[:2], size, *arguments[3:], **options)
        return self._original(*arguments, **{**options, "buffering": size})

    def _size(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> int | None:
        """Of the buffer; None if it is not ours to say."""
        given = {**options, **dict(zip(_NAMES, arguments, strict=False))}
        mode, buffering = given.get("mode", "r"), given.get("buffering", -1)
        if type(mode) is not str or mode not in _READING or given.get("opener") is not None:
            return None
        if type(buffering) is not int or buffering != -1:
            return None
        path = given.get("file")
        if isinstance(path, PurePath):  # which can be asked for its name without a trace
            path = str(path)
        if type(path) is not str or not path.startswith(self.roots):
            return None
        try:
            found = os.stat(path)  # the kernel knows it: no message
        except (OSError, ValueError):
            return None  # `open` will say why
        if not stat.S_ISREG(found.st_mode):
            return None
        return found.st_blksize if found.st_blksize > 1 else io.DEFAULT_BUFFER_SIZE
