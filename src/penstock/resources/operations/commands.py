"""What a DataProcess runs: its script, or its pod's first container, as a command of this machine.

No image is used, so the command must be one that this machine has.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.errors import UsageError
from penstock.resources.environment import environment, expanded
from penstock.resources.operations.work import Work
from penstock.specs.dataset import Env
from penstock.specs.operations import JobProcessor, Processor, ScriptProcessor

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    argv: list[str]
    env: dict[str, str]
    folder: Path  # where it begins
    restarts: bool  # when it fails
    script: Path | None = None

    def forget(self) -> None:
        """What is not needed any more is not kept: people write keys into scripts."""
        if self.script is not None:
            self.script.unlink(missing_ok=True)


def command_of(work: Work, processor: Processor) -> Command:
    if processor.job is not None:
        return _of_job(work, processor.job)
    if processor.script is not None:
        return _of_script(work, processor.script)
    raise UsageError(
        "spec.processor names nothing to run", hint="write spec.processor.script or .job"
    )


def _of_script(work: Work, script: ScriptProcessor) -> Command:
    path = work.folder / "script"
    path.unlink(missing_ok=True)
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o700)) as file:
        file.write(script.source)
    # A container would have an entry point; here the script's own first line says what runs it.
    usual = [] if script.source.startswith("#!") else ["/bin/sh"]
    env = _environment(work, script.env, "spec.processor.script.env")
    argv = [*(expanded(word, env) for word in script.command or usual), str(path)]
    return Command(argv, env, _own_folder(work), script.restart_policy == "OnFailure", path)


def _of_job(work: Work, job: JobProcessor) -> Command:
    pod = job.pod_spec or {}
    where = "spec.processor.job.podSpec"
    containers = cast(list[Json], pod.get("containers") or [])
    if not containers:
        raise UsageError(f"{where}.containers is empty", hint="write what is to be run")
    if len(containers) > 1 or pod.get("initContainers"):
        work.tell("NoEffect", f"{where}: only the first container is run")
    container = containers[0]
    if not container.get("command"):
        raise UsageError(
            f"{where}.containers.0 has no command, and its image is not used here",
            hint="write the command that the image would run",
        )
    if container.get("volumeMounts"):
        work.tell("NoEffect", f"{where}: volumes: the folders of this machine are as they are")
    variables = [Env.model_validate(one) for one in cast(list[Json], container.get("env") or [])]
    env = _environment(work, variables, f"{where}.containers.0.env")
    words = [str(word) for name in ("command", "args") for word in _list(container, name)]
    folder: str | None = container.get("workingDir")
    restarts = pod.get("restartPolicy") == "OnFailure"
    argv = [expanded(word, env) for word in words]
    return Command(argv, env, Path(folder) if folder else _own_folder(work), restarts)


def _list(container: Json, name: str) -> list[Any]:
    return cast(list[Any], container.get(name) or [])


def _own_folder(work: Work) -> Path:
    """Names without a folder must not end up in the machine's root."""
    folder = work.folder / "run"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _environment(work: Work, variables: list[Env], where: str) -> dict[str, str]:
    namespace = work.resource.metadata.namespace
    return environment(variables, where, lambda name, key: work.secret(namespace, name, key))[0]
