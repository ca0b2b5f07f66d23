"""The sixteen readers: started, started again when a mapped page ended one, and judged.

Each reader appends what it met to a file of its own, which is read when all have left. One thread.
"""

import errno
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.contents import NAMES
from tests.soak.ledger import Ledger
from tests.soak.reader import ROLES

_LEAVE_WITHIN_S = 30


@dataclass
class Findings:
    """What the readers met."""

    operations: int = 0
    bytes: int = 0
    longest_pause_s: float = 0.0
    wrong: list[dict[str, Any]] = field(default_factory=lambda: list[dict[str, Any]]())
    errors: Counter[str] = field(default_factory=lambda: Counter[str]())
    unpromised: list[dict[str, Any]] = field(default_factory=lambda: list[dict[str, Any]]())
    hung: int = 0
    ended: list[str] = field(default_factory=lambda: list[str]())


class Crowd:
    def __init__(self, mounts: list[Path], ledger: Path, folder: Path, seed: int) -> None:
        self._mounts, self._ledger_path, self._ledger = mounts, ledger, Ledger(ledger)
        self._folder, self._seed = folder, seed
        self._lives: Counter[int] = Counter()
        self._findings = Findings()
        self._bus_errors: list[dict[str, Any]] = []
        self._processes = {
            number: self._start(number) for number in range(len(mounts) * len(ROLES))
        }

    def tend(self) -> None:
        """Start readers again that a mapped page has ended."""
        for number, process in list(self._processes.items()):
            status = process.poll()
            if status is None:
                continue
            if status == -signal.SIGBUS:
                self._bus_errors.append(self._bus_error(number))
                self._processes[number] = self._start(number)
            else:
                self._findings.ended.append(f"reader {number} ended with status {status}")
                del self._processes[number]

    def leave(self) -> None:
        """End all readers. One that does not end by itself hangs, which is a finding."""
        self._ledger.stop()
        deadline = time.monotonic() + _LEAVE_WITHIN_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._findings.hung += 1
                process.kill()
                process.wait()

    def findings(self, away: list[tuple[float, float]]) -> Findings:
        """Judge everything; `away` is when the store was away for longer than the deadline."""
        found = self._findings
        for event in (*self._events(), *self._bus_errors):
            match event["kind"]:
                case "counts":
                    found.operations += event["operations"]
                    found.bytes += event["bytes"]
                    found.longest_pause_s = max(found.longest_pause_s, event["longest_s"])
                case "wrong":
                    found.wrong.append(event)
                case name:
                    found.errors[name] += 1
                    # Only a store that is away excuses EIO, and nothing else an ENOENT or ESTALE.
                    excused = name in ("EIO", "SIGBUS") and any(
                        event["began_s"] < back and event["ended_s"] > gone for gone, back in away
                    )
                    if not event["promised"] and not excused:
                        found.unpromised.append(event)
        return found

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        mount, role = divmod(number, len(ROLES))
        self._lives[number] += 1
        seed = f"{self._seed} reader {number} {self._lives[number]}"
        words = (self._mounts[mount], self._ledger_path, self._folder / f"reader{number}")
        return subprocess.Popen(
            [sys.executable, "-m", "tests.soak.reader", *words, str(mount), ROLES[role], seed]
        )

    def _events(self) -> Iterator[dict[str, Any]]:
        for number in self._lives:
            path = self._folder / f"reader{number}.events"
            for line in path.read_text().splitlines() if path.exists() else ():
                event = json.loads(line)
                if event["kind"] == "error":
                    event["kind"] = errno.errorcode.get(event["errno"], str(event["errno"]))
                yield {**event, "reader": number}

    def _bus_error(self, number: int) -> dict[str, Any]:
        """A mapped page of a version that is gone (as ESTALE), or of a store that is away (EIO)."""
        note = (self._folder / f"reader{number}.mapping").read_text()
        file, floor, began_s = json.loads(note)
        return {
            "kind": "SIGBUS", "name": NAMES[file], "promised": self._ledger.latest(file) > floor,
            "began_s": began_s, "ended_s": time.monotonic(),
        }  # fmt: skip
