"""Damage to the files of a cache or of a catalog, as a bad disk or a careless user does it.

The server may remove any of these files at any moment.
"""

import os
import random
from collections.abc import Callable
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


# -- catalogs ------------------------------------------------------------------------------------


def _spoil(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), data, at)


def _spoil_a_page(path: Path, kind: int) -> None:
    """In the midst of those of its kind, as SQLite numbers them."""
    data = path.read_bytes()
    pages = [at for at in range(4096, len(data), 4096) if data[at] == kind]
    _spoil(path, pages[len(pages) // 2] + 8, bytes(range(200)))


def _flip_many(path: Path, chance: random.Random) -> None:
    for _ in range(30):
        flip_bit(path, chance)


# What may happen to the file of a catalog that is at rest, or to what SQLite keeps beside it.
CATALOG_DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "header": lambda path, _: _spoil(path, 0, b"not a database"),
    "schema": lambda path, _: _spoil(path, 100, b"\x5a" * 3000),
    "interior_page": lambda path, _: _spoil_a_page(path, 5),
    "leaf_page": lambda path, _: _spoil_a_page(path, 13),
    "interior_page_of_an_index": lambda path, _: _spoil_a_page(path, 2),
    "leaf_page_of_an_index": lambda path, _: _spoil_a_page(path, 10),
    "bits": _flip_many,
    "half": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "text": lambda path, _: _write(path, b"I was a catalog once.\n"),
    "empty": lambda path, _: os.truncate(path, 0),
    "gone": lambda path, _: path.unlink(),
    "log": lambda path, chance: _write(Path(f"{path}-wal"), chance.randbytes(20_000)),
    "shared_memory": lambda path, chance: _write(Path(f"{path}-shm"), chance.randbytes(32_768)),
}


def _write(path: Path, data: bytes) -> None:
    """In place: whoever has it open sees it."""
    with open(path, "r+b" if path.exists() else "wb") as file:
        if len(data) < os.fstat(file.fileno()).st_size:
            file.truncate(len(data))
        file.write(data)
