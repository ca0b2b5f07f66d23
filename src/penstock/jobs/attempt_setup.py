"""Prepare one attempt of a job from its manifest, and start its keeper."""

import errno
import json
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.daemon.mount_registry import control_socket
from penstock.environment import child_environment
from penstock.errors import UsageError
from penstock.jobs import containers, loader_waits
from penstock.jobs.job_datasets import sources
from penstock.jobs.job_folder import waits_folder
from penstock.jobs.launching import (
    Instance,
    Machine,
    chosen_launch,
    hostfile,
    instances_of,
    ports_needed,
)
from penstock.jobs.processes import MARK
from penstock.reconcile.command_environment import environment, named_secret
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.specs.fields import parse_quantity
from penstock.specs.jobs import TrainingJob, TrainingJobSpec, cores
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import model_of
from penstock.store.redaction import remember

Json = dict[str, Any]

_MOST_SCRIPT_BYTES = 1 << 20
_PORTS = (12_000, 32_000)
_PASSWORD = re.compile(r"://[^/?#\s]*:([^/?#\s@]+)@")


@dataclass(frozen=True, slots=True)
class Attempt:
    launch: str
    payload: Json  # for the keeper; holds secrets
    instances: list[Instance]


def prepare(
    state: State,
    job: Stored,
    resources: Mapping[ResourceKey, Stored],
    folder: Path,
    *,
    run: str,
    number: int,
    gpus: tuple[int, ...],
) -> Attempt:
    """Raises UsageError if the job cannot be started."""
    sealed = state.secrets(job)
    model = model_of(job.manifest, sealed)
    assert isinstance(model, TrainingJob)
    spec = model.spec
    engine = _engine(spec)
    places = sources(job, resources)
    binds = [[str(mountpoint / below), target] for mountpoint, below, target in places]
    env, secrets = environment(
        spec.env, "spec.env", lambda name, key: named_secret(state, job.key.namespace, name, key)
    )
    # Everything that was sealed, because of its name or the URL that it is in, is redacted in logs.
    secrets = list(dict.fromkeys([*secrets, *sealed.values(), *_passwords(sealed.values())]))
    remember(*secrets)
    own = {
        MARK: job.uid,
        "PENSTOCK_JOB_NAME": job.key.name,
        "PENSTOCK_JOB_ATTEMPT": str(number),
        # Where the mounts behind the job's paths are served, for the plans of its loaders.
        "PENSTOCK_JOB_DATA": json.dumps(
            {
                target: [str(control_socket(mountpoint)), below]
                for mountpoint, below, target in places
            }
        ),
    }
    if spec.plan:
        own[loader_waits.VARIABLE] = str(_waits_folder(folder))
    env = {"PYTHONUNBUFFERED": "1", **env, **own}
    cwd = spec.working_dir or str(_own_folder(folder))
    scratch = scratch_place(job.uid)
    launch = chosen_launch(spec, lambda name: _script(name, cwd))
    machine = Machine(
        is_root=os.geteuid() == 0,
        gpus=gpus,
        ports=_free_ports(ports_needed(spec)),
        hostfile="" if engine else str(_hostfile(folder, spec)),
        scratch="" if engine else scratch,
        torchrun=("torchrun",) if engine else _torchrun(env),
        planner=(sys.executable, "-Pm", "penstock", "run", "--"),
    )
    instances = instances_of(job.key.name, spec, launch, env, machine)
    limit_cores = None if spec.cpu is None else cores(spec.cpu)
    memory_bytes = None if spec.memory is None else parse_quantity(spec.memory)
    if engine is not None:
        # Of this machine's environment the container gets nothing; only what the job names, and
        # what its trainer adds.
        named, client = {one.name for one in spec.env} | set(own), containers.client_environment()
        instances = [
            containers.contained(
                one,
                engine,
                spec.image,
                uid=job.uid,
                binds=[(a, b) for a, b in binds],
                variables={
                    name: value
                    for name, value in one.env.items()
                    if name in named or name not in env
                },
                working_dir=spec.working_dir,
                cores=limit_cores,
                memory_bytes=memory_bytes,
                client=client,
            )
            for one in instances
        ]
    payload: Json = {
        "run": run,
        "attempt": number,
        "name": job.key.name,
        "folder": str(folder),
        "state_folder": str(state.folder),
        "engine": engine,
        "contained": engine is not None,
        "scratch": scratch,
        "binds": binds,
        "hidden": [str(state.box.key_file())],
        "command": spec.command,
        "cwd": "/" if engine else cwd,
        "cores": limit_cores,
        "memory_bytes": memory_bytes,
        "timeout_s": spec.timeout_seconds,
        "secrets": secrets,
        "max_log_bytes": parse_quantity(spec.max_log_size),
        "instances": [
            {
                "name": one.name,
                "role": one.role,
                "argv": list(one.argv),
                "env": dict(one.env),
                "gpus": list(one.gpus),
                "workers": one.workers,
                "awaited": one.awaited,
            }
            for one in instances
        ],
    }
    return Attempt(launch, payload, instances)


def start_keeper(job: Stored, attempt: Attempt, lock: int, log: int) -> "subprocess.Popen[bytes]":
    """Start the keeper in a session of its own, and pass it the lock: it outlives its starter."""
    descriptor = os.memfd_create("penstock-job", 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(attempt.payload).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        _make_scratch(attempt.payload["scratch"])
        with child_environment(os.environ) as (env, keys):
            return subprocess.Popen(
                [sys.executable, "-Pm", KEEPER, job.uid, str(descriptor), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(descriptor, lock, keys),
                env=env,
                start_new_session=True,
                cwd="/",
            )
    finally:
        os.close(descriptor)
        os.close(lock)


KEEPER = "penstock.jobs.attempt_keeper"


def _engine(spec: TrainingJobSpec) -> str | None:
    if not spec.image:
        return None
    engine = containers.find_engine()
    if engine is None:
        raise UsageError(
            f"image {spec.image} cannot be run: {containers.why_no_engine()}",
            hint="start it, or leave the image out: the job then runs on this machine as it is",
        )
    return engine


def _torchrun(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the torchrun in the job's PATH; else that of this Python, if it has torch."""
    if shutil.which("torchrun", path=env.get("PATH")) is None and find_spec("torch") is not None:
        return (sys.executable, "-m", "torch.distributed.run")
    return ("torchrun",)


def _own_folder(folder: Path) -> Path:
    """Make the default working folder: relative file names must not end up in the root folder."""
    own = folder / "run"
    own.mkdir(exist_ok=True, mode=0o700)
    return own


def _waits_folder(folder: Path) -> Path:
    """Make the folder in which its loaders record how long they waited: of this attempt alone."""
    place = waits_folder(folder)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    return place


def _hostfile(folder: Path, spec: TrainingJobSpec) -> Path:
    path = folder / "hostfile"
    path.write_text(hostfile(spec))
    return path


def scratch_place(uid: str) -> str:
    """Return a folder that the ranks share files in, in memory where possible.

    Its path is short, since sockets are made in it. Other users can make a folder of this name.
    """
    shared = "/dev/shm"
    top = shared if os.access(shared, os.W_OK) else tempfile.gettempdir()
    path = os.path.join(top, f"penstock-job-{uid[:13]}")
    if os.path.lexists(path) and not _is_private(path):
        path += f"-{uuid.uuid4().hex[:8]}"
    return path


def _make_scratch(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:  # an earlier attempt made it
        if not _is_private(path):
            raise


def _is_private(path: str) -> bool:
    found = os.lstat(path)
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and stat.S_IMODE(found.st_mode) == 0o700
    )


def _passwords(values: Iterable[str]) -> Iterator[str]:
    """Yield the passwords inside URLs, which a program may print without the rest."""
    for value in values:
        if (found := _PASSWORD.search(value)) is not None:
            yield found[1]


def _script(name: str, cwd: str) -> str | None:
    path = os.path.join(cwd, name)
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _MOST_SCRIPT_BYTES:
            return None
        return Path(path).read_text()
    except (OSError, ValueError):
        return None


def _free_ports(count: int) -> tuple[int, ...]:
    """Choose free ports of the loopback interface, all different.

    They are below the kernel's ephemeral range, since seconds pass until the job binds them.
    """
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", random.randrange(*_PORTS)))
            except OSError as error:
                one.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                held.append(one)
        return tuple(one.getsockname()[1] for one in held)
    finally:
        for one in held:
            one.close()
