"""Kills the server of a mount again and again under readers at full speed, and counts.

    python -m tests.survival.kills MOUNTPOINT FOLDER STATE --kills 100 --readers 16

FOLDER holds what the files of the mount must be. Prints one JSON object.
"""

import argparse
import hashlib
import json
import mmap
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_S = 60


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        parts = []
        while part := os.pread(descriptor, 1 << 20, sum(map(len, parts))):
            parts.append(part)
        data = b"".join(parts)
        assert len(data) == size
        # The next reader must ask the server again.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return data
    finally:
        os.close(descriptor)


def map_(path: Path) -> bytes:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        return bytes(pages)


def reader(seed: int, mountpoint: Path, expected: dict[str, str], stop: Any, results: Any) -> None:
    chance = random.Random(seed)
    names = list(expected)
    found: dict[str, Any] = {"reads": 0, "bytes": 0, "errors": [], "wrong": [], "longest_s": 0.0}
    while not stop.is_set():
        name = chance.choice(names)
        started = time.monotonic()
        try:
            if chance.random() < 0.1:
                os.listdir((mountpoint / name).parent)
            data = (map_ if chance.random() < 0.1 else read)(mountpoint / name)
        except OSError as error:
            found["errors"].append(f"{name}: {error}")
            continue
        found["longest_s"] = max(found["longest_s"], time.monotonic() - started)
        found["reads"] += 1
        found["bytes"] += len(data)
        if hashlib.sha256(data).hexdigest() != expected[name]:
            found["wrong"].append(name)
    results.put(found)


def note(state: Path) -> dict[str, Any]:
    (path,) = (state / "mounts").glob("*.json")
    return json.loads(path.read_text())


def lookers(mountpoint: Path) -> list[str]:
    """Processes that look at files through this mount."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(mountpoint) in words and any(w.endswith(b"/look.py") for w in words):
            found.append(path.parent.name)
    return found


def wait_until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def kill_again_and_again(
    mountpoint: Path, folder: Path, state: Path, *, kills: int, readers: int, seed: int,
    within_s: float = 0.4,
) -> dict[str, Any]:  # fmt: skip
    expected = digests(folder)
    chance = random.Random(seed)
    context = multiprocessing.get_context("fork")
    stop, results = context.Event(), context.SimpleQueue()
    processes = [
        context.Process(target=reader, args=(seed + n, mountpoint, expected, stop, results))
        for n in range(readers)
    ]
    for process in processes:
        process.start()
    before = note(state)["restarts"]
    pauses: list[float] = []
    for number in range(kills):
        time.sleep(chance.uniform(0, within_s))  # any moment must do
        killed = time.monotonic()
        os.kill(note(state)["server_pid"], signal.SIGKILL)
        wait_until(
            lambda done=before + number + 1: (
                note(state)["restarts"] >= done and note(state)["state"] == "serving"
            ),
            "a new server",
        )
        pauses.append(time.monotonic() - killed)
    stop.set()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join(WAIT_S)
    return {
        "kills": kills, "readers": readers, "seed": seed,
        "reads": sum(one["reads"] for one in found),
        "bytes": sum(one["bytes"] for one in found),
        "errors": [error for one in found for error in one["errors"]],
        "wrong": [name for one in found for name in one["wrong"]],
        "longest_read_s": round(max(one["longest_s"] for one in found), 3),
        "longest_restart_s": round(max(pauses), 3),
        "median_restart_s": round(sorted(pauses)[len(pauses) // 2], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("mountpoint", "folder", "state"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, default=0.4, help="seconds from one to the next")
    told = parser.parse_args()
    found = kill_again_and_again(
        told.mountpoint, told.folder, told.state, kills=told.kills, readers=told.readers,
        seed=told.seed, within_s=told.within,
    )  # fmt: skip
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
