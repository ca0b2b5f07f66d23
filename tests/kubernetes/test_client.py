"""The client of the API server, against a scripted server on loopback."""

import threading
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
import yaml

from penstock.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    TooManyRequests,
    Unreachable,
    UsageError,
)
from penstock.kubernetes.client import (
    ATTEMPTS,
    DATASETS,
    NODES,
    PODS,
    RUNTIMES,
    SERVED,
    THIN_RUNTIME_PROFILES,
    Client,
)
from penstock.kubernetes.connection import (
    TokenFile,
    connection_from_files,
    connection_of_pod,
)
from tests.support.api_server import (
    Answer,
    ApiServer,
    an_object,
    api_server,
    event,
    listing,
    refusal,
)

DATASET = {
    "apiVersion": "data.fluid.io/v1alpha1",
    "kind": "Dataset",
    "metadata": {"name": "imagenet", "namespace": "team"},
}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def client(server: ApiServer, pauses: list[float]) -> Iterator[Client]:
    client = Client(server.connection(), read_timeout_s=2, pause=pauses.append)
    yield client
    client.close()


def test_paths_are_those_of_the_api():
    assert DATASETS.path() == "/apis/data.fluid.io/v1alpha1/datasets"
    assert (
        DATASETS.path("team", "imagenet", "status")
        == "/apis/data.fluid.io/v1alpha1/namespaces/team/datasets/imagenet/status"
    )
    assert PODS.path("team") == "/api/v1/namespaces/team/pods"
    assert NODES.path(None, "node-1") == NODES.path("ignored", "node-1") == "/api/v1/nodes/node-1"


def test_fluids_kinds_are_served_under_fluids_group_and_ours_under_ours():
    groups = {kind: resource.group_version for kind, resource in SERVED.items()}
    assert groups.pop("PenstockRuntime") == "penstock.dev/v1alpha1"
    assert set(groups.values()) == {"data.fluid.io/v1alpha1"}
    assert set(RUNTIMES) >= {"AlluxioRuntime", "ThinRuntime", "PenstockRuntime"}
    assert not THIN_RUNTIME_PROFILES.namespaced
    assert "Secret" not in SERVED


# -- lists ---------------------------------------------------------------------------------------


def test_a_list_joins_its_pages_and_its_items_have_their_kind(client: Client, server: ApiServer):
    server.queue += [listing(an_object("a"), token="more"), listing(an_object("b"))]
    found = client.list(DATASETS, labels={"team": "vision"}, limit=1)
    assert [one["metadata"]["name"] for one in found] == ["a", "b"]
    assert {(one["apiVersion"], one["kind"]) for one in found} == {
        ("data.fluid.io/v1alpha1", "Dataset")
    }
    first, second = server.received
    assert first.query == {"limit": "1", "labelSelector": "team=vision"}
    assert second.query == {**first.query, "continue": "more"}


def test_a_list_whose_pages_expired_is_read_again_at_once(client: Client, server: ApiServer):
    server.queue += [
        listing(an_object("a"), token="more"),
        refusal(410, "Expired"),
        listing(an_object("a"), an_object("b")),
    ]
    assert len(client.list(DATASETS, limit=1)) == 2
    assert "limit" not in server.received[-1].query


def test_a_list_may_ask_for_metadata_alone(client: Client, server: ApiServer):
    server.queue.append(listing())
    client.list(PODS, metadata_only=True)
    assert "as=PartialObjectMetadataList" in server.received[0].headers["Accept"]


# -- writing -------------------------------------------------------------------------------------


def test_apply_is_a_server_side_apply_of_the_operator(client: Client, server: ApiServer):
    server.queue += [Answer(DATASET), Answer(DATASET)]
    client.apply(DATASETS, DATASET, subresource="status")
    client.apply(DATASETS, DATASET, force=False, dry_run=True)
    first, second = server.received
    assert (first.method, first.path) == ("PATCH", DATASETS.path("team", "imagenet", "status"))
    assert first.headers["Content-Type"] == "application/apply-patch+yaml"
    assert first.query == {"fieldManager": "penstock-operator", "force": "true"}
    assert first.body == DATASET
    assert (second.query["force"], second.query["dryRun"]) == ("false", "All")


def test_patch_is_a_merge_patch(client: Client, server: ApiServer):
    server.queue.append(Answer({}))
    client.patch(NODES, None, "node-1", {"metadata": {"labels": {"a": None}}})
    assert server.received[0].headers["Content-Type"] == "application/merge-patch+json"
    assert server.received[0].body == {"metadata": {"labels": {"a": None}}}


