"""`kill -9` of the loop at every step of a reconcile: the next one brings it to the end.

Run as a program, `python -m tests.reconcile.test_kills N`, this is a loop that kills itself at the
N-th step. A step is anything that outlives the process: a change of the state, a process started, a
mount made or unmounted, a file removed. It dies right before it, which is right behind the one
before.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.api import resources as api
from penstock.api.manifests import read as read_manifests
from penstock.operations import lifecycle
from penstock.paths import state_dir
from penstock.reconcile import cleanup, datasets
from penstock.reconcile.admission import apply
from penstock.reconcile.deletion import delete
from penstock.reconcile.loop import Loop
from penstock.reconcile.loop_control import LoopLock, wake_loop
from penstock.reconcile.state import State
from penstock.reconcile.waiting import wait_for_pairs, wait_until_gone
from tests.support.datasets import Manifests, loops_of, of_folder, ours, path_of, phase
from tests.support.waiting import wait_until

# 20 or so starts of a loop and of a mount.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# More than there are; the test ends when one has lived to the end.
_MOST_STEPS = 60


@pytest.fixture
def manifests(source: Path, tmp_path: Path) -> Manifests:
    return [of_folder("small", source), ours("small", tmp_path / "cache")]


def at_each_step(*acts: tuple[Callable[[], object], Callable[[], None]]) -> list[int]:
    """Each is an act, and the check that it came to its end; one after the other, in a circle. How
    many steps each has."""
    steps: dict[int, int] = {}
    for number in range(_MOST_STEPS):
        for which, (act, check) in enumerate(acts):
            wait_until(lambda: not loops_of(state_dir()))  # else one of those would do it
            act()
            words = [sys.executable, "-m", "tests.reconcile.test_kills", str(number)]
            died = subprocess.run(words, timeout=60, check=False, stderr=subprocess.DEVNULL)
            assert died.returncode in (0, -signal.SIGKILL)
            if died.returncode == 0:  # it lived to the end
                steps.setdefault(which, number)
            check()
        if len(steps) == len(acts):
            return [steps[which] for which in range(len(acts))]
    raise AssertionError("it has more steps than that")


def is_right(state: State) -> None:
    wake_loop(state.folder)
    assert wait_for_pairs(state, [("default", "small")], timeout_s=60) == []
    assert phase("small") == "Bound"
    assert (path_of("small") / "file").read_bytes() == b"bytes"


def test_the_loop_killed_at_any_step_of_a_change_in_place_finishes_it_later(
    declared: State, manifests: Manifests
) -> None:
    apply(declared, read_manifests(manifests))
    is_right(declared)
    quota = 64

    def change() -> None:
        nonlocal quota
        quota += 1
        manifests[1]["spec"]["tieredstore"]["levels"][0]["quota"] = f"{quota}Mi"
        apply(declared, read_manifests(manifests))

    def check() -> None:
        is_right(declared)
        assert api.dataset("small").capacity_bytes == quota << 20

    (steps,) = at_each_step((change, check))
    assert steps >= 3


def test_the_loop_killed_at_any_step_of_creation_or_deletion_finishes_it_later(
    declared: State, manifests: Manifests, tmp_path: Path
) -> None:
    def gone() -> None:
        wake_loop(declared.folder)
        keys = [one.key for one in declared.all()]
        wait_until_gone(declared, keys, timeout_s=60)
        assert declared.all() == []
        assert not (tmp_path / "cache" / "penstock").exists()
        assert list((declared.folder / "catalogs").glob("*small*")) == []
        assert not (declared.folder / "data" / "default").exists()

    up, down = at_each_step(
        (lambda: apply(declared, read_manifests(manifests)), lambda: is_right(declared)),
        (lambda: delete(declared, declared.all()), gone),
    )
    assert up >= 4
    assert down >= 4


def loop_that_dies(steps: int) -> None:
    left = steps

    def around(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **options)

        return acted

    for place, name in (
        (State, "record"),
        (State, "forget"),
        (datasets, "start_supervisor"),
        (datasets, "change_in_place"),
        (cleanup, "stop_mount"),
        (shutil, "rmtree"),
        (lifecycle.subprocess, "Popen"),
    ):
        setattr(place, name, around(getattr(place, name)))
    state = State()
    place = LoopLock(state.folder)
    assert place.acquire(wait=True)
    Loop(state, place, stay=False).run()


if __name__ == "__main__":
    loop_that_dies(int(sys.argv[1]))
