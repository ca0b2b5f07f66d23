"""Instances of a job in containers: the commands for docker and podman."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.reconcile.command_environment import inherited

if TYPE_CHECKING:  # models: the keeper, which only removes containers, starts without them
    from penstock.jobs.launching import Instance

ENGINES = ("docker", "podman")
_TIMEOUT_S = 30.0
_LABEL = "penstock-job"
# Variables that configure the engine's client.
_CLIENT = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "REGISTRY_AUTH_FILE", "XDG_")
_PODMAN_INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/local/bin/catatonit")


def find_engine() -> str | None:
    """Return the engine that is installed and answers; a client without its server is useless."""
    return next((engine for engine in ENGINES if _answers(engine)), None)


def why_no_engine() -> str:
    installed = [engine for engine in ENGINES if shutil.which(engine)]
    if not installed:
        return "neither docker nor podman is installed"
    return f"{' and '.join(installed)} {'is' if len(installed) == 1 else 'are'} installed, but " + (
        f"`{installed[0]} info` gets no answer"
    )


def _answers(engine: str) -> bool:
    if shutil.which(engine) is None:
        return False
    try:
        result = subprocess.run(
            [engine, "info"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def client_environment() -> dict[str, str]:
    """Return the environment of the engine's client, apart from that of the job inside."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(_CLIENT)}
    return {**inherited(), **settings}


def contained(
    instance: "Instance",
    engine: str,
    image: str,
    *,
    uid: str,
    binds: Sequence[tuple[str, str]],
    variables: Mapping[str, str],
    working_dir: str,
    cores: float | None,
    memory_bytes: int | None,
    client: Mapping[str, str],
    is_folder: Callable[[str], bool] = lambda name: Path(name).is_dir(),
) -> "Instance":
    """Return the same instance in a container.

    The container stays when it ends, until the keeper has asked whether it ran out of memory.
    """
    argv = [
        engine,
        "run",
        "--name",
        container_name(uid, instance.name),
        "--label",
        f"{_LABEL}={uid}",
        "--network",
        "host",
        "--ipc",
        "host",
    ]
    if engine != "podman" or any(map(os.path.exists, _PODMAN_INITS)):
        argv.append("--init")  # PID 1 ignores SIGTERM otherwise
    for source, target in binds:
        argv += ["-v", f"{source}:{target}:ro"]
    if working_dir:
        if is_folder(working_dir):
            argv += ["-v", f"{working_dir}:{working_dir}"]
        argv += ["-w", working_dir]
    if instance.gpus:
        devices = ",".join(map(str, instance.gpus))
        if engine == "docker":
            argv += ["--gpus", f'"device={devices}"']
        else:
            for device in instance.gpus:
                argv += ["--device", f"nvidia.com/gpu={device}"]
    if cores is not None:
        argv += ["--cpus", f"{cores * instance.workers:g}"]
    if memory_bytes is not None:
        limit = str(memory_bytes * instance.workers)
        argv += ["--memory", limit, "--memory-swap", limit]
    # In the container only these devices exist, numbered from 0.
    inside = {
        name: value
        for name, value in sorted(variables.items())
        if name != "CUDA_VISIBLE_DEVICES" or not instance.gpus
    }
    passed: dict[str, str] = {}
    for name, value in inside.items():
        if name in client or name.startswith("LD_"):  # it would change the client itself
            argv += ["-e", f"{name}={value}"]
        else:  # by its name: every user can read the arguments
            argv += ["-e", name]
            passed[name] = value
    return replace(instance, argv=(*argv, image, *instance.argv), env={**client, **passed})


def container_name(uid: str, instance: str) -> str:
    return f"penstock-{uid[:8]}-{instance}"


def out_of_memory(engine: str, uid: str, instance: str) -> bool:
    """Was the container killed for its memory limit?"""
    command = [engine, "inspect", "--format", "{{.State.OOMKilled}}", container_name(uid, instance)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.stdout.strip() == "true"


def remove_containers(engine: str, uid: str) -> None:
    """Remove all containers of this job, running or not."""
    try:
        found = subprocess.run(
            [engine, "ps", "-aq", "--filter", f"label={_LABEL}={uid}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if names := found.stdout.split():
            subprocess.run(
                [engine, "rm", "-f", *names],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired):
        return  # the engine does not answer, and only it could end them
