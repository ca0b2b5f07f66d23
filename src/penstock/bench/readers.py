"""An epoch: R processes, each opens, reads to the end and closes its share of a shuffled list.

The reading is a program of its own (this file, run by path): it imports nothing but the standard
library, so the process that measures holds no threads, no page of ours, and is the same for every
system. Reads go into one buffer that is used again and again, because what a reader does with
the bytes must cost the same, and little, everywhere. Listing is not in the time.

Knows a folder and a list of files; not what serves them.
"""

import json
import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.bench.datasets import Entry
    from penstock.bench.workspace import Workspace

PART = "readers"
BUFFER_BYTES = 1 << 20  # a read of 1 MiB, the largest request the kernel makes of FUSE


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch took. The clock runs from the first open to the last close."""

    seconds: float
    files: int
    size_bytes: int
    cpu_s: float

    @property
    def files_per_s(self) -> float:
        return self.files / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.seconds


def read_epoch(
    workspace: "Workspace",
    root: Path,
    entries: "Sequence[Entry]",
    *,
    readers: int,
    seed: int,
    passes: int = 1,
) -> Epoch:
    """Read every entry, in an order drawn from `seed`; a short read is an error.

    With several passes, each in an order of its own: warm epochs can be too short to time.
    """
    order = {
        "root": str(root),
        "files": [(entry.path, entry.size_bytes) for entry in entries],
        "readers": readers,
        "seed": seed,
        "passes": passes,
    }
    # -I: nothing from the environment or this folder may be imported in place of the library.
    command = [sys.executable, "-I", __file__]
    answer = workspace.run(PART, command, stdin=json.dumps(order).encode())
    return Epoch(**json.loads(answer))


def list_files(root: Path) -> list[str]:
    """Return every file below `root` as a path, by names alone, as ImageFolder lists a data set."""
    found: list[str] = []
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue  # JuiceFS shows control files in its root
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    pending.append(path)
                else:
                    found.append(path)
    return found


def read_whole(path: str, buffer: list[bytearray]) -> int:
    """Open a file, read it to the end, close it; return the number of bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        count = 0
        while got := os.readv(descriptor, buffer):
            count += got
        return count
    finally:
        os.close(descriptor)


def _read_share(root: str, share: list[tuple[str, int]], go: int) -> dict[str, Any]:
    """Read one share. Wait until `go` closes, so that all readers start together."""
    buffer = [bytearray(BUFFER_BYTES)]
    # Touched before the clock starts: otherwise the first read pays for the buffer's pages.
    buffer[0][:] = b"\1" * BUFFER_BYTES
    prefix = f"{root}/"
    total = 0
    os.read(go, 1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.monotonic()
    for path, size in share:
        count = read_whole(prefix + path, buffer)
        if count != size:
            raise OSError(f"{path}: {count} bytes of {size}")
        total += count
    end = time.monotonic()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"start": start, "end": end, "bytes": total, "cpu_s": cpu_s}


def _fork_reader(root: str, share: list[tuple[str, int]], go: int, go_end: int) -> int:
    """Start a reader, and return the descriptor that its result comes from."""
    result, result_end = os.pipe()
    if os.fork():
        os.close(result_end)
        return result
    status = 1
    try:
        os.close(go_end)
        os.close(result)
        os.write(result_end, json.dumps(_read_share(root, share, go)).encode())
        status = 0
    except OSError as error:
        os.write(2, f"{error}\n".encode())
    finally:
        # Also after an unexpected error: a fork must never go on as its parent.
        os._exit(status)


def _main() -> int:
    order = json.load(sys.stdin)
    listed: list[tuple[str, int]] = [(path, size) for path, size in order["files"]]
    draw = random.Random(order["seed"])
    files = [file for _ in range(order["passes"]) for file in draw.sample(listed, len(listed))]
    readers: int = order["readers"]
    go, go_end = os.pipe()
    results = [
        _fork_reader(order["root"], files[number::readers], go, go_end) for number in range(readers)
    ]
    os.close(go_end)
    answers = [os.fdopen(result, "rb").read() for result in results]
    for _ in results:
        os.wait()
    if not all(answers):
        return 1
    shares = [json.loads(answer) for answer in answers]
    epoch = Epoch(
        seconds=max(share["end"] for share in shares) - min(share["start"] for share in shares),
        files=len(files),
        size_bytes=sum(share["bytes"] for share in shares),
        cpu_s=sum(share["cpu_s"] for share in shares),
    )
    print(json.dumps({name: getattr(epoch, name) for name in Epoch.__slots__}))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
