"""Caches of what the API server has: one list, then a watch that goes on from it.

Each cache has one thread, which lists, watches and calls `on_change`; reads take a lock for the
length of a dict access. A cache keeps what `keep` makes of an object and nothing else, so that
5,000 Datasets need a few megabytes.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar, cast

from penstock.errors import ApiError, Gone, PenstockError, Unreachable
from penstock.kubernetes.client import Client, Json, Labels, Resource, Watch
from penstock.specs.kinds import LAST_APPLIED

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace ("" without one) and name
Kept = TypeVar("Kept")

# Each watch ends by itself after this, as those of Kubernetes' own controllers do: a server that is
# to go down gets rid of its watches, and a broken one is noticed. One request in 5 to 10 minutes.
WATCH_S: Final = (300.0, 600.0)
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Cache(Generic[Kept]):
    """What the server has of one resource, as far as `keep` returns something for it. Call `start`.

    `on_change(key, old, new)` is called for each object whose kept value changed: old is None for a
    new one, new for one that is gone. `get` has the new value by then. Neither function may raise:
    that ends the thread, and `alive` becomes false.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        keep: Callable[[Json], Kept | None],
        on_change: Callable[[Key, Kept | None, Kept | None], None] | None = None,
        labels: Labels = None,
        namespace: str | None = None,
        metadata_only: bool = False,
        watch_s: tuple[float, float] = WATCH_S,
        longest_pause_s: float = _LONGEST_PAUSE_S,
    ) -> None:
        self.resource = resource
        self.synced = threading.Event()
        self.last_error: PenstockError | None = None  # None while it is up to date
        self._client = client
        self._keep = keep
        self._on_change = on_change
        self._labels = labels
        self._namespace = namespace
        self._metadata_only = metadata_only
        self._watch_s = watch_s
        self._longest_pause_s = longest_pause_s
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, Kept]] = {}  # by namespace and name
        self._version: str | None = None  # of the last event; None: list first
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {resource}", daemon=True)

    def start(self) -> "Cache[Kept]":
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread, also while it waits for events. Values stay readable."""
        self._stopping.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.stop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs; without it the values get old."""
        return self._thread.is_alive()

    def get(self, namespace: str | None, name: str) -> Kept | None:
        with self._lock:
            return self._values.get(namespace or "", {}).get(name)

    def values(self) -> list[Kept]:
        with self._lock:
            return [value for named in self._values.values() for value in named.values()]

    def items(self) -> list[tuple[Key, Kept]]:
        with self._lock:
            return [
                ((namespace, name), value)
                for namespace, named in self._values.items()
                for name, value in named.items()
            ]

    def by_namespace(self, namespace: str) -> dict[str, Kept]:
        """Return the values of a namespace, by name."""
        with self._lock:
            return dict(self._values.get(namespace, {}))

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._values.values()))

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                if self._version is None:
                    self._version = self._list()
                    self.synced.set()
                self.last_error = None
                self._follow(self._version)
                pause_s = _FIRST_PAUSE_S
                continue
            except Gone:
                log.info("%s: the server forgot version %s: listing", self.resource, self._version)
                self._version = None
            except PenstockError as error:
                if self._stopping.is_set():
                    return
                self.last_error = error
                log.warning("%s: %s; trying again", self.resource, error)
            self._stopping.wait(pause_s * random.uniform(0.5, 1))
            pause_s = min(self._longest_pause_s, pause_s * 2)

    def _list(self) -> str:
        """Take over the server's list; return its resource version."""
        found: set[Key] = set()
        version = ""
        pages = self._client.pages(
            self.resource, self._namespace, labels=self._labels, metadata_only=self._metadata_only
        )
        for page in pages:
            version = page.resource_version
            page.items.reverse()
            while page.items:  # so that an object is freed before the next one is kept
                one = page.items.pop()
                found.add(_key(one))
                self._put(one)
        for key, _ in self.items():
            if key not in found:
                self._drop(key)
        return version

    def _follow(self, version: str) -> None:
        """Take over events until the watch ends."""
        watch = self._client.watch(
            self.resource,
            version,
            labels=self._labels,
            namespace=self._namespace,
            metadata_only=self._metadata_only,
            timeout_s=random.uniform(*self._watch_s),
        )
        with self._lock:
            self._watch = watch
        if self._stopping.is_set():  # `stop` came before it could see the watch
            watch.stop()
        began_s, seen = time.monotonic(), False
        for type_, found in watch:
            seen = True
            if type_ == "DELETED":
                self._drop(_key(found))
            elif type_ != "BOOKMARK":
                self._put(found)
            self._version = str(found["metadata"]["resourceVersion"])
        if not seen and time.monotonic() - began_s < 1 and not self._stopping.is_set():
            raise Unreachable(f"the watch of {self.resource} ended at once")

    def _put(self, found: Json) -> None:
        key = _key(found)
        new = self._keep(_trimmed(found))
        if new is None:  # it left the cache, or never was in it
            self._drop(key)
            return
        namespace, name = key
        with self._lock:
            named = self._values.setdefault(namespace, {})
            old = named.get(name)
            named[name] = new
        if old != new and self._on_change is not None:
            self._on_change(key, old, new)

    def _drop(self, key: Key) -> None:
        namespace, name = key
        with self._lock:
            named = self._values.get(namespace, {})
            old = named.pop(name, None)
            if not named:
                self._values.pop(namespace, None)
        if old is not None and self._on_change is not None:
            self._on_change(key, old, None)


def wait_for_sync(caches: Iterable[Cache[Any]], timeout_s: float) -> None:
    """Wait until every cache has its list. Raises what keeps one from it."""
    until_s = time.monotonic() + timeout_s
    for cache in caches:
        if not cache.synced.wait(max(0.0, until_s - time.monotonic())):
            if (error := cache.last_error) is not None:
                raise error
            raise ApiError(
                f"{cache.resource}: no list within {timeout_s:.0f} s",
                hint="the API server is slow, or the network drops its answers",
            )


def _key(found: Json) -> Key:
    metadata = cast("Json", found["metadata"])
    return str(metadata.get("namespace") or ""), str(metadata["name"])


def _trimmed(found: Json) -> Json:
    """Remove what repeats the object: who wrote which field, and kubectl's copy of it."""
    metadata = cast("Json", found["metadata"])
    metadata.pop("managedFields", None)
    if annotations := metadata.get("annotations"):
        cast("Json", annotations).pop(LAST_APPLIED, None)
    return found
