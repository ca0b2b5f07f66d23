"""Caches of what the API server has, against a scripted server on loopback."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import ApiError, Forbidden
from penstock.kubernetes.client import DATASETS, Client
from penstock.kubernetes.watch import Cache, wait_for_sync
from penstock.specs.kinds import LAST_APPLIED
from tests.support.api_server import (
    Answer,
    ApiServer,
    Received,
    an_object,
    api_server,
    event,
    listing,
    refusal,
)
from tests.support.waiting import wait_until

Json = dict[str, Any]
Change = tuple[str, Any, Any]
HANG = Answer(events=[], hangs=True)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


@pytest.fixture
def changes() -> list[Change]:
    """What `on_change` was called with: name, old, new."""
    return []


@pytest.fixture
def start(server: ApiServer, changes: list[Change]) -> Iterator[Callable[..., Cache[Any]]]:
    client = Client(server.connection(), pause=lambda _: None)
    caches: list[Cache[Any]] = []

    def start(*answers: Answer, **options: Any) -> Cache[Any]:
        server.queue += [*answers, HANG]
        cache: Cache[Any] = Cache(
            client,
            DATASETS,
            on_change=lambda key, old, new: changes.append((key[1], old, new)),
            longest_pause_s=0.02,
            **{"keep": size_of, **options},
        )
        caches.append(cache)
        return cache.start()

    yield start
    for cache in caches:
        cache.stop()
    client.close()


def size_of(found: Json) -> int | None:
    return found.get("size")


def watches(server: ApiServer) -> list[Received]:
    return [one for one in server.received if "watch" in one.query]


def test_a_cache_lists_and_goes_on_from_the_version_of_its_list(
    server: ApiServer, start: Callable[..., Cache[Any]], changes: list[Change]
):
    cache = start(
        listing(an_object("a", size=1), an_object("b", namespace="other", size=2), version="7"),
        Answer(
            events=[
                event("MODIFIED", an_object("a", "8", size=3)),
                event("ADDED", an_object("c", "9", size=4)),
                event("DELETED", an_object("b", "10", "other", size=2)),
                event("BOOKMARK", an_object("", "20")),
            ]
        ),
    )
    wait_until(lambda: len(watches(server)) == 2)
    assert changes == [("a", None, 1), ("b", None, 2), ("a", 1, 3), ("c", None, 4), ("b", 2, None)]
    assert cache.get("default", "a") == 3
    assert cache.get("other", "b") is None
    assert cache.by_namespace("default") == {"a": 3, "c": 4}
    assert sorted(cache.values()) == [3, 4]
    assert dict(cache.items()) == {("default", "a"): 3, ("default", "c"): 4}
    assert len(cache) == 2
    assert [one.query["resourceVersion"] for one in watches(server)] == ["7", "20"]


def test_a_change_of_what_is_not_kept_is_no_change(
    server: ApiServer, start: Callable[..., Cache[Any]], changes: list[Change]
):
    start(
        listing(an_object("a", size=1, other=1)),
        Answer(events=[event("MODIFIED", an_object("a", "8", size=1, other=2))]),
    )
    wait_until(lambda: len(watches(server)) == 2)
    assert changes == [("a", None, 1)]


def test_what_keep_returns_nothing_for_is_not_in_the_cache(
    server: ApiServer, start: Callable[..., Cache[Any]], changes: list[Change]
):
    cache = start(
        listing(an_object("a", size=1), an_object("b")),
        Answer(events=[event("MODIFIED", an_object("a", "8"))]),
    )
    wait_until(lambda: len(watches(server)) == 2)
    assert changes == [("a", None, 1), ("a", 1, None)]
    assert len(cache) == 0


def test_what_repeats_the_object_is_never_kept(start: Callable[..., Cache[Any]]):
    found = an_object("a")
    found["metadata"] |= {
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {LAST_APPLIED: "{}", "mine": "x"},
    }
    cache = start(listing(found), keep=lambda one: one)
    wait_for_sync([cache], 5)
    assert cache.get("default", "a")["metadata"] == {
        "name": "a",
        "namespace": "default",
        "resourceVersion": "1",
        "annotations": {"mine": "x"},
    }


@pytest.mark.parametrize(
    "gone",
    [
        refusal(410, "Expired"),
        Answer(events=[event("ERROR", {"code": 410, "message": "too old"})]),
    ],
)
def test_a_forgotten_version_is_listed_again_and_what_is_gone_meanwhile_goes(
    server: ApiServer, start: Callable[..., Cache[Any]], changes: list[Change], gone: Answer
):
    start(
        listing(an_object("a", size=1), an_object("b", size=2), version="7"),
        gone,
        listing(an_object("b", size=2), an_object("c", size=3), version="50"),
    )
    wait_until(lambda: len(watches(server)) == 2)
    assert changes == [("a", None, 1), ("b", None, 2), ("c", None, 3), ("a", 1, None)]
    assert watches(server)[-1].query["resourceVersion"] == "50"


def test_a_broken_watch_goes_on_where_it_broke(
    server: ApiServer, start: Callable[..., Cache[Any]], changes: list[Change]
):
    start(
        listing(version="7"),
        Answer(events=[event("ADDED", an_object("a", "8", size=1))], breaks=True),
        refusal(503),
        Answer(breaks=True),
    )
    wait_until(lambda: len(watches(server)) == 4)
    assert [one.query["resourceVersion"] for one in watches(server)] == ["7", "8", "8", "8"]
    assert changes == [("a", None, 1)]
    assert len(server.received) == 5  # one list


def test_stop_does_not_wait_for_events(start: Callable[..., Cache[Any]], server: ApiServer):
    cache = start(listing(an_object("a", size=1)))
    wait_until(lambda: watches(server))
    assert cache.alive
    stopping = threading.Thread(target=cache.stop)
    stopping.start()
    stopping.join(5)
    assert not stopping.is_alive()
    assert not cache.alive
    assert cache.get("default", "a") == 1


def test_who_waits_for_a_cache_learns_what_keeps_it(
    server: ApiServer, start: Callable[..., Cache[Any]]
):
    server.respond = lambda _: refusal(403, "Forbidden", "no right to list datasets")
    cache = start()
    wait_until(lambda: cache.last_error is not None)
    with pytest.raises(Forbidden, match="no right to list datasets"):
        wait_for_sync([cache], 0.01)
    server.respond = lambda one: HANG if "watch" in one.query else listing()
    wait_for_sync([cache], 5)
    wait_until(lambda: cache.last_error is None)


def test_a_server_that_is_slow_to_list_is_named(
    server: ApiServer, start: Callable[..., Cache[Any]]
):
    server.respond = lambda _: (server.released.wait(), listing())[1]
    cache = start()
    with pytest.raises(ApiError, match=r"datasets\.data\.fluid\.io: no list within"):
        wait_for_sync([cache], 0.01)
    server.released.set()
