"""All mounts of a node: published to pods, kept while server pods come and go, removed at the end.

What is mounted and bound is read from the mount table, never remembered: so a keeper that starts
after a crash knows all of it. A data set that neither pods nor a server pod use is unmounted after
`IDLE_S`; once its volume is gone from the cluster, its folders are removed too.

Threading: any thread calls; one thread looks after idle mounts. `_lock` guards the tables, and is
never held while something waits.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.errors import InUse, MountpointError, NoSuchVolume
from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node import binds
from penstock.kubernetes.node.folders import NodeFolders
from penstock.kubernetes.node.links import Link
from penstock.kubernetes.node.node_mount import NodeMount
from penstock.kubernetes.node.volume_context import Inline, PublishedVolume, VolumeUsage
from penstock.mounttable import FILESYSTEM_TYPE, mount_table

log = logging.getLogger(__name__)

# For so long a data set without pods stays mounted: its server pod may be restarting.
IDLE_S = 5.0
# Readers get EIO if no supervisor attaches for so long: a pod whose readers wait forever cannot
# end.
GIVE_UP_S = 300.0
_LOOK_EVERY_S = 1.0
# Volumes of data sets that nobody uses here are looked up in the cluster so often.
_ASK_EVERY_S = 10.0
_USAGE_WITHIN_S = 5.0
_CLOSE_WITHIN_S = 50.0
_SHORTEST_LOOKUP_S = 0.1

# Whether a data set has a volume in the cluster; None if that is unknown at the moment.
VolumeExists = Callable[[ServedKey], bool | None]


class Keeper:
    def __init__(
        self,
        folders: NodeFolders,
        kubelet_dir: Path,
        volume_exists: VolumeExists,
        *,
        runtime_root: Path = Path(names.RUNTIME_ROOT),
        user: int = names.SERVER_USER,
    ) -> None:
        self._folders = folders
        self._kubelet_dir = kubelet_dir
        self._volume_exists = volume_exists
        self._runtime_root = runtime_root
        self._user = user
        self._lock = threading.RLock()
        self._mounts: dict[ServedKey, NodeMount] = {}
        self._links: dict[ServedKey, Link] = {}
        self._idle_since_s: dict[ServedKey, float] = {}
        self._ask_at_s: dict[ServedKey, float] = {}
        self._closing = threading.Event()

    def start(self) -> None:
        """Adopt what a keeper before this one has mounted, and look after idle mounts."""
        with self._lock:
            for entry in mount_table():
                parsed = self._parse(entry.mountpoint) if entry.kind == FILESYSTEM_TYPE else None
                if parsed is not None:
                    mount_type, key = parsed
                    log.info("%s: mounted at %s already", key, entry.mountpoint)
                    self._mounts[key] = self._new_mount(key, mount_type, entry.mountpoint)
            for key in {*self._mounts, *self._folders.known()}:
                if key in self._mounts or self._has_server_pod(key):
                    try:
                        self._open_link(key)
                    except (OSError, MountpointError) as error:  # the others must go on
                        log.error("%s: its supervisors cannot attach: %s", key, error)
        threading.Thread(target=self._look_after, name="idle", daemon=True).start()

    def close(self) -> None:
        """Wait until each mount in use has a supervisor, which keeps it until the next keeper."""
        by_s = time.monotonic() + _CLOSE_WITHIN_S
        self._closing.set()
        for mount in list(self._mounts.values()):
            left_s = max(0.0, by_s - time.monotonic())
            if mount.is_kept and mount.users() and not mount.wait_until_attached(left_s):
                log.error("%s: no supervisor keeps its mount: readers will get errors", mount.key)

    # -- volumes ---------------------------------------------------------------------------------

    def publish(self, volume: PublishedVolume, target: Path, *, timeout_s: float) -> None:
        """Show a volume at `target`; wait until a data set is served. Raises MountpointError."""
        if isinstance(volume, Inline):
            binds.bind(self._folder_of(volume), target, writable=True)
            return
        if binds.binds_at(target):
            return
        with self._lock:
            mount = self._mount(volume.key, volume.mount_type)
        by_s = time.monotonic() + timeout_s
        mount.wait_until_served(timeout_s)
        left_s = max(_SHORTEST_LOOKUP_S, by_s - time.monotonic())
        source = binds.open_folder(mount.mountpoint, volume.sub_path, timeout_s=left_s)
        try:
            binds.bind(Path(f"/proc/self/fd/{source}"), target, writable=False)
        finally:
            os.close(source)

    def unpublish(self, target: Path) -> None:
        binds.unbind(target)

    def usage(self, target: Path) -> VolumeUsage:
        """Return how large a volume is. Never waits for a server."""
        found = binds.binds_at(target)
        if not found:
            raise NoSuchVolume(f"nothing is published at {target}")
        mount = next(
            (one for one in self._all() if any(str(target) == e.mountpoint for e in one.users())),
            None,
        )
        if mount is not None and mount.is_dead():
            return VolumeUsage(0, 0, 0, "the mount is gone: restart the pod")
        answer: list[os.statvfs_result] = []
        thread = threading.Thread(target=lambda: answer.append(os.statvfs(target)), daemon=True)
        thread.start()
        thread.join(_USAGE_WITHIN_S)
        if not answer:
            return VolumeUsage(0, 0, 0, "no server answers: see the pods of its DaemonSet")
        (size,) = answer
        total = size.f_blocks * size.f_frsize
        return VolumeUsage(total, total - size.f_bfree * size.f_frsize, size.f_files, None)

    def _folder_of(self, volume: Inline) -> Path:
        with self._lock:
            match volume.role:
                case "link":
                    self._open_link(volume.key)
                    return self._folders.link(volume.key)
                case "state":
                    return self._folders.state(volume.key)
                case "cache":
                    assert volume.cache_root is not None
                    return self._folders.cache(volume.key, volume.cache_root)

    # -- mounts ----------------------------------------------------------------------------------

    def _all(self) -> list[NodeMount]:
        with self._lock:
            return list(self._mounts.values())

    def _mount(self, key: ServedKey, mount_type: str) -> NodeMount:
        """Return the mount of a data set, as a volume or a supervisor asks for it."""
        mount = self._mounts.get(key)
        if mount is not None and mount.mount_type != mount_type:
            if mount.users() or mount.has_supervisor:
                raise InUse(
                    f"{key} is mounted as {mount.mount_type}, and in use",
                    hint=f"pods that use it must end before it becomes {mount_type}",
                )
            mount.close(unmount=True)
            mount = None
        if mount is None:
            path = names.mount_path(mount_type, key).relative_to(names.RUNTIME_ROOT)
            mount = self._new_mount(key, mount_type, self._runtime_root / path)
            self._mounts[key] = mount
            self._open_link(key)
        self._idle_since_s.pop(key, None)
        return mount

    def _new_mount(self, key: ServedKey, mount_type: str, mountpoint: Path | str) -> NodeMount:
        return NodeMount(key, mount_type, Path(mountpoint), self._kubelet_dir)

    def _open_link(self, key: ServedKey) -> None:
        if key not in self._links:
            self._links[key] = Link(
                key, self._folders.link(key), self._user, lambda kind: self._find(key, kind)
            )
        self._idle_since_s.pop(key, None)

    def _find(self, key: ServedKey, mount_type: str | None) -> NodeMount | None:
        with self._lock:
            return self._mounts.get(key) if mount_type is None else self._mount(key, mount_type)

    def _parse(self, path: str) -> tuple[str, ServedKey] | None:
        prefix = f"{self._runtime_root}/"
        if not path.startswith(prefix):
            return None
        return names.parse_mount_path(f"{names.RUNTIME_ROOT}/{path.removeprefix(prefix)}")

    # -- what nobody uses ------------------------------------------------------------------------

    def _look_after(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                self._look_once(time.monotonic())
            except (OSError, MountpointError) as error:  # the next look tries again
                log.error("idle mounts: %s", error)

    def _look_once(self, now_s: float) -> None:
        for mount in self._all():
            mount.let_leave()
            if not mount.has_supervisor and now_s - mount.unserved_since_s > GIVE_UP_S:
                mount.refuse_readers()
        with self._lock:
            keys = {*self._mounts, *self._links, *self._folders.known()}
            idle = [key for key in keys if not self._in_use(key)]
            for key in keys.difference(idle):
                self._idle_since_s.pop(key, None)
                self._ask_at_s.pop(key, None)
            for key in idle:
                if now_s - self._idle_since_s.setdefault(key, now_s) >= IDLE_S:
                    self._let_go(key)
        for key in idle:
            ask_at_s = self._ask_at_s.setdefault(key, now_s + IDLE_S)
            if now_s >= ask_at_s and key not in self._mounts:
                self._ask_at_s[key] = now_s + _ASK_EVERY_S
                if self._volume_exists(key) is False:
                    self._remove(key)

    def _in_use(self, key: ServedKey) -> bool:
        mount = self._mounts.get(key)
        if mount is not None and (mount.has_supervisor or mount.is_awaited or mount.users()):
            return True
        return self._has_server_pod(key)

    def _has_server_pod(self, key: ServedKey) -> bool:
        """Return whether a server pod, which may still be starting, sees a folder of it."""
        return any(
            self._folders.is_shown(entry, key) for entry in binds.binds_below(self._kubelet_dir)
        )

    def _let_go(self, key: ServedKey) -> None:
        """Unmount what nobody uses; its caches stay for the next pod."""
        if (mount := self._mounts.pop(key, None)) is not None:
            mount.close(unmount=True)
            log.info("%s: unmounted", key)
        if (link := self._links.pop(key, None)) is not None:
            link.close()

    def _remove(self, key: ServedKey) -> None:
        with self._lock:
            if key in self._mounts or key in self._links or self._has_server_pod(key):
                return  # somebody uses it again
            self._folders.remove(key)
            self._idle_since_s.pop(key, None)
            self._ask_at_s.pop(key, None)
        log.info("%s: its volume is gone from the cluster; removed its caches", key)
