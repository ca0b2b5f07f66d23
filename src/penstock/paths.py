"""The default paths: state directory (catalogs, logs, sockets), cache, declared mounts."""

import hashlib
import os
from functools import cache
from pathlib import Path

from penstock.errors import UsageError
from penstock.ownership import why_untrusted

# Entries of the state directory to check. Not everything in it: a mount there may hang.
_ENTRIES = (
    "bench",
    "cache",
    "catalogs",
    "data",
    "jobs",
    "logs",
    "mounts",
    "operations",
    "scratch",
    "shared",
    "resources.sqlite",
    "secrets.key",
)


def state_dir() -> Path:
    """$PENSTOCK_STATE_DIR, /var/lib/penstock for root, ~/.local/state/penstock for others."""
    if set_by_user := os.environ.get("PENSTOCK_STATE_DIR"):
        if not os.path.isabs(set_by_user):  # child processes may have another working directory
            set_by_user = os.environ["PENSTOCK_STATE_DIR"] = os.path.abspath(set_by_user)
        return _private(Path(set_by_user))
    if os.geteuid() == 0:
        return _private(Path("/var/lib/penstock"))
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return _private(Path(base) / "penstock")


def default_cache_dir() -> Path:
    if os.environ.get("PENSTOCK_STATE_DIR"):
        return state_dir() / "cache"
    if os.geteuid() == 0:
        return Path("/var/cache/penstock")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def cache_folder_name() -> str:
    """Name of a user's folder in places that users share, such as /dev/shm."""
    return "penstock" if os.geteuid() == 0 else f"penstock-{os.geteuid()}"


def data_dir() -> Path:
    """Return the directory below which declared data sets are mounted."""
    if os.environ.get("PENSTOCK_STATE_DIR"):
        return state_dir() / "data"
    return Path("/mnt/penstock") if os.geteuid() == 0 else Path.home() / "penstock"


def mounts_dir() -> Path:
    return _private(state_dir() / "mounts")


def shared_dir() -> Path:
    """Return where the members of shared tiers that run here have their files."""
    return _private(state_dir() / "shared")


def logs_dir() -> Path:
    return _private(state_dir() / "logs")


def name_of(mountpoint: Path) -> str:
    """Return a mount point as a file name."""
    return hashlib.blake2b(os.fsencode(mountpoint), digest_size=6).hexdigest()


def open_private(path: str, flags: int) -> int:
    """Open a file that only its user can read, never through a link. An `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _private(path: Path) -> Path:
    _refuse_foreign(path)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="set PENSTOCK_STATE_DIR to a folder you can write"
        ) from error
    return path


@cache  # no other user can change it from then on
def _refuse_foreign(path: Path) -> None:
    if (why := why_untrusted(path, _ENTRIES, may_be_sticky=False)) is not None:
        raise UsageError(
            f"state directory {path}: {why}",
            hint="root keeps its state where no other user can change it: set PENSTOCK_STATE_DIR",
        )
