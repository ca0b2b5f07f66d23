"""What an instance prints, kept: cleaned of secrets, its beginning and its end, never more than so
much. Whoever prints never waits for it, nor for a full disk.

    beginning      the first half of what is kept
    --- … bytes are missing here ---
    end            at most the other half: when it is full, its older half is dropped

Threading: one thread writes. Readers may follow the file; when it is shorter than it was, a part of
the end has been dropped.
"""

import os
import re
from pathlib import Path

from penstock.store.secrets import redact_bytes

# A line without an end is cut here.
_LINE_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
_LEAST_BYTES = 4096
_TAIL_BYTES = 8192  # torchrun says 3 KB after the words of a process that has failed
_MARK = re.compile(rb"\n--- ([0-9,]+) bytes are missing here ---\n")
_MARK_BYTES = 64  # more than the line needs that tells what is missing


class Log:
    def __init__(self, path: Path, most_bytes: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._half = max(_LEAST_BYTES, most_bytes) // 2
        self._size = os.lseek(self._file, 0, os.SEEK_END)
        self._end_at = 0  # where the end begins, once something was dropped
        self._dropped = self._mark = 0  # bytes, and the length of the line that tells so
        self._held = b""
        self._find_mark()

    def _find_mark(self) -> None:
        """Of an attempt before this one, which has dropped some. It is where the end begins."""
        head = os.pread(self._file, min(self._size, self._half + _MARK_BYTES), 0)
        if found := list(_MARK.finditer(head)):
            self._end_at = found[-1].start()
            self._mark = len(found[-1][0])
            self._dropped = int(found[-1][1].replace(b",", b""))

    def take(self, data: bytes) -> None:
        data = self._held + data
        # The bars that show progress end their lines with \r.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LINE_BYTES:
            end = len(data)
        self._held = data[end:]
        self._write(data[:end])

    def note(self, line: str) -> None:
        """A line of our own."""
        self._write(self._held + (b"\n" if self._held else b""))
        self._held = b""
        self._write(line.encode() + b"\n")

    def tail(self) -> str:
        size = min(self._size, _TAIL_BYTES)
        return os.pread(self._file, size, self._size - size).decode("utf-8", "replace")

    def close(self) -> None:
        self._write(self._held)
        self._held = b""
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        clean = redact_bytes(data)
        try:
            if self._size + len(clean) > 2 * self._half:
                clean = self._make_room(clean)
            while clean:
                written = os.pwrite(self._file, clean, self._size)
                self._size += written
                clean = clean[written:]
        except OSError:
            self._dropped += len(clean)  # the disk is full: the job goes on

    def _make_room(self, clean: bytes) -> bytes:
        """Drops the older half of the end, or all of it; what comes after it is returned."""
        if not self._mark:
            self._end_at = min(self._half, self._size)
        end = self._size - self._end_at - self._mark
        kept = max(0, min(self._half // 2, end - _MARK_BYTES, self._half - len(clean)))
        if len(clean) > self._half:
            self._dropped += len(clean) - self._half
            clean, kept = clean[-self._half :], 0
        self._dropped += end - kept
        mark = f"\n--- {self._dropped:,} bytes are missing here ---\n".encode()
        self._move(self._size - kept, self._end_at + len(mark), kept)
        os.pwrite(self._file, mark, self._end_at)
        self._mark = len(mark)
        self._size = self._end_at + len(mark) + kept
        os.ftruncate(self._file, self._size)
        return clean

    def _move(self, source: int, target: int, size: int) -> None:
        """Towards the beginning; what overlaps is read before it is written over."""
        for at in range(0, size, _COPY_BYTES):
            piece = os.pread(self._file, min(_COPY_BYTES, size - at), source + at)
            os.pwrite(self._file, piece, target + at)
