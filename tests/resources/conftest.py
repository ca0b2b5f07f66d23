"""Declared resources for tests: made real, and all of it gone afterwards."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.daemon.registry import find_note, serves
from penstock.errors import NoSuchResource
from penstock.mounttable import mount_table
from penstock.resources.nudge import is_running
from penstock.resources.state import State
from tests.cache.test_flights import wait_until
from tests.conftest import ACCESS_KEY, S3, SECRET_KEY, penstock


@pytest.fixture
def declared(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    """A state of its own. At the end everything is deleted; no mount, no process is left."""
    # Keys come with the manifests: what is in the environment must not help.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    resources = State()
    yield resources
    while keys := [one.key for one in resources.all()]:
        with suppress(NoSuchResource):  # a loop was at it, and has just done it
            api.delete_keys(resources, keys, force=True, wait=True)
    deadline = time.monotonic() + 30
    while is_running(state):
        assert time.monotonic() < deadline, "the loop does not end"
        time.sleep(0.02)
    left = [entry.mountpoint for entry in mount_table() if entry.mountpoint.startswith(str(state))]
    assert left == []
    while found := processes_of(state):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.fixture
def server(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """Whose keys are in no environment, in whatever order fixtures come."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    return s3


def processes_of(state: Path) -> list[str]:
    """Those of Penstock that have this state folder in their environment."""
    wanted = b"PENSTOCK_STATE_DIR=" + os.fsencode(state)
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        if wanted in environment and "penstock." in command:
            found.append(f"{folder.name} {command}")
    return found


def phase(name: str) -> str:
    return api.dataset(name).phase


def fill(s3: S3, bucket: str, files: dict[str, bytes]) -> None:
    folder = s3.folder / bucket
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def secret(name: str = "mysecret") -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "stringData": {"fs.oss.accessKeyId": ACCESS_KEY, "fs.oss.accessKeySecret": SECRET_KEY},
    }  # fmt: skip


def encrypt_options(name: str = "mysecret") -> list[dict[str, Any]]:
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
        for key in ("fs.oss.accessKeyId", "fs.oss.accessKeySecret")
    ]


def dataset(name: str, s3: S3, *mounts: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """With one mount of the bucket of its name, unless others are given."""
    return {
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset", "metadata": {"name": name},
        "spec": {"mounts": list(mounts) or [mount(s3, name)], **spec},
    }  # fmt: skip


def mount(s3: S3, bucket: str, **fields: Any) -> dict[str, Any]:
    return {
        "mountPoint": f"oss://{bucket}", "name": bucket,
        "options": {"fs.oss.endpoint": s3.endpoint}, "encryptOptions": encrypt_options(),
        **fields,
    }  # fmt: skip


def runtime(name: str, cache: Path, kind: str = "JindoRuntime", **spec: Any) -> dict[str, Any]:
    level = {"mediumtype": "SSD", "path": str(cache), "quota": "1Gi", "high": "0.99", "low": "0.8"}
    return {
        "apiVersion": "data.fluid.io/v1alpha1", "kind": kind, "metadata": {"name": name},
        "spec": {"replicas": 1, "tieredstore": {"levels": [level]}, **spec},
    }  # fmt: skip


def of_folder(name: str, folder: Path, *more: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A data set whose root is a folder of this machine."""
    root = {"mountPoint": f"local://{folder}", "name": "data", "path": "/"}
    return {
        "apiVersion": "penstock.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": name},
        "spec": {"mounts": [root, *more], **spec},
    }  # fmt: skip


def ours(name: str, cache: Path | None = None, quota: str = "64Mi", **spec: Any) -> dict[str, Any]:
    """A PenstockRuntime, with one tier if it has a folder for it."""
    levels = [{"mediumtype": "SSD", "path": str(cache), "quota": quota}]
    tiers = {} if cache is None else {"tieredstore": {"levels": levels}}
    return {
        "apiVersion": "penstock.dev/v1alpha1", "kind": "PenstockRuntime",
        "metadata": {"name": name}, "spec": {**tiers, **spec},
    }  # fmt: skip


def path_of(name: str, namespace: str = "default") -> Path:
    path = api.dataset(name, namespace=namespace).path
    assert path is not None
    return path


def condition(name: str, kind: str = "Ready") -> dict[str, Any] | None:
    found = [one for one in api.dataset(name).conditions if one["type"] == kind]
    return found[0] if found else None


def kill_mount(path: Path) -> None:
    """Both of its processes, and not gently: the mount stays, and nobody answers."""
    pids = find_note(path).processes
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(serves(pid, str(path)) for pid in pids))


__all__ = ["penstock"]
