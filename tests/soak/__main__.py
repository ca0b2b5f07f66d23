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
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from tests.soak.actors import ROLES, Changes, Damage, Error, Kills, Reader, Weather
from tests.soak.stage import MODES, Actor, Stage, leftovers, stage

_LEAVE_WITHIN_S = 30


def soak(minutes: float, seed: int, logs: Path) -> tuple[list[str], list[str]]:
    """Return what happened and what failed, in lines. The servers' logs are left in a folder: they
    say what a reader's errno does not."""
    stop, readers_stop = threading.Event(), threading.Event()
    with stage(minutes, seed) as place:
        troubles = [kind(place, stop) for kind in (Weather, Changes, Kills, Damage)]
        readers = [Reader(place, readers_stop, number) for number in range(len(MODES) * len(ROLES))]
        try:
            for actor in (*readers, *troubles):
                actor.start()
            time.sleep(minutes * 60)
        finally:
            # Trouble ends first: readers that leave must not be stopped by it.
            stop.set()
            for trouble in troubles:
                trouble.join()
            place.proxy.up()
            place.proxy.calm()
            readers_stop.set()
            deadline_s = time.monotonic() + _LEAVE_WITHIN_S
            for reader in readers:
                reader.join(max(0.0, deadline_s - time.monotonic()))
            shutil.copytree(place.folder / "state/logs", logs, dirs_exist_ok=True)
        told, failures = _judge(place, readers, troubles)
    left = leftovers(place)
    told.append(f"left behind: {', '.join(left) or 'nothing'}")
    return told, failures + [f"left behind: {what}" for what in left]


def _judge(
    place: Stage, readers: list[Reader], troubles: list[Actor]
) -> tuple[list[str], list[str]]:
    errors = [error for reader in readers for error in reader.errors]
    done = sum((trouble.counts for trouble in troubles), Counter[str]())
    failures = [f"wrong bytes: {wrong}" for reader in readers for wrong in reader.wrong[:5]]
    unexcused = [one for one in errors if not one.promised and not _is_excused(one, place)]
    failures += [f"an error that is not promised: {error}" for error in unexcused[:5]]
    failures += [f"{reader.name} hangs" for reader in readers if reader.is_alive()]
    failures += [f"{one.name}: {one.error!r}" for one in (*readers, *troubles) if one.error]
    told = [
        f"{len(readers)} readers: {sum(reader.operations for reader in readers):,} operations, "
        f"{sum(reader.bytes for reader in readers) >> 20:,} MiB",
        f"longest pause of a reader: {max(reader.longest_pause_s for reader in readers):.2f} s",
        f"errors that readers saw: {_counts(Counter(error.kind for error in errors))}",
        f"of {place.proxy.requests:,} requests the store failed: {_counts(place.proxy.injected)}",
        f"done to it: {_counts(done)}",
    ]
    for mount, mode in enumerate(MODES):
        note, kills = place.note(mount), done[f"kill -9 ({mode})"]
        # It lives as long as the mount: what it leaks shows here.
        pages = int(Path(f"/proc/{note.pid}/statm").read_text().split()[1])
        memory_mib = pages * os.sysconf("SC_PAGE_SIZE") >> 20
        descriptors = len(os.listdir(f"/proc/{note.pid}/fd"))
        told.append(f"supervisor ({mode}): {memory_mib} MiB, {descriptors} descriptors")
        if note.restarts != kills:  # a server ended that nobody killed: a crash
            failures.append(f"{mode}: {note.restarts} restarts after {kills} kills")
    return told, failures


def _is_excused(error: Error, place: Stage) -> bool:
    """Only a store that is away excuses EIO, and nothing else an ENOENT or ESTALE."""
    return error.kind in ("EIO", "SIGBUS") and any(
        error.began_s < back and error.ended_s > gone for gone, back in place.away
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # through every `finally`


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=Path("soak-results"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    head = f"Soak of {options.minutes:g} minutes, seed {options.seed}"
    print(f"{head}, from {time.strftime('%H:%M:%S')}", file=sys.stderr)
    shutil.rmtree(options.out, ignore_errors=True)
    told, failures = soak(options.minutes, options.seed, options.out / "logs")
    verdict = "FAILED" if failures else "0 wrong bytes, no error that is not promised"
    lines = [f"{head}: {verdict}", *told, *(f"FAILED: {failure}"[:400] for failure in failures)]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    (options.out / "summary.txt").write_text(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
