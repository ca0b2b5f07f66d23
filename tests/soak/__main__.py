"""python -m tests.soak --minutes 10 [--seed N] [--out soak-results]

Exit 0 if no reader saw wrong bytes, no listing lacked a name, and no error came that
docs/semantics.md does not promise.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from tests.soak.actors import (
    ROLES,
    Changes,
    Damage,
    Error,
    Kills,
    Lister,
    Reader,
    Weather,
    Witness,
)
from tests.soak.stage import (
    DEADLINE_S,
    MODES,
    Actor,
    Stage,
    leftovers,
    stage,
    unused_caches,
    wrong_at_the_end,
)
from tests.support.faulty_proxy import is_data

_LEAVE_WITHIN_S = 30
_TROUBLE_ENDS_WITHIN_S = 70  # a refresh has 60
# A failed listing of a catalog that is made anew is repeated after 5 s; requests that wait for it
# do so until the deadline, on two busy cores.
_LISTS_AGAIN_WITHIN_S = 5 + 2 * DEADLINE_S
# A damaged page may be met only by the next refresh.
_DAMAGE_IS_MENDED_WITHIN_S = 10 * DEADLINE_S
_FAILURES_OF_A_KIND = 5


def soak(minutes: float, seed: int, logs: Path) -> tuple[list[str], list[str]]:
    """Return what happened and what failed, in lines. The servers' logs are left in a folder: they
    say what a reader's errno does not."""
    stop, readers_stop = threading.Event(), threading.Event()
    with stage(minutes, seed) as place:
        troubles = [kind(place, stop) for kind in (Weather, Changes, Kills, Damage)]
        readers: list[Witness] = [
            *(Reader(place, readers_stop, number) for number in range(len(MODES) * len(ROLES))),
            *(Lister(place, readers_stop, mount) for mount in range(len(MODES))),
        ]
        try:
            for actor in (*readers, *troubles):
                actor.start()
            time.sleep(minutes * 60)
        finally:
            # Trouble ends first: readers that leave must not be stopped by it.
            stop.set()
            _join(troubles, _TROUBLE_ENDS_WITHIN_S)
            place.proxy.up()
            place.proxy.calm()
            readers_stop.set()
            _join(readers, _LEAVE_WITHIN_S)
            shutil.copytree(place.folder / "state/logs", logs, dirs_exist_ok=True)
        reported, failures = _judge(place, readers, troubles)
        if any(one.is_alive() for one in (*readers, *troubles)):
            for mount in place.mounts:  # ends what waits for it, which nothing else does
                subprocess.run(["umount", "--force", mount], capture_output=True, check=False)
        else:
            failures += [*unused_caches(place), *wrong_at_the_end(place)]
    left = leftovers(place)
    reported.append(f"left behind: {', '.join(left) or 'nothing'}")
    return reported, failures + [f"left behind: {what}" for what in left]


def _join(actors: Sequence[Actor], within_s: float) -> None:
    until_s = time.monotonic() + within_s
    for actor in actors:
        actor.join(max(0.0, until_s - time.monotonic()))


def _judge(
    place: Stage, readers: list[Witness], troubles: list[Actor]
) -> tuple[list[str], list[str]]:
    errors = [error for reader in readers for error in reader.errors]
    done = sum((trouble.counts for trouble in troubles), Counter[str]())
    some = slice(_FAILURES_OF_A_KIND)
    failures = [
        f"{reader.name}: wrong: {wrong}" for reader in readers for wrong in reader.wrong[some]
    ]
    unexcused = [one for one in errors if not one.promised and not _is_excused(one, place)]
    failures += [f"an error that is not promised: {error}" for error in unexcused[some]]
    failures += [f"{one.name} hangs" for one in (*readers, *troubles) if one.is_alive()]
    failures += [f"{one.name}: {one.error!r}" for one in (*readers, *troubles) if one.error]
    if place.elsewhere.connections:
        failures.append(f"{place.elsewhere.connections} requests followed a redirect elsewhere")
    listers = [reader for reader in readers if isinstance(reader, Lister)]
    excused = Counter(one.kind for one in errors if not one.promised)
    reported = [
        f"{len(readers) - len(listers)} readers: "
        f"{sum(reader.operations for reader in readers if reader not in listers):,} operations, "
        f"{sum(reader.bytes for reader in readers) >> 20:,} MiB",
        f"{len(listers)} listers: {sum(lister.operations for lister in listers):,} listings",
        f"longest pause of a reader: {max(reader.longest_pause_s for reader in readers):.2f} s",
        f"errors that readers saw: {_counts(Counter(error.kind for error in errors))}",
        f"of these excused by an outage, a redirect or a renumbered file: {_counts(excused)}",
        f"of {place.proxy.requests:,} requests the store failed: {_counts(place.proxy.injected)}",
        f"of {place.proxy.listings:,} pages of listings the store failed: "
        f"{_counts(place.proxy.injected_in_listings)}",
        f"done to it: {_counts(done)}",
    ]
    for mount, mode in enumerate(MODES):
        note, kills = place.note(mount), done[f"kill -9 ({mode})"]
        # It lives as long as the mount: what it leaks shows here.
        pages = int(Path(f"/proc/{note.pid}/statm").read_text().split()[1])
        memory_mib = pages * os.sysconf("SC_PAGE_SIZE") >> 20
        descriptors = len(os.listdir(f"/proc/{note.pid}/fd"))
        reported.append(f"supervisor ({mode}): {memory_mib} MiB, {descriptors} descriptors")
        if note.restarts != kills:  # a server ended that nobody killed: a crash
            failures.append(f"{mode}: {note.restarts} restarts after {kills} kills")
    return reported, failures


def _is_excused(error: Error, place: Stage) -> bool:
    """EIO is excused by a store that is away; by a redirect that was sent for this file; and by a
    listing that was answered with a lie while a damaged catalog was made anew from it. ESTALE is
    excused by damage of the catalog, if the file had another number afterwards. Nothing excuses
    ENOENT."""
    is_away = any(
        error.began_s < until_s and error.ended_s > since_s for since_s, until_s in place.away
    )
    since_s = error.began_s - _DAMAGE_IS_MENDED_WITHIN_S
    damaged = [at_s for at_s in place.damaged if since_s < at_s < error.ended_s]
    is_renumbered = error.renumbered and bool(damaged)
    lied_to = any(
        error.began_s - _LISTS_AGAIN_WITHIN_S < final.sent_s < error.ended_s
        and (
            final.target.endswith(f"/{error.name}")
            if is_data(final.target)
            else any(at_s < final.sent_s for at_s in damaged)
        )
        for final in place.proxy.final
    )
    match error.kind:
        case "EIO":
            return is_away or lied_to
        case "ESTALE":
            return is_renumbered
        case "SIGBUS":
            return is_away or lied_to or is_renumbered
        case _:
            return False


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
    reported, failures = soak(options.minutes, options.seed, options.out / "logs")
    verdict = "0 wrong bytes, no name missing, no error that is not promised"
    if failures:
        verdict = "FAILED"
    lines = [f"{head}: {verdict}", *reported, *(f"FAILED: {failure}"[:400] for failure in failures)]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    (options.out / "summary.txt").write_text(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
