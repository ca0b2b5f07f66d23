"""DataProcess: run a script of the user that sees the data set at a given path.

It runs on this machine, as the user who applied it, without a container: images are not used, and
it can write wherever that user can. Its output is kept in `output` of the operation's folder. If it
is killed, it runs again from the beginning, as a pod would; no process of an earlier run is left.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock import procfs
from penstock.errors import PenstockError, UsageError
from penstock.operations.work import Work
from penstock.paths import open_private
from penstock.reconcile.command_environment import environment, expanded
from penstock.reconcile.mount_namespace import run_with_data
from penstock.specs.dataset import Env
from penstock.specs.operations import DataProcess, JobProcessor, Processor, ScriptProcessor
from penstock.store.redaction import redact
from penstock.units import MIB

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    argv: list[str]
    env: dict[str, str]
    folder: Path  # its working directory
    restarts: bool  # after a failure
    script: Path | None = None

    def delete_script(self) -> None:
        """Delete the script once it has run: people write keys into scripts."""
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
        raise UsageError(f"{where}.containers is empty", hint="name the container to run")
    if len(containers) > 1 or pod.get("initContainers"):
        work.add_event("NoEffect", f"{where}: only the first container is run")
    container = containers[0]
    if not container.get("command"):
        raise UsageError(
            f"{where}.containers.0 has no command, and its image is not used here",
            hint="write the command that the image would run",
        )
    if container.get("volumeMounts"):
        work.add_event("NoEffect", f"{where}: volumes: folders of this machine are used directly")
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
    """Create its working directory: relative paths must not end up in the root of the machine."""
    folder = work.folder / "run"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _environment(work: Work, variables: list[Env], where: str) -> dict[str, str]:
    namespace = work.resource.metadata.namespace
    return environment(variables, where, lambda name, key: work.secret(namespace, name, key))[0]


# -- output ------------------------------------------------------------------------------------

# The last 16 to 32 MiB are kept: in two files, of which the older one goes.
MOST_BYTES = 16 * MIB
_PIECE_BYTES = 64 * 1024
# A longer line is cut.
_LINE_BYTES = 1 * MIB


class Output:
    """The kept output of a process: limited in size, without secrets.

    Threading: one thread reads; any may read `size_bytes`.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.size_bytes = 0  # in all
        self._most_bytes = most_bytes
        self._file = open(path, "ab", buffering=0, opener=open_private)  # noqa: SIM115
        self._held = b""

    def take_all(self, descriptor: int) -> None:
        """Read until every writer has closed its end."""
        while piece := os.read(descriptor, _PIECE_BYTES):
            self.size_bytes += len(piece)
            lines, newline, rest = (self._held + piece).rpartition(b"\n")
            if len(rest) > _LINE_BYTES:
                lines, newline, rest = self._held + piece, b"", b""
            self._held = rest
            self._write(lines + newline)
        self._write(self._held)
        self._held = b""

    def last_line(self) -> str:
        with open(self.path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        if not data:
            return
        clean = redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if os.fstat(self._file.fileno()).st_size + len(clean) > self._most_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = open(self.path, "ab", buffering=0, opener=open_private)  # noqa: SIM115
        self._file.write(clean)


# -- running -----------------------------------------------------------------------------------

# The pauses of a Kubernetes Job before each retry.
RESTART_PAUSES_S = (10.0, 20.0, 40.0)
_REPORT_S = 0.5
# This variable in its environment marks a process of this operation.
_MARK = "PENSTOCK_OPERATION"


def run(work: Work) -> Json:
    resource = work.resource
    assert isinstance(resource, DataProcess)
    dataset = resource.spec.dataset
    work.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = command_of(work, resource.spec.processor)
    namespace = dataset.namespace or resource.metadata.namespace
    source = work.mountpoint(dataset.name, namespace) / dataset.sub_path.strip("/")
    _kill_marked(work.folder)
    output = Output(work.folder / "output")
    pauses = list(RESTART_PAUSES_S if command.restarts else ())
    attempt = 1
    try:
        bind = source, Path(dataset.mount_path)
        while (status := _run_once(work, command, bind, output, attempt)) != 0 and pauses:
            pause_s = pauses.pop(0)
            work.add_event("Restarting", f"the process {_ended(status)}; retried in {pause_s:g} s")
            time.sleep(pause_s)
            attempt += 1
        last = output.last_line()
    finally:
        output.close()
        command.delete_script()
    if status:
        raise PenstockError(
            f"the process {_ended(status)}" + (f"; its last line: {last}" if last else ""),
            hint=f"its whole output: {output.path}",
        )
    return {"ExitCode": "0", "Attempts": str(attempt), "Output": str(output.path)}


def _run_once(
    work: Work, command: Command, bind: tuple[Path, Path], output: Output, attempt: int
) -> int:
    reader, writer = os.pipe()
    env = {**command.env, _MARK: str(work.folder)}
    try:
        process = run_with_data(command.argv, [bind], env=env, cwd=command.folder, stdout=writer)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    listener = threading.Thread(target=output.take_all, args=(reader,), daemon=True)
    listener.start()
    try:
        while True:
            work.report({"phase": "running", "attempt": attempt, "outputBytes": output.size_bytes})
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_REPORT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        # Background processes would hold the output and the mount open.
        _kill_marked(work.folder)
        listener.join()
        os.close(reader)


def _ended(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _kill_marked(folder: Path) -> None:
    """Kill all processes with this mark: of an earlier attempt, or left in the background."""
    wanted = os.fsencode(f"{_MARK}={folder}")
    while _kill_marked_once(wanted):
        time.sleep(0.01)  # again until none is found: they may fork meanwhile


def _kill_marked_once(wanted: bytes) -> bool:
    found = False
    for pid in procfs.pids():
        if pid != os.getpid() and wanted in procfs.environment(pid):
            found = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return found
