"""Plans that are handed over, and what is kept of them for the next server."""

import json
import os
import socket
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.daemon.control_socket import Connection
from penstock.daemon.epoch_plans import EpochPlans, Keeping
from penstock.errors import PlanError
from penstock.metrics import Counters
from penstock.warm.order import OrderWriter
from penstock.warm.page_cache import PageBudget
from penstock.warm.prefetcher import LocalFetcher, Prefetcher
from tests.support.gated_set import MakeSet, Set
from tests.support.waiting import wait_until


class Supervisor:
    """Keeps what it is given, as long as it is told to."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self.remembered: dict[str, Any] = {}
        self.keeping = Keeping(self._keep, self._drop, self._remember)

    def _keep(self, name: str, descriptor: int) -> None:
        self.kept[name] = os.dup(descriptor)

    def _drop(self, name: str) -> None:
        if name in self.kept:
            os.close(self.kept.pop(name))

    def _remember(self, values: dict[str, Any]) -> None:
        self.remembered.update(values)
        for name in [name for name, value in values.items() if value is None]:
            self.remembered.pop(name, None)


class Job:
    """A training process with a plan of one file."""

    def __init__(self) -> None:
        self.writer = OrderWriter([b"a"], 10)
        self.writer.add(array("I", [0]))
        self.end, theirs = socket.socketpair()
        self.end.settimeout(60)
        self.line = Connection(theirs)

    def hand_over(self, plans: EpochPlans, label: str = "job") -> None:
        descriptors = [os.dup(self.writer.descriptor)]
        try:
            plans.converse({"label": label, "pid": 1}, self.line, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def heard(self) -> bytes:
        return self.end.recv(1000)


@pytest.fixture
def some(make_set: MakeSet) -> Set:
    return make_set({"a": b"some"})


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor()
    yield supervisor
    for descriptor in supervisor.kept.values():
        os.close(descriptor)


def serve(some: Set, supervisor: Supervisor) -> EpochPlans:
    prefetcher = Prefetcher(LocalFetcher(some.files, None, Counters()), Counters())
    return EpochPlans(
        some.files, prefetcher, None, PageBudget(0), lambda _ino: None, supervisor.keeping
    )


def hand_on(plans: EpochPlans, supervisor: Supervisor) -> None:
    """What a new server gets: copies of all that is kept."""
    kept = {name: os.dup(descriptor) for name, descriptor in supervisor.kept.items()}
    plans.adopt(kept, dict(supervisor.remembered))
    assert kept == {}


@pytest.mark.parametrize("gone_before", [False, True])
def test_a_plan_ends_with_its_process_and_leaves_nothing(
    some: Set, supervisor: Supervisor, gone_before: bool
) -> None:
    plans, job = serve(some, supervisor), Job()
    if gone_before:
        job.end.close()
    job.hand_over(plans)
    if not gone_before:
        assert json.loads(job.heard()) == {"accepted": True}
        wait_until(lambda: plans.describe()[0]["fetched"] == 1)
        assert len(supervisor.kept) == 2
        job.end.close()
    wait_until(lambda: plans.describe() == [] and not supervisor.remembered)
    assert supervisor.kept == {}


@pytest.mark.parametrize("messages", [1, 2, 3, 4])
def test_a_server_killed_while_it_takes_a_plan_keeps_all_of_it_or_nothing(
    some: Set, supervisor: Supervisor, messages: int
) -> None:
    job, keeping = Job(), supervisor.keeping
    for message in (
        lambda: keeping.keep("plan-7-1.memory", job.writer.descriptor),
        lambda: keeping.keep("plan-7-1.line", job.line.fileno()),
        lambda: keeping.remember({"plan-7-1": ["job", 1]}),
        lambda: keeping.remember({"plan-7-1": ["job", 1, True]}),
    )[:messages]:
        message()
    job.line.close()
    plans = serve(some, supervisor)
    hand_on(plans, supervisor)
    if messages < 3:
        assert (supervisor.kept, supervisor.remembered, plans.describe()) == ({}, {}, [])
        assert job.heard() == b""  # and asks again
        job.end.close()
        return
    assert [plan["label"] for plan in plans.describe()] == ["job"]
    if messages == 3:  # perhaps nobody has told it
        assert json.loads(job.heard()) == {"accepted": True}
    job.end.close()
    wait_until(lambda: plans.describe() == [] and not supervisor.remembered)
    assert supervisor.kept == {}


def test_no_more_plans_are_accepted_than_can_be_handed_over(
    some: Set, supervisor: Supervisor
) -> None:
    plans = serve(some, supervisor)
    jobs = [Job() for _ in range(65)]
    for job in jobs[:64]:
        job.hand_over(plans, "long " * 10_000)
    with pytest.raises(PlanError, match="64 plans already"):
        jobs[64].hand_over(plans)
    assert len(supervisor.kept) == 128
    assert len(json.dumps(supervisor.remembered)) < 64 * 1024  # it is one message
    for job in jobs:
        job.end.close()
    jobs[64].line.close()
    wait_until(lambda: not supervisor.remembered)
