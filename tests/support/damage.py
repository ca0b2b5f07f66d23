"""Damage to the files of a cache, as a bad disk or a careless user does it.

The server may remove any of these files at any moment.
"""

import os
import random
from contextlib import suppress
from pathlib import Path


def cached_files(cache: Path) -> list[Path]:
    walk = os.walk(cache / "objects")
    return [Path(folder, name) for folder, _, names in walk for name in sorted(names)]


def flip_bit(path: Path, chance: random.Random) -> bool:
    """Return whether there was a bit to flip."""
    with suppress(OSError), open(path, "r+b") as file:  # gone, or a hole in a full disk
        if size := os.fstat(file.fileno()).st_size:
            at = chance.randrange(size)
            (byte,) = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte ^ 1 << chance.randrange(8)]), at)
            return True
    return False


def cut(path: Path, chance: random.Random) -> None:
    with suppress(FileNotFoundError):
        os.truncate(path, chance.randrange(path.stat().st_size + 1))
