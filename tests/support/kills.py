"""Readers at full speed, and kills of the server under them."""

import hashlib
import json
import mmap
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import commands
from tests.support.trees import Tree
from tests.support.waiting import wait_until


def note(state: Path) -> dict[str, Any]:
    """What the state folder says of its only mount."""
    (path,) = (state / "mounts").glob("*.json")
    return json.loads(path.read_text())


def processes_of(mountpoint: Path, program: str) -> list[int]:
    """Processes whose words name this mount and end with that program, such as "residency.py"."""
    return [
        pid
        for pid, words in commands().items()
        if os.fsencode(mountpoint) in words and any(w.endswith(program.encode()) for w in words)
    ]


class Readers:
    """Processes that read at full speed; they stop when `reading` ends."""

    def __init__(self, reads: Any) -> None:
        self._reads = reads

    def wait_for_more(self) -> None:
        """Wait until each has read from whoever serves now."""
        # Two more: the first may have begun at the server before.
        goal = [count + 2 for count in self._reads]
        wait_until(lambda: all(map(int.__ge__, self._reads, goal)), "a reader hangs")


@contextmanager
def reading(mountpoint: Path, files: Tree, *, readers: int, seed: int) -> Iterator[Readers]:
    """Read these files meanwhile, and fail if any reader saw an error or a wrong byte."""
    expected = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    context = multiprocessing.get_context("fork")
    stop, results = context.Event(), context.SimpleQueue()
    reads = context.Array("Q", readers, lock=False)
    processes = [
        context.Process(target=_read, args=(seed, n, mountpoint, expected, reads, stop, results))
        for n in range(readers)
    ]
    for process in processes:
        process.start()
    try:
        yield Readers(reads)
    finally:
        stop.set()
    problems = [problem for _ in processes for problem in results.get()]
    for process in processes:
        process.join()
    assert problems == [], problems[:10]


def kill_again_and_again(
    mountpoint: Path, files: Tree, state: Path, *, kills: int, readers: int, seed: int
) -> None:
    """Kill `kills` servers under readers; after each, every reader must read on."""
    chance = random.Random(seed)
    with reading(mountpoint, files, readers=readers, seed=seed) as crowd:
        for done in range(note(state)["restarts"] + 1, note(state)["restarts"] + kills + 1):
            time.sleep(chance.uniform(0, 0.4))  # any moment must do
            os.kill(note(state)["server_pid"], signal.SIGKILL)
            wait_until(
                lambda done=done: (
                    note(state)["restarts"] >= done and note(state)["state"] == "serving"
                ),
                "no new server serves",
            )
            crowd.wait_for_more()


def _read(
    seed: int,
    number: int,
    mountpoint: Path,
    expected: dict[str, str],
    reads: Any,
    stop: Any,
    results: Any,
) -> None:
    """One reader: any file, now and then mapped or with a listing of its folder."""
    chance = random.Random(seed + number)
    names = list(expected)
    problems: list[str] = []
    while not stop.is_set():
        name = chance.choice(names)
        try:
            if chance.random() < 0.1:
                os.listdir((mountpoint / name).parent)
            data = (_map if chance.random() < 0.1 else _read_anew)(mountpoint / name)
        except OSError as error:
            problems.append(f"{name}: {error}")
            continue
        reads[number] += 1
        if hashlib.sha256(data).hexdigest() != expected[name]:
            problems.append(f"{name}: wrong bytes")
    results.put(problems)


def _read_anew(path: Path) -> bytes:
    with open(path, "rb", 0) as file:
        data = file.read()
        # The next reader must ask the server again.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return data


def _map(path: Path) -> bytes:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        return bytes(pages)
