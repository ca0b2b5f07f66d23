"""Leader election, against a server on loopback that keeps one Lease as the API server does."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.kubernetes.client import Client
from penstock.kubernetes.leader import Election, Timing
from tests.support.api_server import Answer, ApiServer, Received, api_server, refusal
from tests.support.waiting import wait_until

Json = dict[str, Any]
FAST = Timing(
    lease_s=2,
    renew_deadline_s=0.6,
    renew_every_s=0.1,
    retry_s=(0.02, 0.05),
    request_s=0.2,
)
# Nobody but the holder ends this one.
LONG = Timing(lease_s=1000, renew_every_s=0.05, retry_s=(0.02, 0.05))


class Leases:
    """One Lease with optimistic locking: the version in a patch must be the current one."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.down = False
        self.renewals = 0
        self._lock = threading.Lock()

    def __call__(self, one: Received) -> Answer:
        with self._lock:
            if self.down:
                return Answer(breaks=True)
            if one.method == "POST":
                return self._create(one.body)
            if self.lease is None:
                return refusal(404, "NotFound")
            return Answer(self.lease) if one.method == "GET" else self._patch(one.body)

    def _create(self, body: Json) -> Answer:
        if self.lease is not None:
            return refusal(409, "AlreadyExists")
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}
        return Answer(self.lease)

    def _patch(self, body: Json) -> Answer:
        assert self.lease is not None
        version = self.lease["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", version) != version:
            return refusal(409, "Conflict")
        self.renewals += set(body["spec"]) == {"renewTime"}
        self.change(**body["spec"])
        return Answer(self.lease)

    def change(self, **spec: Any) -> None:
        assert self.lease is not None
        metadata = self.lease["metadata"]
        metadata = {**metadata, "resourceVersion": str(int(metadata["resourceVersion"]) + 1)}
        self.lease = {**self.lease, "metadata": metadata, "spec": {**self.lease["spec"], **spec}}

    def take(self, holder: str) -> None:
        with self._lock:
            self.change(holderIdentity=holder)

    @property
    def holder(self) -> str:
        return self.lease["spec"]["holderIdentity"] if self.lease else ""


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def server(leases: Leases) -> Iterator[ApiServer]:
    with api_server() as server:
        server.respond = leases
        yield server


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def candidate(server: ApiServer, lost: list[str]) -> Iterator[Callable[..., Election]]:
    elections: list[Election] = []
    client = Client(server.connection())

    def candidate(identity: str, timing: Timing = LONG) -> Election:
        election = Election(
            client,
            namespace="penstock",
            name="operator",
            identity=identity,
            on_lost=lambda: lost.append(identity),
            timing=timing,
        )
        elections.append(election)
        return election

    yield candidate
    for election in elections:
        election.stop()
    client.close()


def test_the_first_candidate_leads_and_renews_its_lease(
    candidate: Callable[..., Election], leases: Leases
):
    election = candidate("a")
    assert election.acquire()
    assert election.leading
    assert leases.holder == "a"
    wait_until(lambda: leases.renewals >= 2)


def test_the_second_leads_as_soon_as_the_first_releases_the_lease(
    candidate: Callable[..., Election], leases: Leases, lost: list[str]
):
    first, second = candidate("a"), candidate("b")
    first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    wait_until(lambda: leases.renewals >= 2)
    assert not second.leading
    first.stop()
    waiting.join(10)
    assert second.leading
    assert not first.leading
    assert leases.holder == "b"
    assert leases.lease is not None
    assert leases.lease["spec"]["leaseTransitions"] == 1
    assert not lost  # a stop is no loss


def test_a_lease_that_nobody_renews_runs_out(candidate: Callable[..., Election], leases: Leases):
    candidate("a").acquire()
    leases.take("a process that was killed")
    leases.change(leaseDurationSeconds=1)
    assert candidate("b", FAST).acquire()
    assert leases.holder == "b"


def test_a_candidate_that_is_stopped_waits_no_longer(candidate: Callable[..., Election]):
    candidate("a").acquire()
    second = candidate("b")
    outcome: list[bool] = []
    waiting = threading.Thread(target=lambda: outcome.append(second.acquire()))
    waiting.start()
    second.stop()
    waiting.join(10)
    assert outcome == [False]


def test_a_leader_whose_lease_another_one_takes_has_lost(
    candidate: Callable[..., Election], leases: Leases, lost: list[str]
):
    election = candidate("a")
    election.acquire()
    leases.take("b")
    wait_until(lambda: lost == ["a"])
    assert not election.leading
    election.stop()
    assert leases.holder == "b"  # it does not release what it does not hold


def test_a_lease_that_someone_labelled_is_still_its_leaders(
    candidate: Callable[..., Election], leases: Leases, lost: list[str]
):
    election = candidate("a")
    election.acquire()
    leases.take("a")  # another version, the same holder
    renewals = leases.renewals
    wait_until(lambda: leases.renewals > renewals)
    assert election.leading
    assert not lost


def test_a_leader_that_reaches_no_server_gives_up_before_its_lease_runs_out(
    candidate: Callable[..., Election], leases: Leases, lost: list[str]
):
    election = candidate("a", FAST)
    election.acquire()
    leases.down = True
    wait_until(lambda: lost == ["a"], timeout_s=FAST.lease_s)
    assert not election.leading


def test_a_short_outage_costs_no_leadership(
    candidate: Callable[..., Election], leases: Leases, server: ApiServer, lost: list[str]
):
    election = candidate("a")
    election.acquire()
    leases.down = True
    asked = len(server.received)
    wait_until(lambda: len(server.received) > asked)
    leases.down = False
    renewals = leases.renewals
    wait_until(lambda: leases.renewals > renewals)
    assert election.leading
    assert not lost
