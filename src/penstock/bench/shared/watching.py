"""Readers that check each byte and time each read, while something fails behind them.

Each reader is a process. It opens a random file, reads it whole, compares a checksum, and makes the
kernel forget the pages, so that the next read asks the mount again. A pause is the time of one
file, from open to close. Readers go on until a file named `stop` appears beside their orders.

A program of its own, `python -m penstock.bench.shared.watching ORDER.json`; `watched` runs it.
"""

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from penstock.bench.datasets import Dataset
from penstock.bench.workspace import Workspace, wait_until

PART = "watchers"
_MOST_PROBLEMS = 10
_LONGEST_S = 300.0


@dataclass(slots=True)
class Watched:
    """What readers saw. Complete once `watched` has ended."""

    reads: int = 0
    errors: int = 0
    wrong: int = 0  # files with a wrong byte
    longest_s: float = 0.0  # the longest time that one file took
    problems: tuple[str, ...] = ()

    def add(self, other: "Watched") -> None:
        self.reads += other.reads
        self.errors += other.errors
        self.wrong += other.wrong
        self.longest_s = max(self.longest_s, other.longest_s)
        self.problems = (*self.problems, *other.problems)[:_MOST_PROBLEMS]


def checksums(dataset: Dataset) -> dict[str, int]:
    """Return the checksum of each file, read where the data set was made."""
    paths = (entry.path for entry in dataset.entries)
    return {path: xxhash.xxh3_64_intdigest((dataset.root / path).read_bytes()) for path in paths}


@contextlib.contextmanager
def watched(
    workspace: Workspace,
    roots: Sequence[Path],
    expected: dict[str, int],
    *,
    readers: int,
    seed: int,
) -> Iterator[Watched]:
    """Read all these mounts until the context ends, `readers` each. All read when it begins."""
    found = Watched()
    folder = workspace.folder_for(f"{PART}-{seed}")
    places = [str(root) for root in roots for _ in range(readers)]
    order = {
        "folder": str(folder),
        "roots": places,
        "expected": expected,
        "seed": seed,
    }
    path = folder / "order.json"
    path.write_text(json.dumps(order))
    process = workspace.spawn(
        PART, [sys.executable, "-Pm", "penstock.bench.shared.watching", str(path)]
    )

    def all_read() -> bool:
        process.require_alive()
        return len(list(folder.glob("began-*"))) == len(places)

    try:
        wait_until(all_read, timeout_s=60, what="the first reads")
        yield found
        (folder / "stop").touch()
        process.popen.wait(_LONGEST_S)
        for number in range(len(places)):
            text = (folder / f"seen-{number}.json").read_text()
            found.add(Watched(**json.loads(text)))
    finally:
        workspace.end_processes(PART)
        process.terminate()


def _read(order: dict[str, Any], number: int) -> None:
    draw = random.Random(f"{order['seed']}/{number}")
    folder, root = Path(order["folder"]), order["roots"][number]
    expected: dict[str, int] = order["expected"]
    names, stop, found = sorted(expected), str(folder / "stop"), Watched()
    problems: list[str] = []
    while not os.path.exists(stop):
        name = draw.choice(names)
        start_s = time.monotonic()
        try:
            data = _read_anew(f"{root}/{name}")
        except OSError as error:
            found.errors += 1
            problems.append(f"{name}: {error}")
        else:
            if xxhash.xxh3_64_intdigest(data) != expected[name]:
                found.wrong += 1
                problems.append(f"{name}: wrong bytes")
        found.longest_s = max(found.longest_s, time.monotonic() - start_s)
        found.reads += 1
        if found.reads == 1:
            (folder / f"began-{number}").touch()
    found.problems = tuple(problems[:_MOST_PROBLEMS])
    (folder / f"seen-{number}.json").write_text(json.dumps(asdict(found)))


def _read_anew(path: str) -> bytes:
    with open(path, "rb", 0) as file:
        data = file.read()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return data


def _main() -> int:
    order = json.loads(Path(sys.argv[1]).read_text())
    children: list[int] = []
    for number in range(len(order["roots"])):
        if (child := os.fork()) == 0:
            status = 1
            try:
                _read(order, number)
                status = 0
            finally:
                # Also after an unexpected error: a fork must never go on as its parent.
                os._exit(status)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(_main())
