"""What a data set leaves on this machine, and its removal: the mount, its folder, the catalog, the
cache. Everything here may be begun again, and finds some of its work done."""

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
from penstock.daemon.claim import claimed_by, end_claim, end_process
from penstock.daemon.registry import all_notes, clear_dead_mount, remove_note
from penstock.daemon.stop import ends_within, stop_mount
from penstock.errors import CacheDirError, MountpointError, PenstockError
from penstock.metrics import Counters
from penstock.mounttable import FILESYSTEM_TYPE, find_mount
from penstock.ownership import is_trusted
from penstock.paths import cache_folder_name, data_dir, state_dir
from penstock.settings import MountSettings
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]

KEEP_CACHE = "penstock.dev/keep-cache"
# Of a server whose mount somebody else has unmounted. One that is still read lives on.
_PUT_AWAY_WITHIN_S = 10.0


def describe(
    settings: MountSettings, key: ResourceKey, *, keep_cache: bool, before: Json | None
) -> Json:
    """To be noted before the mount is made. Directories that an earlier form of the data set had
    are still there."""
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
        # Made for this data set alone, each below a folder that others' may be in too.
        "roots": roots,
    }


def _root_of(directory: str, key: ResourceKey) -> str | None:
    """As resources.translate.tiers makes them."""
    own = f"/{key.namespace}/{key.name}"
    scratch = f"{state_dir()}/scratch"
    if directory.startswith(f"{scratch}{own}/"):
        return scratch
    for name in (f"/{cache_folder_name()}", "/datasets"):
        if directory.endswith(name + own):
            return directory.removesuffix(own)
    return None


def make_folders(settings: MountSettings, key: ResourceKey) -> None:
    """Those of its own, before anybody else can: caches are often in places where all may write,
    like /dev/shm, and whoever owns a folder above one can put another in its place."""
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
    """The root, and all below it down to the directory."""
    return [
        folder
        for folder in reversed((directory, *directory.parents))
        if folder.is_relative_to(root)
    ]


def unmount(mountpoint: Path, title: str, *, force: bool) -> None:
    """Raises MountpointError while someone uses it. With `force` it is taken from under them: what
    they have open fails. What somebody else has mounted there since stays."""
    if (pid := claimed_by(mountpoint)) is not None:
        end_claim(mountpoint, pid)  # it was still being made
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
            hangs = True  # unmounted; its processes do not end, and nobody needs them any more
    elif entry is None and note is not None and not force:
        for process in note.processes:  # someone else has unmounted it: it puts all away
            ends_within(_PUT_AWAY_WITHIN_S, process)
    if (force or hangs) and note is not None:
        for process in note.processes:
            end_process(process)
        remove_note(mountpoint)
    if mountpoint.is_relative_to(data_dir()):
        _remove_empty(mountpoint, data_dir())


def clear_away(left: Json, others: Iterable[Json]) -> int:
    """The catalog, and the cache unless it is to stay; what others use too stays theirs. Returns
    how many bytes came free."""
    others = list(others)
    if left.get("catalog"):
        for path in _files_of(catalog_path(state_dir(), left["catalog"])):
            path.unlink(missing_ok=True)
    if left.get("keep_cache"):
        return 0
    freed = 0
    for name in left.get("directories", []):
        directory = Path(name)
        sharing = [other for other in others if name in other.get("directories", [])]
        if not (directory / "index.sqlite").exists():
            continue
        root = Path(left["roots"].get(name, name))
        if name in left["roots"] and not all(map(is_trusted, _chain(directory, root))):
            continue  # somebody else's by now: what was here went with a reboot
        if not sharing and _is_used(directory):
            continue  # by a mount that is none of ours: it has its own wish for what is there
        freed += _clear_directory(directory, left["sources"], sharing)
        if not sharing and name in left["roots"]:
            # The index last: by it what is left after a kill is known to be a cache.
            shutil.rmtree(directory / "objects", ignore_errors=True)
            shutil.rmtree(directory, ignore_errors=True)
            _remove_empty(directory.parent, root)
            with contextlib.suppress(OSError):
                root.rmdir()
    return freed


def _is_used(directory: Path) -> bool:
    membership = join(directory / "users.lock")
    os.close(membership.descriptor)
    return not membership.alone


def _clear_directory(directory: Path, sources: list[str], sharing: list[Json]) -> int:
    theirs = {source for other in sharing for source in other.get("sources", [])}
    try:
        cache = open_directory(
            directory, name="SSD", quota_bytes=1, high=1, low=1, policy=Keep(), counters=Counters()
        )
    except PenstockError:
        return 0  # damaged or not to be read: nothing that is ours to mend here
    freed = 0
    try:
        ours = [
            entry
            for entry in cache.index.entries()
            if any(_is_of(entry.source, source) for source in sources)
            and not any(_is_of(entry.source, source) for source in theirs)
        ]
        for first in range(0, len(ours), 1000):
            freed += cache.remove_objects([entry.digest for entry in ours[first : first + 1000]])
    finally:
        cache.close()
    return freed


def _is_of(found: str, source: str) -> bool:
    """An identity is the source, and where it is asked for."""
    return found == source or found.startswith((f"{source}/", f"{source}?"))


def _files_of(catalog: Path) -> list[Path]:
    return list(catalog.parent.glob(f"{catalog.name}*"))


def _remove_empty(folder: Path, root: Path) -> None:
    """The folder and those above it, as far as they are empty, up to the root, which stays."""
    while folder != root and folder.is_relative_to(root):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent
