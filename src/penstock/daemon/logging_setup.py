"""The log file of a mount, to which its supervisor, server and workers write. Closed to others, and
never opened through a link."""

import logging
import logging.handlers
from io import TextIOWrapper

from penstock.paths import open_private

_MOST_BYTES = 4 << 20  # a store that fails for a week must not fill the disk with it


class _PrivateFile(logging.FileHandler):
    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=open_private)


class RotatedLog(_PrivateFile, logging.handlers.RotatingFileHandler):
    """The server's, which turns the file over when it is long."""

    def __init__(self, path: str) -> None:
        logging.handlers.RotatingFileHandler.__init__(
            self, path, maxBytes=_MOST_BYTES, backupCount=1
        )


class WatchedLog(_PrivateFile, logging.handlers.WatchedFileHandler):
    """Of the others, who open it anew then. A log that cannot be written is no reason to end a
    mount."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # it was about to open the file again
            self.handleError(record)
