"""Turn a stored Dataset and its runtime into the plan of a mount on this machine."""

import os
from pathlib import Path

from penstock.daemon.mount_registry import resolve_mountpoint
from penstock.errors import PenstockError, SpecProblem
from penstock.fluid.plan import Lookup, MountPlan, Referenced, plan_mount
from penstock.fluid.tiers import Folders
from penstock.mounttable import filesystem_type
from penstock.paths import cache_folder_name, data_dir, default_cache_dir, state_dir
from penstock.reconcile.snapshot import MOUNT_PATH, Snapshot, Stored
from penstock.reconcile.state import State
from penstock.specs.dataset import Dataset
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import Runtime, Secret, model_of
from penstock.specs.resource import Resource


def plan_of(state: State, snapshot: Snapshot, dataset: Stored, runtime: Stored) -> MountPlan:
    """Return the plan. Raises SpecProblem. Asks no store and changes nothing."""
    models = _Models(state, snapshot)
    return plan_mount(
        models.dataset(dataset),
        models.runtime(runtime),
        Lookup(models.secret, models.referenced, Path.read_text),
        Folders(
            cache=default_cache_dir(),
            scratch=state_dir() / "scratch",
            memory=Path("/dev/shm"),
            owner=cache_folder_name(),
            is_tmpfs=_is_tmpfs,
        ),
        mountpoint=_mountpoint(dataset, runtime),
        # Data sets that root declares are for all users; those of a user are for that user alone.
        allow_other=os.geteuid() == 0,
        runs_members=True,
    )


def _mountpoint(dataset: Stored, runtime: Stored) -> Path:
    """Return the mount point as the mount table spells it, where it is looked up later."""
    given, path, name = dataset.annotations.get(MOUNT_PATH), "metadata.annotations", MOUNT_PATH
    if given is None:
        given, path, name = runtime.spec.get("mountPath"), "spec.mountPath", "mountPath"
    if not given:
        return resolve_mountpoint(str(data_dir() / dataset.key.namespace / dataset.key.name))
    if not given.startswith("/") or not given.strip("/"):
        hint = "write a folder's whole path, like /data/imagenet"
        raise SpecProblem(path, f"{name}: nothing can be mounted at {given!r}", hint=hint)
    return resolve_mountpoint(given)


class _Models:
    """The models of stored resources, with their secrets in place."""

    def __init__(self, state: State, snapshot: Snapshot) -> None:
        self._state = state
        self._snapshot = snapshot

    def dataset(self, stored: Stored) -> Dataset:
        model = self.of(stored)
        assert isinstance(model, Dataset)
        return model

    def runtime(self, stored: Stored) -> Runtime:
        model = self.of(stored)
        assert isinstance(model, Runtime)
        return model

    def of(self, stored: Stored) -> Resource:
        return model_of(stored.manifest, self._state.secrets(stored))

    def secret(self, namespace: str, name: str, key: str) -> str:
        found = self._snapshot.resources.get(ResourceKey("Secret", namespace, name))
        if found is None or found.deleting is not None:
            raise PenstockError(
                f"there is no Secret {name}", hint=f"apply a Secret {name} with the key {key}"
            )
        model = self.of(found)
        assert isinstance(model, Secret)
        return model.value_of(key)

    def referenced(self, key: ResourceKey) -> Referenced | None:
        pair = self._snapshot.pair(key.namespace, key.name)
        if pair.dataset is None or pair.dataset.deleting is not None:
            return None
        runtime = pair.runtime if pair.runtime and pair.runtime.deleting is None else None
        return Referenced(self.dataset(pair.dataset), runtime and self.runtime(runtime))


def _is_tmpfs(path: Path) -> bool:
    while not path.exists():
        path = path.parent
    return filesystem_type(Path(os.path.realpath(path))) in ("tmpfs", "ramfs")
