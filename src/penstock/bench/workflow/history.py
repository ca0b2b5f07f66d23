"""The folders of results of this user's runs, whatever became of them: one small file for each in
STATE/bench/runs.

Must not import the parts of a run at the top: who lists reports needs none of them. Safe from any
thread.
"""

import hashlib
import os
from pathlib import Path

from penstock.paths import state_dir


def note_results(results: Path) -> None:
    """Remember a folder of results, and forget those that were removed."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / hashlib.sha256(os.fsencode(results)).hexdigest()[:16]
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_bytes(os.fsencode(results))
    beside.replace(path)
    for known in folder.iterdir():
        place = _read(known)
        # A disk that is not mounted now takes the folder above with it: that one may come back.
        if place is not None and not place.exists() and place.parent.exists():
            known.unlink(missing_ok=True)


def known_results() -> list[Path]:
    """Return the folders that exist, in no order."""
    try:
        found = [_read(path) for path in _folder().iterdir() if not path.suffix]
    except FileNotFoundError:
        return []
    return [one for one in found if one is not None and one.is_dir()]


def is_alive(run: str) -> bool:
    """Whether a run of this user, by the name of its folder, has not ended."""
    if not (state_dir() / "bench" / f"{run}.json").exists():
        return False
    from penstock.bench.workflow import registry

    entry = registry.find(run)
    return entry is not None and entry.alive


def _folder() -> Path:
    return state_dir() / "bench" / "runs"


def _read(path: Path) -> Path | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None  # another run has just forgotten it
    return Path(os.fsdecode(content)) if content else None
