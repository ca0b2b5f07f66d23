"""The folders of a data set on this node: its socket, its state, its caches.

All are made here for the server's user, and are removed here once the data set is gone. Which cache
folders there are is written down beside the state, since only server pods name them.

Threading: any thread; callers see to it that one at a time works on a data set.
"""

import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from penstock.errors import MountpointError
from penstock.kubernetes.names import SERVER_USER, ServedKey, cache_folder
from penstock.mounttable import MountEntry

log = logging.getLogger(__name__)

_CACHES = "caches.json"
_BELOW_CACHE_ROOT = 3  # penstock/NAMESPACE/NAME, as `cache_folder` has it
_MOST_LINKS = 40  # as the kernel has it


class NodeFolders:
    def __init__(self, state: Path, host_root: Path, *, user: int = SERVER_USER) -> None:
        """`state`: where this node's data sets are kept. `host_root`: where the node's root folder
        is visible."""
        self._state = state
        self._host_root = host_root
        self._user = user

    def link(self, key: ServedKey) -> Path:
        """Return the folder of the data set's socket."""
        folder = self._own_folder(self._state / "link", key)
        # The server connects to the socket, and must not put anything else in its place.
        os.chown(folder, os.geteuid(), os.getegid())
        folder.chmod(0o755)
        return folder

    def state(self, key: ServedKey) -> Path:
        """Return the folder of its catalog."""
        return self._own_folder(self._state / "sets", key, "state")

    def cache(self, key: ServedKey, root: PurePosixPath) -> Path:
        """Return its cache folder below a folder of the node."""
        folder = cache_folder(root, key)
        caches = self._caches(key)
        if str(folder) not in caches:
            self._set(key).mkdir(mode=0o711, parents=True, exist_ok=True)
            note = self._set(key) / _CACHES
            fresh = note.with_suffix(".new")
            fresh.write_text(json.dumps([*caches, str(folder)]))
            fresh.replace(note)
        return self._own_folder(self._on_host(root) / "penstock", key)

    def known(self) -> Iterator[ServedKey]:
        """Yield the data sets that have folders here."""
        for base in ("link", "sets"):
            for folder in sorted(self._state.glob(f"{base}/*/*")):
                yield ServedKey(folder.parent.name, folder.name)

    def remove(self, key: ServedKey) -> None:
        """Remove all folders of a data set."""
        for folder in (
            *(self._cache_on_host(PurePosixPath(cache)) for cache in self._caches(key)),
            self._state / "link" / key.namespace / key.name,
            self._set(key),
        ):
            _remove(folder)
            for parent in (folder.parent, folder.parent.parent):
                _remove_if_empty(parent)

    def is_shown(self, entry: MountEntry, key: ServedKey) -> bool:
        """Return whether a bind mount shows a folder of the data set to a server pod."""
        name = f"{key.namespace}/{key.name}"
        return entry.root.endswith((f"/link/{name}", f"/sets/{name}/state", f"/penstock/{name}"))

    def _set(self, key: ServedKey) -> Path:
        return self._state / "sets" / key.namespace / key.name

    def _caches(self, key: ServedKey) -> list[str]:
        try:
            return json.loads((self._set(key) / _CACHES).read_text())
        except FileNotFoundError:
            return []
        except ValueError as error:
            log.error("%s: its list of cache folders is damaged: %s", key, error)
            return []

    def _cache_on_host(self, folder: PurePosixPath) -> Path:
        """Return the path of a folder that `cache_folder` named, here; its end is never a link."""
        root = folder.parents[_BELOW_CACHE_ROOT - 1]
        return self._on_host(root).joinpath(folder.relative_to(root))

    def _on_host(self, path: PurePosixPath) -> Path:
        return resolve_below(self._host_root, path)

    def _own_folder(self, base: Path, key: ServedKey, *more: str) -> Path:
        """Make a folder that only the server's user can enter, below folders that it cannot
        change."""
        try:
            base.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder = base
            for name in (key.namespace, key.name, *more):
                _refuse_foreign(folder)
                folder = folder / name
                folder.mkdir(mode=0o711, exist_ok=True)
            os.chown(folder, self._user, self._user, follow_symlinks=False)
            folder.chmod(0o700)
        except OSError as error:
            raise MountpointError(
                f"cannot make a folder for {key} below {base}: {error.strerror}",
                hint="name a folder of the node that root can write to",
            ) from error
        return folder


def resolve_below(root: Path, path: PurePosixPath) -> Path:
    """Return an absolute path of the node as a path here, where its root folder is `root`.

    Links are followed as on the node: an absolute one leads from `root`, and none leads out of it.
    """
    found, ahead = root, list(reversed(path.relative_to("/").parts))
    links = 0
    while ahead:
        name = ahead.pop()
        if name == "..":
            found = found if found == root else found.parent
            continue
        step = found / name
        if not step.is_symlink():
            found = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise MountpointError(
                f"{path} of the node: too many levels of links", hint="name another folder"
            )
        target = PurePosixPath(os.readlink(step))
        if target.is_absolute():
            found, target = root, target.relative_to(target.anchor)
        ahead += reversed(target.parts)
    return found


def _refuse_foreign(folder: Path) -> None:
    """Whoever can replace a folder could have another one handed to the server."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise MountpointError(
            f"{folder} is not a folder of root",
            hint="other users could replace it: name another folder for the cache",
        )


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        log.error("cannot remove %s: %s", folder, error.strerror)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # others are in it, or it is gone
