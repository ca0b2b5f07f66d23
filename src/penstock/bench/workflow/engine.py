"""Named steps that need each other, some at once, and an exit handler that always runs.

A step is a function that is done when it returns and failed when it raises. What it needs must be
done, else it is skipped; what it comes after must be over, whatever came of it. An interrupt tells
the steps that run to stop, waits for them, and goes on with the exit handler, all of whose steps
run, one after the other, whatever came of those before.

Steps run in threads of a pool, whose futures hold what they raised: nothing is lost, and nothing is
caught that nobody expects. An interrupt is an event that is set, and not an exception that may come
between any two lines.
"""

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bench.workflow.record import Record, StepRecord
from penstock.errors import PenstockError

_LOOK_S = 0.1  # how soon an interrupt is seen


class Skip(Exception):
    """Raised by a step that finds nothing to do, with the reason."""


class Stopped(PenstockError):
    """Raised by a step that was told to stop."""


@dataclass(frozen=True)
class Ticket:
    """What a step is given: how long it may take, and whether it is to stop."""

    attempt: int
    deadline_s: float | None  # by the monotonic clock
    stopping: threading.Event

    def check(self) -> None:
        """For a step that goes on for long by itself."""
        if self.stopping.is_set():
            raise Stopped("interrupted")

    @property
    def late(self) -> bool:
        return self.deadline_s is not None and time.monotonic() > self.deadline_s


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable[[Ticket], None]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    retries: int = 0
    timeout_s: float | None = None


@dataclass
class Engine:
    record: Record
    parallel: int
    logs: Path  # of tracebacks, where a step's failure is a bug
    interrupt: threading.Event
    _begun: list[Future[None]] = field(default_factory=list[Future[None]])

    def run(self, steps: Sequence[Step], last: Sequence[Step]) -> None:
        with ThreadPoolExecutor(self.parallel, "step") as pool, contextlib.ExitStack() as exits:
            # Its callbacks run all, in the opposite order, whatever is raised here or by them: a
            # view that cannot be drawn must not keep a store running and a bucket full.
            for step in reversed(last):
                exits.callback(self._run_last, pool, step)
            try:
                self._go_through(pool, steps)
            except BaseException:
                self.interrupt.set()
                wait(self._begun)
                raise

    def _run_last(self, pool: ThreadPoolExecutor, step: Step) -> None:
        try:
            while self._settle(step, self._begin(pool, step, threading.Event())):
                pass
        finally:
            wait(self._begun)

    def _go_through(self, pool: ThreadPoolExecutor, steps: Sequence[Step]) -> None:
        running: dict[Future[None], Step] = {}
        while True:
            if self.interrupt.is_set():
                for step in steps:
                    if self.record.of(step.name).state == "waiting":
                        self.record.end(step.name, "skipped", error="interrupted")
            for step in steps:
                if len(running) < self.parallel and self._is_due(step):
                    running[self._begin(pool, step, self.interrupt)] = step
            if not running:
                return
            for future in wait(running, _LOOK_S, FIRST_COMPLETED).done:
                step = running.pop(future)
                if self._settle(step, future):
                    running[self._begin(pool, step, self.interrupt)] = step

    def _is_due(self, step: Step) -> bool:
        if self.record.of(step.name).state != "waiting":
            return False
        for name in step.needs:
            state = self.record.of(name).state
            if state in ("failed", "skipped"):
                self.record.end(step.name, "skipped", error=f"needs {name}, which was {state}")
                return False
            if state != "done":
                return False
        return all(self.record.of(name).state not in ("waiting", "running") for name in step.after)

    def _begin(
        self, pool: ThreadPoolExecutor, step: Step, stopping: threading.Event
    ) -> Future[None]:
        deadline_s = None if step.timeout_s is None else time.monotonic() + step.timeout_s
        ticket = Ticket(self.record.of(step.name).attempts + 1, deadline_s, stopping)
        try:
            self.record.begin(step.name)
        finally:  # one of the exit handler runs even if nobody can be told
            future = pool.submit(step.run, ticket)
            self._begun.append(future)
        return future

    def _settle(self, step: Step, future: Future[None]) -> bool:
        """Notes what came of it; says whether it is to be tried again."""
        error = future.exception()
        if error is None:
            self.record.end(step.name, "done")
        elif isinstance(error, Skip):
            self.record.end(step.name, "skipped", error=str(error))
        elif isinstance(error, PenstockError):
            tries_left = self.record.of(step.name).attempts <= step.retries
            if tries_left and not isinstance(error, Stopped):
                return True
            self.record.end(
                step.name, "failed", error=str(error), hint=error.hint, exit_code=error.exit_code
            )
        else:
            log = self.logs / f"{step.name}.traceback"
            said, hint = f"{type(error).__name__}: {error}", f"see {log}"
            try:
                log.write_text("".join(traceback.format_exception(error)))
            except OSError as unwritten:  # a full disk, which may be what the step failed of
                hint = str(unwritten)
            self.record.end(step.name, "failed", error=said, hint=hint, exit_code=1)
        return False


def records_of(steps: Sequence[Step], last: Sequence[Step]) -> list[StepRecord]:
    # Both relations are shown as needs: a reader wants to know what waits for what.
    before = [StepRecord(step.name, (*step.needs, *step.after)) for step in steps]
    return before + [StepRecord(step.name, (), last=True) for step in last]
