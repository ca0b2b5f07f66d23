"""A log, however large it is: its last lines, all of it, what is added. Never all in memory."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 16
_LOOK_S = 0.2


def start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin. Reads from the end, and no more than they are."""
    end = position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    left = lines
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        # The newline at the very end closes the last line; it begins none.
        last = size - 1 if position + size == end and block.endswith(b"\n") else size
        while (last := block.rfind(b"\n", 0, last)) >= 0:
            left -= 1
            if not left:
                return position + last + 1
    return 0


def follow(path: Path, start: int, has_ended: Callable[[], bool]) -> Iterator[bytes]:
    """What is there from `start` on, and what comes, until no more can come."""
    at = start
    while True:
        ended = has_ended()  # before the look: what was printed last is then in the file
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < at:  # it was full, and some of its end was dropped
                yield b"\n--- the log was full and has been cut: some may be missing here ---\n"
                at = size
            file.seek(at)
            while block := file.read(_BLOCK):
                at += len(block)
                yield block
        if ended:
            return
        time.sleep(_LOOK_S)
