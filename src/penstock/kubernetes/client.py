"""A client of the API server over urllib3: plain dicts, server-side apply, watches. See ADR 16.

Thread-safe. Idempotent requests are retried on broken connections, 429 and 5xx, with backoff and
jitter; a create only if the server did not take it. Every request has timeouts. It knows no kind of
its own: `Resource` says where a kind is served.
"""

import email.utils
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, cast
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    NewConnectionError,
    SSLError,
)

from penstock.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    TooManyRequests,
    Unreachable,
)
from penstock.kubernetes.connection import Connection, connection_from_environment
from penstock.kubernetes.names import FIELD_MANAGER
from penstock.release import __version__
from penstock.specs.kinds import KINDS, Category

Json = dict[str, Any]
Objects = list[Json]
Labels = str | Mapping[str, str] | None


# -- what is served, and where -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects, and where the API server has it."""

    group_version: str  # data.fluid.io/v1alpha1, or v1
    plural: str
    kind: str
    namespaced: bool = True

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        root = "apis" if "/" in self.group_version else "api"
        steps = [root, self.group_version]
        if namespace and self.namespaced:
            steps += ["namespaces", quote(namespace, safe="")]
        steps.append(self.plural)
        if name is not None:
            steps.append(quote(name, safe=""))
        if subresource is not None:
            steps.append(subresource)
        return "/" + "/".join(steps)

    def __str__(self) -> str:
        group, slash, _ = self.group_version.partition("/")
        return f"{self.plural}.{group}" if slash else self.plural


def _served(*categories: Category) -> Mapping[str, Resource]:
    """By kind. Fluid's kinds are served under Fluid's group, our own under ours."""
    return {
        info.kind: Resource(info.groups[0], info.plural, info.kind, info.namespaced)
        for info in KINDS.values()
        if info.category in categories
    }


SERVED: Final = _served("dataset", "runtime", "profile", "operation")
RUNTIMES: Final = _served("runtime")
OPERATIONS: Final = _served("operation")
DATASETS: Final = SERVED["Dataset"]
THIN_RUNTIME_PROFILES: Final = SERVED["ThinRuntimeProfile"]

CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", False
)
DAEMON_SETS: Final = Resource("apps/v1", "daemonsets", "DaemonSet")
EVENTS: Final = Resource("events.k8s.io/v1", "events", "Event")
LEASES: Final = Resource("coordination.k8s.io/v1", "leases", "Lease")
NAMESPACES: Final = Resource("v1", "namespaces", "Namespace", False)
NODES: Final = Resource("v1", "nodes", "Node", False)
PERSISTENT_VOLUMES: Final = Resource("v1", "persistentvolumes", "PersistentVolume", False)
PERSISTENT_VOLUME_CLAIMS: Final = Resource("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PODS: Final = Resource("v1", "pods", "Pod")
STORAGE_CLASSES: Final = Resource("storage.k8s.io/v1", "storageclasses", "StorageClass", False)


# -- the client ----------------------------------------------------------------------------------

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
ATTEMPTS: Final = 6
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_LONGEST_RETRY_AFTER_S = 30.0
_CONNECTIONS = 16
# The kernel gives a peer up that vanished without a word after 15 + 3 * 5 seconds: a watch waits
# for minutes without traffic, and would not notice.
_SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"

Propagation = Literal["Background", "Foreground", "Orphan"]


class Requests:
    """Counts the requests sent, retries among them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_verb: Counter[str] = Counter()

    def count(self, verb: str) -> None:
        with self._lock:
            self._by_verb[verb] += 1

    @property
    def total(self) -> int:
        with self._lock:
            return self._by_verb.total()

    @property
    def by_verb(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._by_verb)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. Every page of one list has the same resource version."""

    items: Objects
    resource_version: str


class Client:
    def __init__(
        self,
        connection: Connection,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        attempts: int = ATTEMPTS,
        pause: Callable[[float], object] = time.sleep,
        requests: Requests | None = None,
    ) -> None:
        self.requests = requests or Requests()
        self.namespace = connection.namespace
        self._connection = connection
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._attempts = attempts
        self._pause = pause
        tls: Json = {}
        if connection.tls is not None:
            tls = {"ssl_context": connection.tls}
            if not connection.tls.check_hostname:
                tls |= {"assert_hostname": False, "cert_reqs": "CERT_NONE"}
                urllib3.disable_warnings(InsecureRequestWarning)  # the kubeconfig demands it
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=_CONNECTIONS,
            retries=False,
            socket_options=_SOCKET_OPTIONS,
            **tls,
        )

    @classmethod
    def from_environment(
        cls, kubeconfig: Path | None = None, context: str | None = None
    ) -> "Client":
        """Return a client of the cluster of `kubeconfig`, $KUBECONFIG or the pod it runs in."""
        return cls(connection_from_environment(kubeconfig, context))

    def impatient(self, timeout_s: float) -> "Client":
        """Return a client of the same server that sends once, and waits `timeout_s` twice at most:
        for the connection and for the answer. It counts into the same `requests`."""
        return Client(
            self._connection,
            connect_timeout_s=timeout_s,
            read_timeout_s=timeout_s,
            attempts=1,
            requests=self.requests,
        )

    def close(self) -> None:
        self._pool.clear()

    def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """Raises NotFound."""
        return self._call("get", "GET", resource.path(namespace, name))

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: Labels = None,
        metadata_only: bool = False,
        limit: int = 500,
    ) -> Objects:
        """Return all objects, of all namespaces unless one is given; `limit` in each request."""
        try:
            return self._all(resource, namespace, labels, metadata_only, limit)
        except Gone:  # the list took longer than the server keeps its resource version
            return self._all(resource, namespace, labels, metadata_only, 0)

    def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: Labels = None,
        metadata_only: bool = False,
        limit: int = 500,
    ) -> Iterator[Page]:
        """Yield the parts of a list. Raises Gone where it took too long: list again."""
        query = {"limit": str(limit)} if limit else {}
        if labels:
            query["labelSelector"] = _selector(labels)
        while True:
            accept = _METADATA.format("List") if metadata_only else "application/json"
            path = resource.path(namespace)
            answer = self._call("list", "GET", path, query=query, accept=accept)
            metadata = cast("Json", answer["metadata"])
            items = cast("Objects", answer.get("items") or [])
            for item in items:  # items of core lists have neither
                item["apiVersion"] = resource.group_version
                item["kind"] = resource.kind
            yield Page(items, str(metadata.get("resourceVersion", "")))
            if not (token := metadata.get("continue")):
                return
            query = {**query, "continue": str(token)}

    def create(self, resource: Resource, manifest: Json) -> Json:
        """Raises Conflict, of reason AlreadyExists, if it exists. Not sent twice."""
        path = resource.path(_namespace_of(manifest))
        return self._call(
            "create",
            "POST",
            path,
            query={"fieldManager": FIELD_MANAGER},
            body=manifest,
            content_type="application/json",
            idempotent=False,
        )

    def apply(
        self,
        resource: Resource,
        manifest: Json,
        *,
        subresource: str | None = None,
        force: bool = True,
        dry_run: bool = False,
    ) -> Json:
        """Create or update by server-side apply; the operator owns exactly the fields it sends."""
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()}
        if dry_run:
            query["dryRun"] = "All"
        path = resource.path(
            _namespace_of(manifest), str(manifest["metadata"]["name"]), subresource
        )
        return self._call(
            "apply",
            "PATCH",
            path,
            query=query,
            body=manifest,
            content_type="application/apply-patch+yaml",
        )

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Json,
        *,
        subresource: str | None = None,
    ) -> Json:
        """Send a JSON merge patch. With a resourceVersion in it, it fails if the object changed."""
        return self._call(
            "patch",
            "PATCH",
            resource.path(namespace, name, subresource),
            query={"fieldManager": FIELD_MANAGER},
            body=body,
            content_type="application/merge-patch+json",
        )

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        propagation: Propagation = "Background",
    ) -> None:
        """Delete an object; it is no error if it is gone.

        With `uid`, an object of the same name that was created later stays, and Conflict is raised.
        """
        body: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        path = resource.path(namespace, name)
        try:
            self._call("delete", "DELETE", path, body=body, content_type="application/json")
        except NotFound:
            return

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        labels: Labels = None,
        namespace: str | None = None,
        metadata_only: bool = False,
        timeout_s: float,
    ) -> "Watch":
        """Return the events after `resource_version`: ADDED, MODIFIED, DELETED and BOOKMARK.

        Ends after `timeout_s`. Raises Gone if the version is too old, Unreachable if the connection
        breaks. It is not retried: the caller knows the last version that it saw.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        if labels:
            query["labelSelector"] = _selector(labels)
        path = resource.path(namespace)
        response = self._send(
            "watch",
            "GET",
            path,
            query=query,
            accept=_METADATA.format("") if metadata_only else "application/json",
            read_timeout_s=timeout_s + self._read_timeout_s,
            stream=True,
        )
        if response.status >= 400:
            _raise(response.status, response.data, f"watch of {path}")
        return Watch(response, resource)

    # -- requests and their retries --------------------------------------------------------------

    def _all(
        self,
        resource: Resource,
        namespace: str | None,
        labels: Labels,
        metadata_only: bool,
        limit: int,
    ) -> Objects:
        pages = self.pages(
            resource, namespace, labels=labels, metadata_only=metadata_only, limit=limit
        )
        return [item for page in pages for item in page.items]

    def _call(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str | None = None,
        accept: str = "application/json",
        idempotent: bool = True,
    ) -> Json:
        """Send a request until it is answered; return the answer's body."""
        attempt = 0
        while True:
            attempt += 1
            try:
                response = self._send(
                    verb,
                    method,
                    path,
                    query=query,
                    body=body,
                    content_type=content_type,
                    accept=accept,
                )
            except _NeverSent as error:
                if attempt >= self._attempts:
                    raise Unreachable(*error.args) from error
            except Unreachable:
                if not idempotent or attempt >= self._attempts:
                    raise
            else:
                if response.status < 400:
                    return cast("Json", json.loads(response.data))
                refused = response.status == 429  # not even begun: safe for every request
                again = refused or (idempotent and response.status in (500, 502, 503, 504))
                if not again or attempt >= self._attempts:
                    _raise(response.status, response.data, f"{verb} of {path}")
                if (asked_s := _retry_after_s(response)) is not None:
                    self._pause(asked_s * (1 + random.random() / 4))
                    continue
            longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))
            self._pause(longest_s * random.uniform(0.5, 1))

    def _send(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str | None = None,
        accept: str = "application/json",
        read_timeout_s: float | None = None,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request once. Raises Unreachable without an answer."""
        headers = {"Accept": accept, "User-Agent": f"penstock/{__version__}"}
        if (token := self._connection.token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        if content_type is not None:
            headers["Content-Type"] = content_type
        self.requests.count(verb)
        url = self._connection.server + path + (f"?{urlencode(query)}" if query else "")
        try:
            return self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
                headers=headers,
                timeout=urllib3.Timeout(
                    connect=self._connect_timeout_s, read=read_timeout_s or self._read_timeout_s
                ),
                preload_content=not stream,
                redirect=False,
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise _NeverSent(f"{self._connection.server} cannot be reached: {error}") from error
        except SSLError as error:
            raise Unreachable(
                f"{self._connection.server}: TLS failed: {error}",
                hint="check certificate-authority in the kubeconfig",
            ) from error
        except HTTPError as error:
            raise Unreachable(f"{self._connection.server}: no answer: {error}") from error


class _NeverSent(Unreachable):
    """No connection: the server cannot have begun the request."""


# -- watches -------------------------------------------------------------------------------------


class Watch(Iterator[tuple[str, Json]]):
    """The events of one watch request. One thread iterates; any thread may call `stop`."""

    def __init__(self, response: urllib3.BaseHTTPResponse, resource: Resource) -> None:
        self._response = response
        self._resource = resource
        self._stopped = False
        self._lines = self._read_lines()

    def __next__(self) -> tuple[str, Json]:
        event = cast("Json", json.loads(next(self._lines)))
        type_, found = str(event["type"]), cast("Json", event["object"])
        if type_ == "ERROR":
            self._lines.close()
            _raise_status(int(found.get("code", 500)), found, f"watch of {self._resource}")
        found["apiVersion"] = self._resource.group_version
        found["kind"] = self._resource.kind
        return type_, found

    def stop(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._stopped = True
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            return  # it has ended by itself

    def _read_lines(self) -> Generator[bytes]:
        rest = b""
        try:
            for chunk in self._response.stream(65536):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
        except (HTTPError, OSError, AttributeError) as error:
            # urllib3 meets a connection without a socket where `stop` came first.
            if not self._stopped:
                raise Unreachable(f"the watch of {self._resource} broke: {error}") from error
        finally:
            self._response.close()


# -- errors and headers --------------------------------------------------------------------------

_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
}


def _raise(status: int, body: bytes, what: str) -> NoReturn:
    try:
        found: Any = json.loads(body)
    except ValueError:  # a proxy, or the server while it starts
        found = {"message": body[:200].decode(errors="replace")}
    _raise_status(status, cast("Json", found) if isinstance(found, dict) else {}, what)


def _raise_status(status: int, found: Mapping[str, Any], what: str) -> NoReturn:
    message = str(found.get("message") or f"HTTP status {status}")
    error = _BY_STATUS.get(status, ApiError)
    raise error(
        f"{what}: {message}",
        status=status,
        reason=str(found.get("reason") or ""),
        message=message,
    )


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float | None:
    """Return the pause that the server asks for, never more than half a minute."""
    if (text := response.headers.get("Retry-After")) is None:
        return None
    try:
        asked_s = float(text)
    except ValueError:
        try:
            asked_s = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return min(_LONGEST_RETRY_AFTER_S, max(0.0, asked_s))


def _namespace_of(manifest: Json) -> str | None:
    return cast("str | None", manifest["metadata"].get("namespace"))


def _selector(labels: str | Mapping[str, str]) -> str:
    if isinstance(labels, str):
        return labels
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
