"""What a data set leaves on this machine, and its removal: mount, folder, catalog and cache.

Every function here may run again after a kill, and then finds part of its work done.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.cache.build import open_directory
from penstock.cache.locks import join
from penstock.cache.policy import Keep
from penstock.catalog.refresh import catalog_path
from penstock.daemon.mount_lifecycle import process_ends_within, stop_mount
from penstock.daemon.mount_registry import (
    all_notes,
    claimed_by,
    clear_dead_mount,
    end_claimant,
    end_process,
    remove_note,
)
from penstock.errors import CacheDirError, MountpointError, PenstockError
from penstock.metrics import Counters
from penstock.mounttable import FILESYSTEM_TYPE, find_mount
from penstock.ownership import is_trusted
from penstock.paths import cache_folder_name, data_dir, state_dir
from penstock.settings import MountSettings
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]

KEEP_CACHE = "penstock.dev/keep-cache"
# For a server whose mount was unmounted by hand. One whose files are still open lives on.
_SERVER_ENDS_WITHIN_S = 10.0


def record(
    settings: MountSettings, key: ResourceKey, *, keep_cache: bool, before: Json | None
) -> Json:
    """Return what `remove` needs to know later. Written before the mount is made.

    `before`: the previous record; its cache directories and sources are still on this machine.
    """
    directories = {str(path) for tier in settings.tiers for path in tier.paths}
    directories |= set((before or {}).get("directories", []))
    roots = {name: root for name in directories if (root := _root_of(name, key)) is not None}
    sources = {str(part.source) for part in settings.parts}
    sources |= set((before or {}).get("sources", []))
    return {
        "directories": sorted(directories),
        "sources": sorted(sources),
        "catalog": settings.catalog,
        "keep_cache": keep_cache,
        # Directories made for this data set alone, with the folder that it may share with others.
        "roots": roots,
    }


def _root_of(directory: str, key: ResourceKey) -> str | None:
    """Return the folder above a directory that `penstock.fluid.tiers` made for this data set."""
    own = f"/{key.namespace}/{key.name}"
    scratch = f"{state_dir()}/scratch"
    if directory.startswith(f"{scratch}{own}/"):
        return scratch
    for name in (f"/{cache_folder_name()}", "/datasets"):
        if directory.endswith(name + own):
            return directory.removesuffix(own)
    return None


def make_cache_folders(settings: MountSettings, key: ResourceKey) -> None:
    """Make the data set's own cache folders before another user can.

    Caches are often in places where every user may write, like /dev/shm, and the owner of a folder
    above a cache can replace it.
    """
    for directory in (path for tier in settings.tiers for path in tier.paths):
        if (root := _root_of(str(directory), key)) is None:
            continue
        chain = _chain(directory, Path(root))
        try:
            chain[0].parent.mkdir(parents=True, exist_ok=True)
            for folder in chain:
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(0o700 if folder == directory else 0o755)
                if not is_trusted(folder):
                    raise CacheDirError(
                        f"cache directory {directory}: {folder} belongs to another user",
                        hint=f"remove {folder}, or name another path in tieredstore",
                    )
        except OSError as error:
            raise CacheDirError(
                f"cache directory {directory}: {error.strerror}",
                hint="name a path in tieredstore that you may write to",
            ) from error


def _chain(directory: Path, root: Path) -> list[Path]:
    """Return the folders from the root down to the directory."""
    return [
        folder
        for folder in reversed((directory, *directory.parents))
        if folder.is_relative_to(root)
    ]


def unmount(mountpoint: Path, title: str, *, force: bool) -> None:
    """Unmount the data set. Raises MountpointError while it is in use.

    With `force` it is unmounted anyway, and the files that are open in it fail. A mount of another
    source at the same place stays.
    """
    if (pid := claimed_by(mountpoint)) is not None:
        end_claimant(mountpoint, pid)  # it was still being made
    note = next((note for note in all_notes() if note.mountpoint == str(mountpoint)), None)
    clear_dead_mount(mountpoint)
    if note is not None and note.alive and note.source != title:
        return
    entry, hangs = find_mount(mountpoint), False
    if entry is not None and (entry.kind == FILESYSTEM_TYPE or (note and note.processes)):
        try:
            stop_mount(mountpoint, lazy=force)
        except MountpointError:
            raise
        except PenstockError:
            hangs = True  # it is unmounted, but its processes do not end: kill them below
    elif entry is None and note is not None and not force:
        for process in note.processes:  # unmounted by hand: the server cleans up and ends
            process_ends_within(_SERVER_ENDS_WITHIN_S, process)
    if (force or hangs) and note is not None:
        for process in note.processes:
            end_process(process)
        remove_note(mountpoint)
    if mountpoint.is_relative_to(data_dir()):
        _remove_empty(mountpoint, data_dir())


def remove(recorded: Json, others: Iterable[Json]) -> int:
    """Remove the catalog, and the cache unless it is to be kept. Return the bytes freed.

    `others`: the records of other data sets. What they use too stays.
    """
    others = list(others)
    if recorded.get("catalog"):
        catalog = catalog_path(state_dir(), recorded["catalog"])
        for path in list(catalog.parent.glob(f"{catalog.name}*")):
            path.unlink(missing_ok=True)
    if recorded.get("keep_cache"):
        return 0
    freed = 0
    for name in recorded.get("directories", []):
        directory = Path(name)
        sharing = [other for other in others if name in other.get("directories", [])]
        if not (directory / "index.sqlite").exists():
            continue
        root = Path(recorded["roots"].get(name, name))
        if name in recorded["roots"] and not all(map(is_trusted, _chain(directory, root))):
            continue  # it belongs to another user by now: ours was removed by a reboot
        if not sharing and _is_used(directory):
            continue  # by a mount that is not declared
        freed += _remove_objects(directory, recorded["sources"], sharing)
        if not sharing and name in recorded["roots"]:
            # The index last: after a kill, it identifies what is left as a cache.
            shutil.rmtree(directory / "objects", ignore_errors=True)
            shutil.rmtree(directory, ignore_errors=True)
            _remove_empty(directory.parent, root)
            with contextlib.suppress(OSError):
                root.rmdir()
    return freed


def _is_used(directory: Path) -> bool:
    membership = join(directory / "users.lock")
    os.close(membership.descriptor)
    return not membership.was_alone


def _remove_objects(directory: Path, sources: list[str], sharing: list[Json]) -> int:
    """Remove the objects of these sources, but not those of a data set that shares the cache."""
    kept = {source for other in sharing for source in other.get("sources", [])}
    try:
        cache = open_directory(
            directory, name="SSD", quota_bytes=1, high=1, low=1, policy=Keep(), counters=Counters()
        )
    except PenstockError:
        return 0  # damaged or unreadable: not ours to repair here
    freed = 0
    try:
        ours = [
            entry
            for entry in cache.index.entries()
            if any(_is_of(entry.source, source) for source in sources)
            and not any(_is_of(entry.source, source) for source in kept)
        ]
        for first in range(0, len(ours), 1000):
            freed += cache.remove_objects([entry.digest for entry in ours[first : first + 1000]])
    finally:
        cache.close()
    return freed


def _is_of(identity: str, source: str) -> bool:
    """A cached object's identity is the source, then the endpoint that it was fetched from."""
    return identity == source or identity.startswith((f"{source}/", f"{source}?"))


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove the folder and its parents below the root, as far as they are empty."""
    while folder != root and folder.is_relative_to(root):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent
