"""The loop, killed by itself at the N-th step: `python -m tests.support.die_at N`.

A step is anything that outlives the process: a change of the state, a process started, a mount
made or unmounted, a file removed. It dies right before it, which is right behind the one before.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from penstock.resources import datasets, leftovers, operating
from penstock.resources.loop import Loop
from penstock.resources.nudge import Place
from penstock.resources.state import State

_left = int(sys.argv[1])


def step() -> None:
    global _left
    _left -= 1
    if _left < 0:
        os.kill(os.getpid(), signal.SIGKILL)


def around(act: Callable[..., Any]) -> Callable[..., Any]:
    def acted(*arguments: Any, **options: Any) -> Any:
        step()
        return act(*arguments, **options)

    return acted


def main() -> None:
    for place, name in (
        (State, "observe"), (State, "forget"),
        (datasets, "start_supervisor"), (datasets, "change_in_place"), (leftovers, "stop_mount"),
        (shutil, "rmtree"), (operating.subprocess, "Popen"),
    ):  # fmt: skip
        setattr(place, name, around(getattr(place, name)))
    state = State()
    place = Place(state.folder)
    assert place.take(wait=True)
    Loop(state, place, stay=False).run()


main()
