"""The files of one job, in `STATE/jobs/UID`, which is kept until the job is deleted."""

import json
import os
from pathlib import Path
from typing import Any

Json = dict[str, Any]

LOG_SUFFIX = ".log"


def job_folder(state_folder: Path, uid: str) -> Path:
    return state_folder / "jobs" / uid


def lock_path(folder: Path) -> Path:
    """The lock that the job's supervisor holds while it lives."""
    return folder / "lock"


def keeper_lock_path(folder: Path) -> Path:
    """The lock that the keeper of the running attempt holds."""
    return folder / "keeper.lock"


def attempt_path(folder: Path) -> Path:
    """The keeper's record of the newest attempt, as JSON."""
    return folder / "attempt.json"


def log_path(folder: Path, instance: str) -> Path:
    return folder / "logs" / f"{instance}{LOG_SUFFIX}"


def waits_folder(folder: Path) -> Path:
    """Where the loaders of the newest attempt record how long they waited; see loader_waits."""
    return folder / "waits"


def instance_logs(folder: Path) -> list[Path]:
    """Return the logs that exist."""
    return sorted((folder / "logs").glob(f"*{LOG_SUFFIX}"))


def read_record(path: Path) -> Json | None:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_record(path: Path, record: Json) -> None:
    """Replace the record at once: a reader sees the old one or the new one, whole."""
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(descriptor)  # after a power cut, an attempt that ran must not look unstarted
    fresh.replace(path)
