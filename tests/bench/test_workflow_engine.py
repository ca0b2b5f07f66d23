"""Steps wait for what they need, and the exit handler runs to its end whatever happens."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.bench.workflow.engine import (
    Engine,
    Record,
    Step,
    StepContext,
    StepSkipped,
    StepStopped,
    records_of,
)
from penstock.errors import StoreError


class Bench:
    """An engine over steps that note when they ran."""

    def __init__(self, folder: Path, parallel: int = 1) -> None:
        self.folder, self.parallel = folder, parallel
        self.interrupt = threading.Event()
        self.ran: list[str] = []
        self.steps: list[Step] = []
        self.last: list[Step] = []
        self.changed: Callable[[], None] = lambda: None  # what the view does

    def step(
        self,
        name: str,
        act: Callable[[StepContext], None] | None = None,
        *,
        last: bool = False,
        needs: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        retries: int = 0,
    ) -> None:
        def run(context: StepContext) -> None:
            self.ran.append(name)
            if act is not None:
                act(context)

        made = Step(name, run, needs, after, retries)
        (self.last if last else self.steps).append(made)

    def go(self) -> dict[str, str]:
        record = Record(
            "r",
            self.folder / "workflow.json",
            records_of(self.steps, self.last),
            lambda: self.changed(),
        )
        engine = Engine(record, self.parallel, self.folder, self.interrupt)
        engine.run(self.steps, self.last)
        whole = json.loads((self.folder / "workflow.json").read_text())
        return {step["name"]: step["state"] for step in whole["steps"]}


def raising(error: Exception) -> Callable[[StepContext], None]:
    def act(context: StepContext) -> None:
        raise error

    return act


fails = raising(StoreError("no luck"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_step_waits_for_what_it_needs_and_is_skipped_when_that_failed(bench: Bench) -> None:
    bench.step("e", needs=("d",))
    bench.step("a", fails)
    bench.step("b", needs=("a",))
    bench.step("c", needs=("b",))
    bench.step("d", after=("a", "b", "c"))
    states = {"a": "failed", "b": "skipped", "c": "skipped", "d": "done", "e": "done"}
    assert (bench.go(), bench.ran) == (states, ["a", "d", "e"])


def test_a_step_is_tried_again_as_often_as_it_may_be(bench: Bench) -> None:
    def second_time(context: StepContext) -> None:
        if context.attempt < 2:
            fails(context)

    bench.step("a", second_time, retries=1)
    bench.step("b", fails, retries=2)
    assert bench.go() == {"a": "done", "b": "failed"}
    assert bench.ran == ["a", "a", "b", "b", "b"]


def test_all_of_the_exit_handler_runs_whatever_fails_in_it(bench: Bench) -> None:
    bench.step("a", fails)
    bench.step("x", raising(ZeroDivisionError()), last=True)
    bench.step("y", fails, last=True)
    bench.step("z", raising(StepSkipped("nothing to do")), last=True)
    bench.step("last", last=True)
    found = bench.go()
    assert found == {"a": "failed", "x": "failed", "y": "failed", "z": "skipped", "last": "done"}
    assert "ZeroDivisionError" in (bench.folder / "x.traceback").read_text()


def test_no_more_run_at_once_than_may(tmp_path: Path) -> None:
    bench = Bench(tmp_path, parallel=2)
    both, room = threading.Barrier(2), threading.BoundedSemaphore(2)

    def meet(context: StepContext) -> None:
        assert room.acquire(blocking=False)
        both.wait(20)
        room.release()

    for name in "abcd":
        bench.step(name, meet)
    assert set(bench.go().values()) == {"done"}


def test_a_stopped_step_is_not_tried_again_and_no_other_begins(bench: Bench) -> None:
    def interrupted(context: StepContext) -> None:
        bench.interrupt.set()
        raise StepStopped("interrupted")

    bench.step("a", interrupted, retries=3)
    bench.step("b")
    bench.step("last", lambda context: context.check(), last=True)
    assert bench.go() == {"a": "failed", "b": "skipped", "last": "done"}
    assert bench.ran == ["a", "last"]


def test_the_exit_handler_runs_when_nothing_can_be_written_or_shown(bench: Bench) -> None:
    def full(context: StepContext) -> None:
        (bench.folder / ".workflow.json.new").mkdir()  # so that opening it fails, also as root
        (bench.folder / "x.traceback").mkdir()
        raise OSError("no space left")

    def empty(context: StepContext) -> None:
        (bench.folder / ".workflow.json.new").rmdir()

    bench.step("x", full)
    bench.step("y", last=True)
    bench.step("z", empty, last=True)
    assert bench.go() == {"x": "failed", "y": "done", "z": "done"}


def test_the_exit_handler_runs_and_a_failure_of_the_view_is_not_lost(bench: Bench) -> None:
    def broken() -> None:
        raise ValueError("cannot draw")

    bench.step("a", lambda context: setattr(bench, "changed", broken))
    bench.step("b", needs=("a",))
    bench.step("last", last=True)
    with pytest.raises(ValueError, match="cannot draw"):
        bench.go()
    assert bench.interrupt.is_set()
    assert bench.ran == ["a", "last"]
