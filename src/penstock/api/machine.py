"""This machine: its labels, its diagnosis, and the reconcile loop as a service."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.reconcile.loop_control import wake_loop
from penstock.reconcile.state import State

if TYPE_CHECKING:
    from penstock.doctor.examination import Report

_RETRY_S = 0.1

# -- labels -----------------------------------------------------------------------------------


def labels() -> dict[str, str]:
    """The labels that the nodeAffinity of data sets is compared with: found, and set by users."""
    from penstock.reconcile.node_affinity import this_node

    return dict(this_node(State().labels()).labels)


def set_labels(changes: Mapping[str, str | None]) -> None:
    """Set labels of this machine; None removes one."""
    state = State()
    state.set_labels(dict(changes))
    wake_loop(state.folder)


# -- diagnosis --------------------------------------------------------------------------------


def diagnose(
    name: str | None = None, *, namespace: str = "default", limit: int = 1000
) -> "Diagnosis":
    """Examine a data set, KIND/NAME of another resource, a mount point, or without `name` all that
    is declared or mounted. `limit`: how many hidden objects of a mount to list."""
    from penstock.doctor.examination import examine

    return Diagnosis(examine(name, namespace=namespace, limit=limit), limit)


class Diagnosis:
    """What was found wrong, slow or stuck; without secrets."""

    def __init__(self, report: "Report", limit: int) -> None:
        self._report = report
        self._limit = limit

    @property
    def exit_code(self) -> int:
        """0 if nothing is wrong, 3 if storage cannot be reached, else 2."""
        from penstock.doctor.findings import exit_code

        return exit_code(self._report.findings)

    def as_dict(self) -> dict[str, Any]:
        from penstock.doctor.examination import as_json

        return as_json(self._report)

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """The findings as text; `verbose` adds what is well."""
        from penstock.doctor.examination import as_text, hidden_lines

        yield from as_text(self._report, verbose=verbose)
        yield from hidden_lines(self._report.hidden, self._limit)

    def write_bundle(self, path: Path) -> list[str]:
        """Write a support bundle; return the names of the files in it."""
        from penstock.doctor.bundle import write_bundle

        return write_bundle(self._report, path)


# -- the loop as a service --------------------------------------------------------------------


def serve(*, ready: Callable[[Path], None] = lambda _folder: None) -> None:
    """Run the reconcile loop in this process until SIGTERM or SIGINT; main thread only.

    A loop that another command has started for one task is asked to end first. `ready` gets the
    state folder."""
    from penstock.reconcile.loop import Loop
    from penstock.reconcile.loop_control import LoopLock, ask_to_stop, serving_pid

    state = State()
    if (pid := serving_pid(state.folder)) is not None:
        raise UsageError(
            f"process {pid} already serves {state.folder}",
            hint="`systemctl stop penstock`, or end that process, if you want to serve it here",
        )
    lock = LoopLock(state.folder)

    def leave(_number: int, _frame: object) -> None:
        lock.ask_self_to_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    while not lock.acquire(wait=False, stay=True):
        if lock.asked_to_stop:
            return
        ask_to_stop(state.folder)
        time.sleep(_RETRY_S)
    ready(state.folder)
    Loop(state, lock, stay=True).run()


def systemd_unit() -> str:
    """The text of a systemd unit that runs `penstock serve`."""
    program = shutil.which("penstock") or f"{sys.executable} -m penstock"
    text = files("penstock.reconcile").joinpath("penstock.service").read_text()
    state_dir = os.environ.get("PENSTOCK_STATE_DIR")
    where = f"Environment=PENSTOCK_STATE_DIR={state_dir}\n" if state_dir else ""
    return text.replace("@penstock@", program).replace("@environment@\n", where)
