"""python -m tests.soak --minutes 10 [--seed N] [--out soak-results]

Exit 0 if no reader saw wrong bytes or an error that docs/semantics.md does not promise.
"""

import argparse
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.soak.crowd import Crowd
from tests.soak.ledger import Ledger
from tests.soak.stage import MODES, leftovers, stage
from tests.soak.summary import Outcome, write
from tests.soak.trouble import Changes, Damage, Kills, Trouble, Weather
from tests.soak.watch import Watch


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
        watch = Watch(place, minutes, stop)
        crowd = Crowd(place.mounts, ledger, place.folder, seed)
        threads: list[threading.Thread] = [*troubles, watch]
        try:
            for thread in threads:
                thread.start()
            stop.wait(minutes * 60)
        finally:
            # Trouble ends first: readers that leave must not be stopped by it.
            stop.set()
            for thread in threads:
                thread.join()
            place.proxy.up()
            place.proxy.calm()
            crowd.leave()
        broken = [f"{trouble.name}: {trouble.error!r}" for trouble in troubles if trouble.error]
        restarts = {mode: place.note(mount).restarts for mount, mode in enumerate(MODES)}
        findings = crowd.findings(weather.away)
        injected, requests = place.proxy.injected, place.proxy.requests
    done: Counter[str] = Counter()
    for trouble in troubles:
        done += trouble.counts
    return Outcome(
        seed=seed, minutes=minutes, began_s=watch.began_s, findings=findings, injected=injected,
        requests=requests, done=done, courses=watch.courses, restarts=restarts,
        leftovers=leftovers(place.folder), broken=broken,
    )  # fmt: skip


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
