"""Where a job keeps what is its own. Pure, but for a look at which logs there are."""

from pathlib import Path

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
