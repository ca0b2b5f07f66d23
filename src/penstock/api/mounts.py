"""The mounts of this machine: statistics, refresh, warm, upgrade, unmount.

Talks to the server of a mount over its control socket; imports neither models nor stores.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import (
    MountNote,
    all_notes,
    find_note,
    find_served,
    resolve_mountpoint,
)
from penstock.environment import CLOUDS
from penstock.errors import NoSuchPath, PenstockError

Json = dict[str, Any]

_LISTING_TAKES_AT_MOST_S = 3600
_ANSWERS_WITHIN_S = 30.0
_MOST_THREADS = 32


def stats(mountpoint: str) -> Json:
    """What a mount has done and what it holds, as `penstock stats -o json` prints it.

    Between two servers only the supervisor answers, with its `state` and fewer values."""
    return _stats_of(find_note(resolve_mountpoint(mountpoint)))


def all_stats(
    *,
    failed: Callable[[str, PenstockError], None] = lambda _mountpoint, _error: None,
    within_s: float = _ANSWERS_WITHIN_S,
) -> list[Json]:
    """`stats` of all mounts of this user, asked at once; `failed` gets those that do not answer
    within this time."""
    notes = [note for note in all_notes() if note.alive]
    if not notes:
        return []
    found: list[Json] = []
    with ThreadPoolExecutor(min(len(notes), _MOST_THREADS)) as threads:
        asked = [(note, threads.submit(_stats_of, note, within_s)) for note in notes]
        for note, answer in asked:
            try:
                found.append(answer.result())
            except PenstockError as error:
                failed(note.mountpoint, error)
    return found


def prometheus(mountpoint: str | None = None) -> str:
    """The metrics of a mount, or of all mounts of this user, in the text format of Prometheus."""
    from penstock.daemon.exposition import exposition, read_metrics

    if mountpoint is None:
        notes = [note for note in all_notes() if note.alive]
    else:
        notes = [find_note(resolve_mountpoint(mountpoint))]
    return exposition([read_metrics(note) for note in notes])[0].decode()


def _stats_of(note: MountNote, within_s: float = _ANSWERS_WITHIN_S) -> Json:
    if note.state == "serving":
        return ask(note.socket_path, "stats", timeout_s=within_s)
    return {**asdict(note), "pid": note.server_pid, "supervisor_pid": note.pid}


def refresh(mountpoint: str) -> Json:
    """List the bucket now; return the number of `files`, `bytes` and `changed` names, and the
    sources that could not be listed in `failed`."""
    return ask(
        find_served(resolve_mountpoint(mountpoint)).socket_path,
        "refresh",
        timeout_s=_LISTING_TAKES_AT_MOST_S,
    )


@dataclass(frozen=True, slots=True)
class Upgraded:
    mountpoint: Path
    server_pid: int | None
    pause_s: float  # how long readers waited


def upgrade(mountpoint: str, changes: Mapping[str, Any]) -> Upgraded:
    """Replace the server of a mount by one of this release, with these mount options changed, and
    with the keys of this environment. If the new server cannot start, the old one continues."""
    from penstock.daemon.mount_lifecycle import change_in_place, current_settings
    from penstock.mount_options import change_settings

    path = resolve_mountpoint(mountpoint)
    wanted = change_settings(current_settings(path), changes)
    pause_s = change_in_place(path, wanted, environment=_environment_keys())
    return Upgraded(path, find_note(path).server_pid, pause_s)


def _environment_keys() -> dict[str, str | None]:
    """The store's keys in this environment: they may have been rotated since the mount began."""
    keys: dict[str, str | None] = {
        name: value for name, value in os.environ.items() if name.startswith(CLOUDS)
    }
    if "AWS_ACCESS_KEY_ID" in keys:
        keys.setdefault("AWS_SESSION_TOKEN", None)  # the old key's token does not fit the new key
    return keys


def umount(mountpoint: str, *, lazy: bool = False) -> None:
    """Unmount, and wait until the server has ended. `lazy` detaches at once and does not wait: the
    server ends with the last reader."""
    from penstock.daemon.mount_lifecycle import stop_mount

    stop_mount(resolve_mountpoint(mountpoint), lazy=lazy)


def warm(
    mountpoint: str,
    patterns: Sequence[str] = (),
    *,
    files: Iterable[str] | None = None,
    action: str = "load",
    order: str = "name",
    page_cache: bool = False,
    concurrency: int | None = None,
    bytes_per_s: int | None = None,
    started: Callable[[Json], None] = lambda _: None,
    progress: Callable[[Json], None] = lambda _: None,
) -> Json:
    """Fetch files into the cache, and return what was fetched; without `patterns` and `files`, all
    files of the mount.

    patterns  files, folders, or patterns with * and ?, and ** for any number of folders
    files     more files and folders, in whose names no character is special
    action    `load`, or `check`, `verify` or `evict` what is cached
    started   gets the totals before anything is fetched, and whether the cache has room for them
    progress  gets the current counts a few times a second
    """
    from penstock.daemon.warm_client import WarmClient, WarmRequest

    where = resolve_mountpoint(mountpoint)
    below = _PathsOnMount(where, mountpoint).below
    wish = WarmRequest(
        action,
        order,
        page_cache=page_cache,
        concurrency=concurrency,
        bytes_per_s=bytes_per_s,
        started=started,
        progress=progress,
    )
    with WarmClient(where, wish) as warming:
        warming.add_patterns(map(below, patterns))
        if files is not None:
            warming.add_listed(map(below, files))
        # An empty list means no file, not every file.
        return warming.run(everything=not patterns and files is None)


class _PathsOnMount:
    """Turns paths as they were typed into those that the server knows."""

    def __init__(self, mountpoint: Path, typed: str) -> None:
        self._mountpoint = mountpoint
        # As it was typed, and as the mount table has it.
        self._roots = [os.path.abspath(typed), str(mountpoint)]

    def below(self, path: str) -> str:
        """Return the path relative to the mount point; raise NoSuchPath if it is outside."""
        full = os.path.abspath(path)
        for root in self._roots:
            if full == root:
                return ""
            if full.startswith(root.rstrip("/") + "/"):
                return full[len(root.rstrip("/")) + 1 :]
        if os.path.isabs(path) or not path:
            raise NoSuchPath(
                f"{path or 'an empty path'} does not lie below {self._mountpoint}",
                hint="give paths below the mount point",
            )
        return os.path.normpath(path)


def mountpoints() -> list[str]:
    """Where Penstock has mounted something on this machine."""
    return [note.mountpoint for note in all_notes()]
