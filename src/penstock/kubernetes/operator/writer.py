"""Requests that change the cluster, and what they changed until the caches have it too.

A cache is some milliseconds behind. Without the memory kept here a worker would create what it has
just created, and write a status twice.
"""

import hashlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar, cast

from penstock.errors import ApiError, Conflict, NotFound
from penstock.kubernetes import names
from penstock.kubernetes.client import (
    DAEMON_SETS,
    DATASETS,
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    RUNTIMES,
    Client,
    Resource,
)
from penstock.kubernetes.operator.objects import (
    APPLIED,
    keep_claim,
    keep_declared,
    keep_server_set,
    keep_volume,
)
from penstock.kubernetes.watch import Cache, Key
from penstock.reconcile.dataset_phases import Notice
from penstock.reconcile.snapshot import Stored
from penstock.specs.kinds import ResourceKey

log = logging.getLogger(__name__)

Json = dict[str, Any]

# Longer than a cache is ever behind while its watch works.
REMEMBERED_S: Final = 5.0
_MOST_WRITTEN = 1000
_SAME_EVENT_S = 3600.0
_MOST_EVENTS = 10_000
_LONGEST_NOTE = 1000  # of an Event, in the API


class Versioned(Protocol):
    @property
    def version(self) -> int: ...


Kept = TypeVar("Kept", bound=Versioned)

_KEEP: Mapping[Resource, Callable[[Json], Any]] = {
    DAEMON_SETS: keep_server_set,
    PERSISTENT_VOLUMES: keep_volume,
    PERSISTENT_VOLUME_CLAIMS: keep_claim,
    DATASETS: keep_declared,
    **dict.fromkeys(RUNTIMES.values(), keep_declared),
}


class Writer:
    def __init__(
        self, client: Client, instance: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._lock = threading.Lock()
        self._written: dict[tuple[Resource, Key], tuple[float, Any]] = {}
        self._events: dict[tuple[str, str, str], float] = {}

    def current(self, cache: Cache[Kept], namespace: str, name: str) -> Kept | None:
        """Return an object as the cache has it, or as we wrote it if that is newer."""
        kept = cache.get(namespace, name)
        place = cache.resource, (namespace, name)
        with self._lock:
            if (entry := self._written.get(place)) is None:
                return kept
            written_s, written = entry
            behind = kept is None or kept.version < written.version
            if behind and self._clock() - written_s < REMEMBERED_S:
                return written
            del self._written[place]
        return kept

    def forget(self, resource: Resource, key: Key) -> None:
        """The object is gone: the cache has seen that."""
        with self._lock:
            self._written.pop((resource, key), None)

    # -- objects ---------------------------------------------------------------------------------

    def create(self, resource: Resource, manifest: Json, applied: str) -> Json:
        """Raises Conflict if it exists."""
        found = self._client.create(resource, _marked(manifest, applied))
        self.remember(resource, found)
        return found

    def apply(self, resource: Resource, manifest: Json, applied: str, *, force: bool) -> Json:
        """Create or change an object. Without `force` raises Conflict if another one has it."""
        found = self._client.apply(resource, _marked(manifest, applied), force=force)
        self.remember(resource, found)
        return found

    def patch(
        self, resource: Resource, stored: Stored, body: Json, subresource: str | None = None
    ) -> None:
        """Patch a Dataset or runtime, if it is still the same one."""
        metadata = {**body.get("metadata", {}), "uid": stored.uid}
        try:
            found = self._client.patch(
                resource,
                stored.key.namespace,
                stored.key.name,
                {**body, "metadata": metadata},
                subresource=subresource,
            )
        except NotFound:
            return
        self.remember(resource, found)

    def drop_finalizers(self, resource: Resource, name: str, uid: str, kept: list[str]) -> None:
        """Leave an object that is being deleted only these finalizers."""
        body = {"metadata": {"uid": uid, "finalizers": kept}}
        try:
            found = self._client.patch(resource, None, name, body)
        except (NotFound, Conflict):  # it is gone, or another one has its name
            return
        self.remember(resource, found)

    def delete(self, cache: Cache[Any], namespace: str, name: str, kept: Any) -> None:
        """Delete what `current` returned, unless that is deleted already."""
        if kept.deleting:
            return
        try:
            self._client.delete(cache.resource, namespace or None, name, uid=kept.uid)
        except Conflict:  # another one has its name
            return
        going = replace(kept, deleting=True, version=kept.version + 1)
        with self._lock:
            if cache.get(namespace, name) is not None:
                place = cache.resource, (namespace, name)
                self._written[place] = self._clock(), going

    def write_status(self, resource: Resource, stored: Stored, status: Json) -> bool:
        """Write the fields that differ; None removes a field. Return whether there were any."""
        changed = {
            name: value
            for name, value in status.items()
            if (name in stored.status if value is None else stored.status.get(name) != value)
        }
        if not changed:
            return False
        self.patch(resource, stored, {"status": _merged(stored.status, changed)}, "status")
        return True

    # -- events ----------------------------------------------------------------------------------

    def event(self, api_version: str, key: ResourceKey, uid: str, notice: Notice) -> None:
        """Create an Event, unless the same one was created within an hour."""
        now_s = self._clock()
        place = uid, notice.reason, notice.message
        with self._lock:
            if now_s - self._events.get(place, -_SAME_EVENT_S) < _SAME_EVENT_S:
                return
            if len(self._events) >= _MOST_EVENTS:
                self._events.clear()
            self._events[place] = now_s
        try:
            self._client.create(
                EVENTS,
                {
                    "apiVersion": EVENTS.group_version,
                    "kind": EVENTS.kind,
                    "metadata": {
                        "name": f"{key.name[:200]}.{uuid.uuid4().hex[:16]}",
                        "namespace": key.namespace,
                    },
                    "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                    "reportingController": names.FIELD_MANAGER,
                    "reportingInstance": self._instance,
                    "action": "Reconcile",
                    "reason": notice.reason,
                    "note": notice.message[:_LONGEST_NOTE],
                    "type": notice.kind,
                    "regarding": {
                        "apiVersion": api_version,
                        "kind": key.kind,
                        "namespace": key.namespace,
                        "name": key.name,
                        "uid": uid,
                    },
                },
            )
        except ApiError as error:  # a namespace that is being deleted takes none
            log.info("%s: no event %s: %s", key, notice.reason, error)

    def remember(self, resource: Resource, found: Json) -> None:
        """Use the server's answer until the cache has it."""
        if (kept := _KEEP[resource](found)) is None:
            return
        metadata = cast("Json", found["metadata"])
        key = str(metadata.get("namespace") or ""), str(metadata["name"])
        now_s = self._clock()
        with self._lock:
            self._written[resource, key] = now_s, kept
            if len(self._written) > _MOST_WRITTEN:
                old = [one for one, (s, _) in self._written.items() if now_s - s > REMEMBERED_S]
                for one in old:
                    del self._written[one]


def fingerprint(part: Json) -> str:
    text = json.dumps(part, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _marked(manifest: Json, applied: str) -> Json:
    metadata = cast("Json", manifest["metadata"])
    annotations = {**cast("Json", metadata.get("annotations") or {}), APPLIED: applied}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _merged(before: Json, changed: Json) -> Json:
    """Return a merge patch that gives these fields these values: it merges maps, too."""
    patch: Json = {}
    for name, value in changed.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            gone = dict.fromkeys(cast("Json", old).keys() - cast("Json", value).keys())
            patch[name] = {**cast("Json", value), **gone}
        else:
            patch[name] = value
    return patch
