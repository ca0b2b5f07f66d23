"""Manifests of data sets and runtimes, and what became of them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.api import resources as api
from penstock.daemon.mount_registry import find_note, serves
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from tests.support import loop_server
from tests.support.processes import commands
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import Tree, write_tree
from tests.support.waiting import wait_until

Manifests = list[dict[str, Any]]
_SEEDS = Path(__file__).parent.parent / "reconcile" / "manifests"


def processes_of(state: Path) -> list[str]:
    """The processes of Penstock with this state folder: `PID COMMAND` for each."""
    wanted = b"PENSTOCK_STATE_DIR=" + os.fsencode(state)
    found: list[str] = []
    for pid, words in commands().items():
        command = b" ".join(words).decode(errors="replace")
        if loop_server.MODULE in command:  # a fork has the environment of its server
            if loop_server.is_loop_of(state, pid):
                found.append(f"{pid} penstock.reconcile.loop")
        elif "penstock." in command and pid != os.getpid():
            with suppress(OSError):  # it has ended
                if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(f"{pid} {command}")
    return found


def loops_of(state: Path) -> list[int]:
    """The loops of this state that were started for a wish, also those that have not begun yet."""
    return [int(one.split()[0]) for one in processes_of(state) if "penstock.reconcile.loop" in one]


def phase(name: str) -> str:
    return api.dataset(name).phase


def fill(s3: S3, bucket: str, files: Tree) -> None:
    """A bucket with these files and no others."""
    write_tree(s3.bucket(bucket), files)


def seed(number: str, part: str, **values: str) -> str:
    """A manifest of the seeds: `part` is dataset or runtime. `values` fill in its placeholders."""
    text = (_SEEDS / f"seed-{number}-{part}.yaml").read_text()
    for name, value in values.items():
        text = re.sub(f"<(OSS_)?{name}>", value, text, flags=re.IGNORECASE)
    for key in ("Id", "Secret"):  # seed 004 has no placeholders for them
        value = values.get(f"access_key_{key.lower()}", "")
        text = text.replace(f"accessKey{key}: xxx", f"accessKey{key}: {value}")
    return text


def secret() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mysecret"},
        "stringData": {"fs.oss.accessKeyId": ACCESS_KEY, "fs.oss.accessKeySecret": SECRET_KEY},
    }


def dataset(name: str, s3: S3, *mounts: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """With one mount of the bucket of its name, unless others are given."""
    return {
        "apiVersion": "data.fluid.io/v1alpha1",
        "kind": "Dataset",
        "metadata": {"name": name},
        "spec": {"mounts": list(mounts) or [mount(s3, name)], **spec},
    }


def mount(s3: S3, bucket: str, **fields: Any) -> dict[str, Any]:
    """With the keys of the Secret `mysecret`."""
    keys = [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": "mysecret", "key": key}}}
        for key in ("fs.oss.accessKeyId", "fs.oss.accessKeySecret")
    ]
    return {
        "mountPoint": f"oss://{bucket}",
        "name": bucket,
        "options": {"fs.oss.endpoint": s3.endpoint},
        "encryptOptions": keys,
        **fields,
    }


def of_folder(name: str, folder: Path, *more: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A data set whose root is a folder of this machine."""
    root = {"mountPoint": f"local://{folder}", "name": "data", "path": "/"}
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {"name": name},
        "spec": {"mounts": [root, *more], **spec},
    }


def ours(name: str, cache: Path | None = None, quota: str = "64Mi", **spec: Any) -> dict[str, Any]:
    """A PenstockRuntime, with one tier if it has a folder for it."""
    levels = [{"mediumtype": "SSD", "path": str(cache), "quota": quota}]
    tiers = {} if cache is None else {"tieredstore": {"levels": levels}}
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "PenstockRuntime",
        "metadata": {"name": name},
        "spec": {**tiers, **spec},
    }


def path_of(name: str, namespace: str = "default") -> Path:
    path = api.dataset(name, namespace=namespace).path
    assert path is not None
    return path


def condition(name: str, kind: str = "Ready") -> dict[str, Any]:
    """The condition of this type; empty if there is none."""
    return next((one for one in api.dataset(name).conditions if one["type"] == kind), {})


def stored(state: State, key: ResourceKey) -> Stored:
    found = state.find(key)
    assert found is not None
    return found


@contextmanager
def serving(state: State) -> Iterator[None]:
    """`penstock serve`, which ends when it is asked to."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith(f"serving {state.folder}")
            yield
        finally:
            process.terminate()
            assert process.wait(30) == 0


def kill_mount(path: Path) -> None:
    """Both of its processes, and not gently: the mount stays, and nobody answers."""
    pids = find_note(path).processes
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(serves(pid, str(path)) for pid in pids))
