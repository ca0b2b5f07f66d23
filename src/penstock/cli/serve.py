"""penstock serve: the loop that stays, for schedules and events."""

import os
import shutil
import signal
import sys
import time
from importlib.resources import files

import click

from penstock.cli.output import notify
from penstock.errors import UsageError

_LOOK_S = 0.1


@click.command()
@click.option("--unit", is_flag=True, help="Print a systemd unit that runs it, and do nothing.")
def serve(unit: bool) -> None:
    """Stay and keep it so: schedules, events, lost mounts.

    Nothing else needs it: every other command starts what it needs, which ends when it is done.
    Ended or killed, mounts and operations go on.

    \b
    Example:
      penstock serve
      penstock serve --unit > /etc/systemd/system/penstock.service
    """
    if unit:
        program = shutil.which("penstock") or f"{sys.executable} -m penstock"
        text = files("penstock.reconcile").joinpath("penstock.service").read_text()
        state_dir = os.environ.get("PENSTOCK_STATE_DIR")
        where = f"Environment=PENSTOCK_STATE_DIR={state_dir}\n" if state_dir else ""
        click.echo(text.replace("@penstock@", program).replace("@environment@\n", where), nl=False)
        return
    from penstock.reconcile.loop import Loop
    from penstock.reconcile.loop_control import LoopLock, ask_to_stop, serving_pid
    from penstock.reconcile.state import State

    state = State()
    if (pid := serving_pid(state.folder)) is not None:
        raise UsageError(
            f"{state.folder} is served already, by process {pid}",
            hint="`systemctl stop penstock`, or end that process, if you want to serve it here",
        )
    place = LoopLock(state.folder)

    def leave(_number: int, _frame: object) -> None:
        place.ask_self_to_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    while not place.acquire(wait=False, stay=True):
        if place.asked_to_stop:
            return
        ask_to_stop(state.folder)  # one that was started for a single wish
        time.sleep(_LOOK_S)
    notify(f"serving {state.folder}; Ctrl-C ends, and leaves everything mounted")
    Loop(state, place, stay=True).run()
