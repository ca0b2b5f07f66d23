"""The log file of a background mount, to which its supervisor, server and workers write.

The server rotates it, and the others reopen it then. It is readable by its user only, and never
opened through a link.
"""

import contextlib
import logging
import logging.handlers
import sys
from io import TextIOWrapper

from penstock.paths import open_private

_MOST_BYTES = 4 << 20  # a store that fails for a week must not fill the disk with it


class _PrivateFile(logging.FileHandler):
    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=open_private)


class _RotatingLog(_PrivateFile, logging.handlers.RotatingFileHandler):
    """The server's handler."""

    def __init__(self, path: str) -> None:
        logging.handlers.RotatingFileHandler.__init__(
            self, path, maxBytes=_MOST_BYTES, backupCount=1
        )


class _WatchedLog(_PrivateFile, logging.handlers.WatchedFileHandler):
    """The handler of supervisor and workers, which reopens the file after a rotation."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # reopening failed; a log that cannot be written must not end a mount
            self.handleError(record)


def open_log(path: str | None, *, rotate: bool = False) -> logging.Handler:
    """Return a handler that writes to `path`, or to stderr if that cannot be opened or is None."""
    if path is not None:
        with contextlib.suppress(OSError):  # removed, or something else is in its place
            return _RotatingLog(path) if rotate else _WatchedLog(path)
    return logging.StreamHandler(sys.stderr)


def stop_rotating() -> None:
    """In a worker, forked from a server: leave rotation to the server."""
    root = logging.getLogger()
    for handler in root.handlers.copy():
        if isinstance(handler, _RotatingLog):
            watched = _WatchedLog(handler.baseFilename)
            watched.setFormatter(handler.formatter)
            root.removeHandler(handler)
            root.addHandler(watched)
