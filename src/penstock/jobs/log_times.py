"""When an instance printed what is in its log: an entry for each second in which it printed.

An entry counts all bytes printed before it, those included that the log has dropped since, so that
entries stay true when the log drops a part of its middle.
"""

import mmap
import os
import re
import struct
import time
from bisect import bisect_left
from pathlib import Path

# Seconds since the epoch, and the bytes printed before. 1.4 MB for a day of constant output.
_ENTRY = struct.Struct("<QQ")
MISSING = re.compile(rb"\n--- ([0-9,]+) bytes are missing here ---\n")


def times_path(log: Path) -> Path:
    return log.with_suffix(".times")


class LogTimes:
    """Written by the keeper, beside the log. A full disk costs entries, never the job."""

    def __init__(self, log: Path) -> None:
        self._last_s = 0
        self._file: int | None = None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(times_path(log), flags, 0o600)
        except OSError:
            return  # `logs --since` then shows all of it

    def take(self, printed_bytes: int) -> None:
        """Note what was printed before now; the first time in each second counts."""
        now_s = int(time.time())
        if self._file is None or now_s == self._last_s:
            return
        self._last_s = now_s
        try:
            os.write(self._file, _ENTRY.pack(now_s, printed_bytes))
        except OSError:
            return

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def offset_since(log: Path, begin_s: float) -> int:
    """Return the offset in the log of what was printed since then, to the second."""
    try:
        content = times_path(log).read_bytes()
    except FileNotFoundError:
        return 0
    whole = len(content) // _ENTRY.size * _ENTRY.size
    entries = list(_ENTRY.iter_unpack(content[:whole]))
    first = bisect_left(entries, int(begin_s), key=lambda entry: entry[0])
    if first == len(entries):
        return log.stat().st_size
    printed: int = entries[first][1]
    with log.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
            return _offset(text, printed)


def _offset(text: mmap.mmap, printed_bytes: int) -> int:
    """Where the byte with this number is in a log whose middle may be missing."""
    marks = list(MISSING.finditer(text))
    mark = marks[-1] if marks else None
    if mark is None or printed_bytes <= mark.start():
        return printed_bytes
    dropped = int(mark[1].replace(b",", b""))
    return max(mark.end(), printed_bytes - dropped + len(mark[0]))