def test_deleting_what_is_gone_succeeds(client: Client, server: ApiServer):
    server.queue.append(refusal(404, "NotFound"))
    client.delete(DATASETS, "team", "imagenet", uid="u-1")
    assert server.received[0].body["preconditions"] == {"uid": "u-1"}
    assert server.received[0].body["propagationPolicy"] == "Background"


# -- errors and retries --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, Forbidden), (403, Forbidden), (404, NotFound), (409, Conflict), (410, Gone)],
)
def test_a_refusal_is_an_error_of_its_own_class(
    client: Client, server: ApiServer, status: int, error: type[ApiError]
):
    server.queue.append(refusal(status, "SomeReason", "the server's sentence"))
    with pytest.raises(error, match="the server's sentence") as raised:
        client.get(DATASETS, "team", "imagenet")
    assert (raised.value.status, raised.value.reason) == (status, "SomeReason")
    assert len(server.received) == 1


def test_another_refusal_is_an_api_error_also_if_a_proxy_sent_it(client: Client, server: ApiServer):
    server.queue.append(Answer("not a Status", 422))
    with pytest.raises(ApiError, match="HTTP status 422"):
        client.get(DATASETS, "team", "imagenet")


def test_429_is_retried_after_the_pause_that_the_server_asks_for(
    client: Client, server: ApiServer, pauses: list[float]
):
    server.queue += [refusal(429, Retry_After="3"), Answer(DATASET)]
    assert client.create(DATASETS, DATASET) == DATASET  # the server did not begin the first
    assert len(pauses) == 1
    assert 3 <= pauses[0] <= 3.75


def test_retry_after_may_be_a_date_and_is_bounded(
    client: Client, server: ApiServer, pauses: list[float]
):
    tomorrow = formatdate(2**33, usegmt=True)
    server.queue += [refusal(429, Retry_After=tomorrow), Answer({})]
    client.get(DATASETS, "team", "imagenet")
    assert 30 <= pauses[0] <= 37.5


def test_retries_end(client: Client, server: ApiServer, pauses: list[float]):
    server.queue += [refusal(429)] * ATTEMPTS
    with pytest.raises(TooManyRequests):
        client.get(DATASETS, "team", "imagenet")
    assert len(server.received) == ATTEMPTS
    assert len(pauses) == ATTEMPTS - 1
    assert pauses[-1] > pauses[0]


def test_a_failing_server_is_asked_again_but_not_to_create(client: Client, server: ApiServer):
    server.queue += [refusal(503), Answer({"a": 1}), refusal(503)]
    assert client.get(DATASETS, "team", "imagenet") == {"a": 1}
    with pytest.raises(ApiError):
        client.create(DATASETS, DATASET)
    assert len(server.received) == 3


def test_a_broken_connection_is_retried_but_not_for_create(client: Client, server: ApiServer):
    server.queue += [Answer(breaks=True), Answer({"a": 1}), Answer(breaks=True)]
    assert client.get(DATASETS, "team", "imagenet") == {"a": 1}
    with pytest.raises(Unreachable):
        client.create(DATASETS, DATASET)
    assert len(server.received) == 3


def test_an_impatient_client_sends_once_and_counts_into_the_same_numbers(
    client: Client, server: ApiServer
):
    server.queue.append(Answer(breaks=True))
    impatient = client.impatient(1.0)
    with pytest.raises(Unreachable):
        impatient.get(DATASETS, "team", "imagenet")
    impatient.close()
    assert client.requests.by_verb == {"get": 1}


def test_a_server_that_does_not_listen_is_unreachable(pauses: list[float]):
    with api_server() as stopped:
        connection = stopped.connection()
    client = Client(connection, pause=pauses.append)
    with pytest.raises(Unreachable, match="cannot be reached") as raised:
        client.create(DATASETS, DATASET)  # never sent, so it may be tried again
    assert len(pauses) == ATTEMPTS - 1
    assert raised.value.hint is not None
    client.close()


def test_requests_are_counted_by_verb_with_their_retries(client: Client, server: ApiServer):
    server.queue += [refusal(429), Answer({}), listing(token="x"), listing(), Answer({})]
    client.get(DATASETS, "team", "imagenet")
    client.list(DATASETS)
    client.apply(DATASETS, DATASET)
    assert client.requests.by_verb == {"get": 2, "list": 2, "apply": 1}
    assert client.requests.total == 5


# -- watches -------------------------------------------------------------------------------------


def test_a_watch_yields_events_and_bookmarks_until_it_ends(client: Client, server: ApiServer):
    events = [event("ADDED", an_object("a", "5")), event("BOOKMARK", an_object("", "9"))]
    server.queue.append(Answer(events=events))
    found = list(client.watch(DATASETS, "4", namespace="team", timeout_s=60))
    assert [type_ for type_, _ in found] == ["ADDED", "BOOKMARK"]
    assert found[0][1]["kind"] == "Dataset"
    query = server.received[0].query
    assert (query["watch"], query["allowWatchBookmarks"]) == ("true", "true")
    assert (query["resourceVersion"], query["timeoutSeconds"]) == ("4", "60")


