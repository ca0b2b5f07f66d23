"""Declare a data set, load it, read a file of it, and delete it."""

import sys
from pathlib import Path

import penstock


def main(manifest: Path) -> None:
    for one in penstock.apply(manifest):
        print(f"{one.key} {one.outcome}")
    images = penstock.dataset("images")
    assert images.path is not None
    print(f"{images.files} files, {images.total_bytes:,} bytes, at {images.path}")

    load = images.load().wait()
    print(f"{load.name}: {load.phase}")
    images.refresh()
    print(f"{images.cached_bytes:,} of {images.total_bytes:,} bytes are cached")
    assert images.cached_bytes == images.total_bytes

    # Everything below this path is an ordinary file that any loader can read.
    first = next(path for path in images.path.rglob("*") if path.is_file())
    print(f"{first.name}: {first.stat().st_size} bytes, begins with {first.read_bytes()[:3]!r}")

    load.delete()
    for kind in ("Dataset", "AlluxioRuntime", "Secret"):
        penstock.delete(kind, "images")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
