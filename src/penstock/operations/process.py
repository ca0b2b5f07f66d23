"""DataProcess: a script of the user's, run with the data set at a path of its own.

It runs on this machine as whoever applied it, in no container: images are not used, and all that
it writes goes where it says. What it prints is kept in `output` of the operation's folder. Killed
in the middle it is run again from its beginning, as a pod would be; nothing of the one before is
left running.
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

# What a DataProcess runs: its script, or its pod's first container, as a command of this machine.
#
# No image is used, so the command must be one that this machine has.

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


# What a process says, kept: cleaned of secrets, and never more than so much of it.
#
# Threading: one thread reads; any may ask how much there was.

# The last 16 to 32 MiB are kept: in two files, of which the older one goes.
MOST_BYTES = 16 * MIB
_PIECE_BYTES = 64 * 1024
# A line without an end is cut here.
_LINE_BYTES = 1 * MIB


class Output:
    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.size_bytes = 0  # in all
        self._most_bytes = most_bytes
        self._file = open(path, "ab", buffering=0, opener=open_private)  # noqa: SIM115
        self._held = b""

    def take_all(self, descriptor: int) -> None:
        """Until nobody holds the other end any more."""
        while piece := os.read(descriptor, _PIECE_BYTES):
            self.size_bytes += len(piece)
            lines, newline, rest = (self._held + piece).rpartition(b"\n")
            if len(rest) > _LINE_BYTES:
                lines, newline, rest = self._held + piece, b"", b""
            self._held = rest
            self._write(lines + newline)
        self._write(self._held)
        self._held = b""

    def note(self, line: str) -> None:
        self._write(line.encode() + b"\n")

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


# As a Job in Kubernetes that may restart: so long it waits before each further try.
RESTART_PAUSES_S = (10.0, 20.0, 40.0)
_REPORT_S = 0.5
# By this a process of an earlier try is known.
_MARK = "PENSTOCK_OPERATION"


def run(work: Work) -> Json:
    resource = work.resource
    assert isinstance(resource, DataProcess)
    dataset = resource.spec.dataset
    work.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = command_of(work, resource.spec.processor)
    namespace = dataset.namespace or resource.metadata.namespace
    source = work.mountpoint(dataset.name, namespace) / dataset.sub_path.strip("/")
    _end_earlier(work.folder)
    output = Output(work.folder / "output")
    pauses = list(RESTART_PAUSES_S if command.restarts else ())
    attempt = 1
    try:
        bind = source, Path(dataset.mount_path)
        while (status := _run_once(work, command, bind, output, attempt)) != 0 and pauses:
            pause_s = pauses.pop(0)
            work.tell("Restarting", f"the process {_ended(status)}; again in {pause_s:g} s")
            time.sleep(pause_s)
            attempt += 1
        last = output.last_line()
    finally:
        output.close()
        command.forget()
    if status:
        raise PenstockError(
            f"the process {_ended(status)}" + (f"; it said last: {last}" if last else ""),
            hint=f"all that it said: {output.path}",
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
        # What it left running in the background would hold the output open, and the mount.
        _end_earlier(work.folder)
        listener.join()
        os.close(reader)


def _ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _end_earlier(folder: Path) -> None:
    """Ends what runs with this mark in its environment: of an earlier try, or left behind."""
    wanted = os.fsencode(f"{_MARK}={folder}")
    while _end_marked(wanted):
        time.sleep(0.01)  # until a look finds none: it may have forked behind our back


def _end_marked(wanted: bytes) -> bool:
    found = False
    for pid in procfs.pids():
        if pid != os.getpid() and wanted in procfs.environment(pid):
            found = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return found
