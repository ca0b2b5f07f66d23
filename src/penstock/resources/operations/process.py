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
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.resources.namespace import run_with_data
from penstock.resources.operations.commands import Command, command_of
from penstock.resources.operations.output import Output
from penstock.resources.operations.work import Work
from penstock.specs.operations import DataProcess

Json = dict[str, Any]

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
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if wanted in variables:
            found = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), signal.SIGKILL)
    return found
