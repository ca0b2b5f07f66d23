"""python -m tests.soak --minutes 10 [--seed N] [--out soak-results]

Exit 0 if no reader saw wrong bytes or an error that docs/semantics.md does not promise.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from tests.soak.crowd import Crowd
from tests.soak.ledger import Ledger
from tests.soak.stage import MODES, leftovers, stage
from tests.soak.summary import Outcome, write
from tests.soak.trouble import Changes, Damage, Kills, Trouble, Weather


def soak(minutes: float, seed: int, logs: Path) -> Outcome:
    """Leaves the servers' logs in a folder: they say what a reader's errno does not."""
    stop = threading.Event()
    with stage(seed) as place, _keeping(place.folder / "state/logs", logs):
        ledger = place.folder / "ledger"
        weather = Weather(place, seed, minutes, stop)
        troubles: list[Trouble] = [
            weather, Changes(place, seed, minutes, stop, Ledger(ledger)),
            Kills(place, seed, minutes, stop), Damage(place, seed, minutes, stop),
        ]  # fmt: skip
        crowd = Crowd(place.mounts, ledger, place.folder, seed)
        try:
            for trouble in troubles:
                trouble.start()
            ends_s = time.monotonic() + minutes * 60
            while time.monotonic() < ends_s:
                crowd.tend()
                time.sleep(0.5)
        finally:
            # Trouble ends first: readers that leave must not be stopped by it.
            stop.set()
            for trouble in troubles:
                trouble.join()
            place.proxy.up()
            place.proxy.calm()
            crowd.leave()
        notes = {mode: place.note(mount) for mount, mode in enumerate(MODES)}
        done: Counter[str] = Counter()
        for trouble in troubles:
            done += trouble.counts
        outcome = Outcome(
            seed=seed, minutes=minutes, findings=crowd.findings(weather.away),
            injected=place.proxy.injected, requests=place.proxy.requests, done=done,
            restarts={mode: note.restarts for mode, note in notes.items()},
            supervisors={mode: _describe(note.pid) for mode, note in notes.items()},
            leftovers=[],
            broken=[f"{trouble.name}: {trouble.error!r}" for trouble in troubles if trouble.error],
        )  # fmt: skip
    return replace(outcome, leftovers=leftovers(place.folder))


def _describe(pid: int) -> str:
    """It lives as long as the mount: what it leaks shows here."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    memory_mib = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return f"{memory_mib} MiB, {len(os.listdir(f'/proc/{pid}/fd'))} descriptors"


@contextmanager
def _keeping(logs: Path, kept: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.copytree(logs, kept, dirs_exist_ok=True)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # through every `finally`


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("soak-results"))
    options = parser.parse_args()
    seed: int = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, _leave)
    began = time.strftime("%H:%M:%S")
    print(
        f"soak: {options.minutes:g} minutes from {began}, seed {seed}", file=sys.stderr, flush=True
    )
    shutil.rmtree(options.out, ignore_errors=True)
    outcome = soak(options.minutes, seed, options.out / "logs")
    text = write(outcome)
    print(text, end="")
    (options.out / "summary.txt").write_text(text)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
