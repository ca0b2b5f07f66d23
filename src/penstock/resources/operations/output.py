"""What a process says, kept: cleaned of secrets, and never more than so much of it.

Threading: one thread reads; any may ask how much there was.
"""

import os
from pathlib import Path

from penstock.daemon.places import open_private
from penstock.store.secrets import redact
from penstock.units import MIB

# The last 16 to 32 MiB are kept: in two files, of which the older one goes.
MOST_BYTES = 16 * MIB
_PIECE_BYTES = 64 * 1024
# A line without an end is cut here.
_LINE_BYTES = 1 * MIB


class Output:
    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.size_bytes = 0  # in all
        self._most_bytes = most_bytes
        self._file = open(path, "ab", buffering=0, opener=open_private)  # noqa: SIM115
        self._held = b""

    def take_all(self, descriptor: int) -> None:
        """Until nobody holds the other end any more."""
        while piece := os.read(descriptor, _PIECE_BYTES):
            self.size_bytes += len(piece)
            lines, newline, rest = (self._held + piece).rpartition(b"\n")
            if len(rest) > _LINE_BYTES:
                lines, newline, rest = self._held + piece, b"", b""
            self._held = rest
            self._write(lines + newline)
        self._write(self._held)
        self._held = b""

    def note(self, line: str) -> None:
        self._write(line.encode() + b"\n")

    def last_line(self) -> str:
        with open(self.path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        if not data:
            return
        clean = redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if os.fstat(self._file.fileno()).st_size + len(clean) > self._most_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = open(self.path, "ab", buffering=0, opener=open_private)  # noqa: SIM115
        self._file.write(clean)
