"""An epoch: R processes, each opens, reads to the end and closes its share of a shuffled list.

The reading is a program of its own (this file, run by path): it imports nothing but the standard
library, so the process that measures holds no threads, no page of ours, and is the same for every
system. Reads go into one buffer that is used again and again, because what a reader does with
the bytes must cost the same, and little, everywhere. Listing is not in the time.

Knows a folder and a list of files; not what serves them. Readers that tell a mount their order in
advance are the exception: these import what a training script would, and keep their plans until
the gate opens.
"""

import json
import os
import random
import resource
import sys
import time
import traceback
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.bench.datasets import Entry
    from penstock.bench.workspace import Workspace
    from penstock.integrations.publisher import Publisher

PART = "readers"
BUFFER_BYTES = 1 << 20  # a read of 1 MiB, the largest request the kernel makes of FUSE


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch took, or several in a row. The clock runs from the first open to the last
    close. `latencies_s`: quantiles of the time of one file, ascending."""

    seconds: float
    files: int
    size_bytes: int
    cpu_s: float
    passes: int = 1
    latencies_s: Sequence[float] = ()

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
    order = order_of(root, entries, readers=readers, seed=seed, passes=passes)
    answer = workspace.run(PART, reader_command(), stdin=json.dumps(order).encode())
    return Epoch(**json.loads(answer)["read"])


def order_of(
    root: Path, entries: "Sequence[Entry]", *, readers: int, seed: int, passes: int = 1
) -> dict[str, Any]:
    """Return what the program is told. With a `gate` added, a FIFO, its readers tell the mount
    their order first, and the program ends when the gate opens."""
    return {
        "root": str(root),
        "files": [(entry.path, entry.size_bytes) for entry in entries],
        "readers": readers,
        "seed": seed,
        "passes": passes,
    }


def reader_command(order: Path | None = None) -> list[str]:
    """Return the program, which reads its order from this file, or from stdin."""
    # -I: nothing from the environment or this folder may be imported in place of the library.
    return [sys.executable, "-I", __file__, *([str(order)] if order else [])]


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


def quantiles(values: Sequence[float], most: int = 1000) -> list[float]:
    """Return at most so many of the values in rising order, evenly spaced, with both ends."""
    ascending = sorted(values)
    if len(ascending) <= most:
        return ascending
    last = len(ascending) - 1
    return [ascending[round(place * last / (most - 1))] for place in range(most)]


@dataclass(frozen=True, slots=True)
class _Share:
    """What one reader reads: every so many of all files. `hold` is the descriptor whose end lets
    it give up its plan."""

    root: str
    all_files: list[tuple[str, int]]
    places: range
    hold: int | None

    def publisher(self) -> "Publisher | None":
        """Return what tells the mount the order; the plan lives as long as this does."""
        if self.hold is None:
            return None
        from penstock.integrations.publisher import Publisher

        return Publisher([f"{self.root}/{path}" for path, _ in self.all_files])

    def read(self, go: int, publisher: "Publisher | None") -> dict[str, Any]:
        """Wait until `go` closes, so that all readers start together, and read."""
        buffer = [bytearray(BUFFER_BYTES)]
        # Touched before the clock starts: otherwise the first read pays for the buffer's pages.
        buffer[0][:] = b"\1" * BUFFER_BYTES
        prefix, latencies_s, total = f"{self.root}/", [0.0] * len(self.places), 0
        files = [self.all_files[place] for place in self.places]
        os.read(go, 1)
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = now = time.monotonic()
        if publisher is not None:
            publisher.begin([array("q", self.places)])
        for number, (path, size) in enumerate(files):
            if publisher is not None:
                publisher.hand_out(1, lag=1)
            count = read_whole(prefix + path, buffer)
            if count != size:
                raise OSError(f"{path}: {count} bytes of {size}")
            total += count
            since, now = now, time.monotonic()
            latencies_s[number] = now - since
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "start": start,
            "end": now,
            "bytes": total,
            "cpu_s": cpu_s,
            "latencies_s": quantiles(latencies_s),
        }


def _fork_reader(share: _Share, go: int, unused: Sequence[int]) -> int:
    """Start a reader, and return the descriptor that its result comes from."""
    result, result_end = os.pipe()
    if os.fork():
        os.close(result_end)
        return result
    status = 1
    try:
        for descriptor in (*unused, result):
            os.close(descriptor)
        publisher = share.publisher()
        os.write(result_end, json.dumps(share.read(go, publisher)).encode())
        os.close(result_end)
        if share.hold is not None:
            os.read(share.hold, 1)
        status = 0
    except OSError as error:
        os.write(2, f"{error}\n".encode())
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        # Also after an unexpected error: a fork must never go on as its parent.
        os._exit(status)


def _main(source: IO[str]) -> int:
    order = json.load(source)
    listed: list[tuple[str, int]] = [(path, size) for path, size in order["files"]]
    draw = random.Random(order["seed"])
    files = [file for _ in range(order["passes"]) for file in draw.sample(listed, len(listed))]
    readers, gate = int(order["readers"]), order.get("gate")
    go, go_end = os.pipe()
    hold, hold_end = os.pipe()
    results = [
        _fork_reader(
            _Share(
                order["root"], files, range(number, len(files), readers), hold if gate else None
            ),
            go,
            (go_end, hold_end),
        )
        for number in range(readers)
    ]
    os.close(go_end)
    answers = [os.fdopen(result, "rb").read() for result in results]
    if all(answers):
        shares = [json.loads(answer) for answer in answers]
        epoch = Epoch(
            seconds=max(share["end"] for share in shares) - min(share["start"] for share in shares),
            files=len(files),
            size_bytes=sum(share["bytes"] for share in shares),
            cpu_s=sum(share["cpu_s"] for share in shares),
            passes=order["passes"],
            latencies_s=quantiles([one for share in shares for one in share["latencies_s"]]),
        )
        read = {name: getattr(epoch, name) for name in Epoch.__slots__}
        print(json.dumps({"epoch": 0, "read": read}), flush=True)
        if gate:
            Path(gate).read_bytes()
    os.close(hold_end)
    for _ in results:
        os.wait()
    return 0 if all(answers) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as file:
            sys.exit(_main(file))
    sys.exit(_main(sys.stdin))