@pytest.mark.parametrize("in_stream", [True, False])
def test_a_watch_from_a_version_too_old_is_gone(client: Client, server: ApiServer, in_stream: bool):
    error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    server.queue.append(Answer(events=[event("ERROR", error)]) if in_stream else Answer(error, 410))
    with pytest.raises(Gone, match="too old"):
        list(client.watch(DATASETS, "1", timeout_s=60))


def test_a_watch_that_breaks_is_unreachable_after_its_events(client: Client, server: ApiServer):
    server.queue.append(Answer(events=[event("ADDED", an_object("a"))], breaks=True))
    watch = client.watch(DATASETS, "1", timeout_s=60)
    assert next(watch)[0] == "ADDED"
    with pytest.raises(Unreachable):
        next(watch)


def test_a_silent_watch_is_given_up_after_its_time(server: ApiServer):
    server.queue.append(Answer(events=[], hangs=True))
    client = Client(server.connection(), read_timeout_s=0.1)
    with pytest.raises(Unreachable):
        list(client.watch(DATASETS, "1", timeout_s=0.1))
    client.close()


def test_another_thread_stops_a_watch_that_waits(client: Client, server: ApiServer):
    server.queue.append(Answer(events=[event("ADDED", an_object("a"))], hangs=True))
    watch = client.watch(DATASETS, "1", timeout_s=60)
    assert next(watch)[0] == "ADDED"
    stopper = threading.Timer(0.05, watch.stop)
    stopper.start()
    assert list(watch) == []
    stopper.join()


# -- connections ---------------------------------------------------------------------------------


def test_a_renewed_token_is_sent(server: ApiServer, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("first\n")
    client = Client(server.connection(TokenFile(file)))
    server.queue += [Answer({}), Answer({})]
    client.get(DATASETS, "team", "imagenet")
    renewed = tmp_path / "renewed"
    renewed.write_text("second\n")
    renewed.rename(file)  # as the kubelet does it
    client.get(DATASETS, "team", "imagenet")
    sent = [one.headers["Authorization"] for one in server.received]
    assert sent == ["Bearer first", "Bearer second"]
    client.close()


def test_a_kubeconfig_names_the_server_and_files_beside_it(tmp_path: Path):
    (tmp_path / "token").write_text("secret")
    file = kubeconfig(tmp_path, user={"tokenFile": "token"})
    connection = connection_from_files([file])
    assert connection.server == "http://127.0.0.1:1"
    assert connection.token() == "secret"
    assert connection.namespace == "team"


def test_an_earlier_kubeconfig_wins(tmp_path: Path):
    first = kubeconfig(tmp_path / "1", user={"token": "first"})
    second = kubeconfig(tmp_path / "2", user={"token": "second"}, server="http://127.0.0.1:2")
    connection = connection_from_files([first, second])
    assert (connection.server, connection.token()) == ("http://127.0.0.1:1", "first")


def test_tls_is_checked_unless_the_kubeconfig_says_otherwise(tmp_path: Path):
    file = kubeconfig(tmp_path, server="https://127.0.0.1:1")
    tls = connection_from_files([file]).tls
    assert tls is not None
    assert tls.check_hostname
    insecure = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    content = yaml.safe_load(file.read_text()) | {"clusters": [{"name": "c", "cluster": insecure}]}
    file.write_text(yaml.safe_dump(content))
    tls = connection_from_files([file]).tls
    assert tls is not None
    assert not tls.check_hostname


@pytest.mark.parametrize(
    ("user", "context", "message"),
    [
        ({"exec": {"command": "aws"}}, None, "gets its credentials from a program"),
        ({}, "other", "has no context 'other'"),
        ({"client-certificate-data": "%%"}, None, "not base64"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, user: dict[str, str], context: str | None, message: str
):
    file = kubeconfig(tmp_path, user=user, server="https://127.0.0.1:1")
    with pytest.raises(UsageError, match=message):
        connection_from_files([file], context)


def test_a_pod_without_a_token_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    with pytest.raises(UsageError, match="token") as raised:
        connection_of_pod(tmp_path)
    assert "automountServiceAccountToken" in str(raised.value.hint)


def kubeconfig(
    folder: Path, *, user: dict[str, str] | None = None, server: str = "http://127.0.0.1:1"
) -> Path:
    folder.mkdir(exist_ok=True)
    context = {"cluster": "c", "user": "u", "namespace": "team"}
    content = {
        "current-context": "k",
        "contexts": [{"name": "k", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(content))
    return file
