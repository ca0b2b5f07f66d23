"""Trees of files as dictionaries: written to a folder or a bucket, and read back."""

import os
from pathlib import Path

from tests.support.s3 import ObjectPath

Tree = dict[str, bytes]


def write_tree(root: Path | ObjectPath, files: Tree) -> None:
    if isinstance(root, ObjectPath):
        root.write_all(files)
        return
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_tree(root: Path | ObjectPath) -> Tree:
    if isinstance(root, ObjectPath):
        return {path.key.removeprefix(f"{root.key}/"): path.read_bytes() for path in root.rglob()}
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def read_or_errno(path: Path) -> bytes | int | None:
    try:
        return path.read_bytes()
    except OSError as error:
        return error.errno


def read_raw(path: Path) -> bytes:
    """Read a file as C does it. Python's `open` asks whether it is a terminal: a message more."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
    finally:
        os.close(descriptor)
