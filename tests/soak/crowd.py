"""The sixteen readers: started, listened to, started again when a mapped page ended one, judged.

Threads: one per reader listens to it; `events` and counts are read after `join`.
"""

import errno
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
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
    longest_pause_at_s: float = 0.0
    wrong: list[dict[str, Any]] = field(default_factory=lambda: list[dict[str, Any]]())
    errors: Counter[tuple[str, bool]] = field(default_factory=lambda: Counter[tuple[str, bool]]())
    unpromised: list[dict[str, Any]] = field(default_factory=lambda: list[dict[str, Any]]())
    hung: int = 0
    ended: list[str] = field(default_factory=lambda: list[str]())


class Crowd:
    def __init__(self, mounts: list[Path], ledger: Path, notes: Path, seed: int) -> None:
        self._ledger_path, self._ledger = ledger, Ledger(ledger)
        self._notes, self._seed = notes, seed
        self._lock = threading.Lock()
        self._findings = Findings()
        self._possibly: list[dict[str, Any]] = []
        self._listeners: list[threading.Thread] = []
        self._processes: dict[int, subprocess.Popen[str]] = {}
        for number in range(len(mounts) * len(ROLES)):
            mount, role = divmod(number, len(ROLES))
            arguments = (number, mounts[mount], mount, ROLES[role])
            listener = threading.Thread(target=self._listen, args=arguments)
            listener.start()
            self._listeners.append(listener)

    def leave(self) -> None:
        """Ends all readers; who does not end by itself hangs, which is a finding."""
        self._ledger.stop()
        deadline = time.monotonic() + _LEAVE_WITHIN_S
        for listener in self._listeners:
            listener.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            hung = [process for process in self._processes.values() if process.poll() is None]
            self._findings.hung = len(hung)
            for process in hung:
                process.kill()
        for listener in self._listeners:
            listener.join(5)

    def findings(self, away: list[tuple[float, float]]) -> Findings:
        """All of it; `away` is when the store was away for longer than the deadline."""
        found = self._findings
        for event in self._possibly:
            began, ended = event["began_s"], event["ended_s"]
            promised = event["promised"] or any(
                began < back and ended > gone for gone, back in away
            )
            found.errors[event["error"], promised] += 1
            if not promised:
                found.unpromised.append(event)
        self._possibly = []
        return found

    # -- inside ---------------------------------------------------------------------------

    def _listen(self, number: int, folder: Path, mount: int, role: str) -> None:
        lives = 0
        note = self._notes / f"reader{number}"
        while not self._ledger.stopping:
            lives += 1
            seed = f"{self._seed} reader {number} {lives}"
            words = [folder, self._ledger_path, note, str(mount), role, seed]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.reader", *words],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            with self._lock:
                self._processes[number] = process
            assert process.stdout is not None
            assert process.stderr is not None
            counts: dict[str, Any] = {"operations": 0, "bytes": 0, "longest": (0.0, 0.0)}
            for line in process.stdout:
                event = {**json.loads(line), "reader": f"{folder.name} {role}"}
                if event["kind"] == "counts":
                    counts = event
                else:
                    self._take(event)
            complaint = process.stderr.read()
            status = process.wait()
            process.stdout.close()
            process.stderr.close()
            self._add(counts)
            if status == -signal.SIGBUS:
                self._take_bus_error(note)
            elif status and not self._ledger.stopping:
                with self._lock:
                    last = complaint.strip().splitlines()[-1:]
                    self._findings.ended.append(f"reader {number} ({role}): {status} {last}")
                return

    def _add(self, counts: dict[str, Any]) -> None:
        found = self._findings
        pause, at = counts["longest"]
        with self._lock:
            found.operations += counts["operations"]
            found.bytes += counts["bytes"]
            if pause > found.longest_pause_s:
                found.longest_pause_s, found.longest_pause_at_s = pause, at

    def _take(self, event: dict[str, Any]) -> None:
        with self._lock:
            if event["kind"] == "wrong":
                self._findings.wrong.append(event)
            else:
                name = errno.errorcode.get(event["errno"], str(event["errno"]))
                # Only a store that is away excuses EIO; nothing but its own reason the others.
                if name == "EIO":
                    self._possibly.append({**event, "error": name})
                    return
                self._findings.errors[name, event["promised"]] += 1
                if not event["promised"]:
                    self._findings.unpromised.append({**event, "error": name})

    def _take_bus_error(self, note: Path) -> None:
        """A mapped page of a version that is gone (as ESTALE), or of a store that is away (EIO)."""
        file, floor, began_s = json.loads(note.read_text())
        gone = self._ledger.latest(file) > floor
        with self._lock:
            self._possibly.append({
                "error": "SIGBUS", "name": NAMES[file], "promised": gone, "began_s": began_s,
                "ended_s": time.monotonic(),
            })  # fmt: skip
