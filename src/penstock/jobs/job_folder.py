"""The files of a job."""

import json
import os
from pathlib import Path
from typing import Any

Json = dict[str, Any]

LOG_SUFFIX = ".log"


def job_folder(state_folder: Path, uid: str) -> Path:
    """Private. Kept until the job is deleted."""
    return state_folder / "jobs" / uid


def lock_path(folder: Path) -> Path:
    """Held by the job's supervisor for as long as it lives."""
    return folder / "lock"


def keeper_lock_path(folder: Path) -> Path:
    """Held by the keeper of the attempt that runs."""
    return folder / "keeper.lock"


def attempt_path(folder: Path) -> Path:
    """What the keeper tells of the newest attempt, as JSON."""
    return folder / "attempt.json"


def log_path(folder: Path, instance: str) -> Path:
    return folder / "logs" / f"{instance}{LOG_SUFFIX}"


def instance_logs(folder: Path) -> list[Path]:
    """Those that there are."""
    return sorted((folder / "logs").glob(f"*{LOG_SUFFIX}"))


def read_record(path: Path) -> Json | None:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_record(path: Path, record: Json) -> None:
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(descriptor)  # what ran before a power cut is not started as if it had not
    fresh.replace(path)
