"""The workload `random`: random reads of one large file in the local cache, in both modes.

fio reads the whole file once, in random order, in blocks of 16 and of 256 KiB: by read(2) (psync),
by Linux's asynchronous calls without O_DIRECT (libaio, io_uring), and through a mapping (mmap). The
page cache holds nothing of the file at the start. Next to each run fio reads the file of the cache
itself, on the same medium; a figure is the speed over the mean of both neighbours.

Main thread only.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.bench.workspace import BenchError
from penstock.units import KIB, MIB

MODES = ("pagecache", "passthrough")
ENGINES = ("psync", "libaio", "io_uring", "mmap")
BLOCKS = (16 * KIB, 256 * KIB)
_DEPTH = 16  # requests at once, where an engine has several
_NAME = "large.bin"

Run = Callable[..., bytes]


def measure_random_reads(
    penstock: Run, program: Run, folder: Path, size_mib: int
) -> dict[str, float]:
    """Return for each mode, engine and block size the share of the speed of the file itself.

    `penstock` and `program` run a command and return what it prints.
    """
    if shutil.which("fio") is None:
        raise BenchError("fio is missing", hint="apt-get install fio")
    source, cache, mountpoint = (folder / name for name in ("source", "cache", "mnt"))
    source.mkdir()
    mountpoint.mkdir()
    with (source / _NAME).open("wb") as file:
        for _ in range(size_mib):
            file.write(secrets.token_bytes(MIB))
    figures: dict[str, float] = {"mib": size_mib}
    for mode in MODES:
        penstock(
            *("mount", f"file://{source}", str(mountpoint), "-b", "--mode", mode),
            *("--cache-dir", str(cache), "--cache-size", f"{2 * size_mib + 64}MiB"),
        )
        try:
            penstock("warm", str(mountpoint))
            for block_bytes in BLOCKS:
                for engine in ENGINES:
                    name = f"{mode}_{engine}_{block_bytes // KIB}k_of_file"
                    figures[name] = _of_file(
                        program, mountpoint / _NAME, _largest_file(cache), engine, block_bytes
                    )
        finally:
            penstock("umount", str(mountpoint))
    return figures


def _of_file(program: Run, mounted: Path, cached: Path, engine: str, block_bytes: int) -> float:
    before = _bytes_per_s(program, cached, engine, block_bytes)
    ours = _bytes_per_s(program, mounted, engine, block_bytes)
    after = _bytes_per_s(program, cached, engine, block_bytes)
    return ours / ((before + after) / 2)


def _bytes_per_s(program: Run, path: Path, engine: str, block_bytes: int) -> float:
    _drop_pages(path)
    answer = program(
        *("fio", "--name=random", f"--filename={path}", "--rw=randread", "--readonly"),
        *(f"--ioengine={engine}", f"--iodepth={_DEPTH}", f"--bs={block_bytes}"),
        "--output-format=json",
    )
    found: dict[str, Any] = json.loads(answer[answer.index(b"{") :])
    (job,) = found["jobs"]
    if job["error"] or job["read"]["io_bytes"] != path.stat().st_size:
        raise BenchError(f"fio with {engine} did not read all of {path}")
    return job["read"]["bw_bytes"]


def _drop_pages(path: Path) -> None:
    """Drop what the page cache holds of one file. On tmpfs it holds all of it, always."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _largest_file(cache: Path) -> Path:
    return max((cache / "objects").rglob("*"), key=lambda path: path.stat().st_size)
