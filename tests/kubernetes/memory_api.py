"""An API server in memory, as far as the operator uses one: for logic that is slow to reach on a
real one. tests/cluster has the real one.

Has resource versions, generations, finalizers, uids, merge patches, watches and owners; validates
nothing. Of controllers it has the garbage collector and the one that binds volumes.
"""

import copy
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import Conflict, NotFound
from penstock.kubernetes.client import Page, Requests, Resource

Json = dict[str, Any]
Place = tuple[str, str, str]  # plural, namespace, name


class MemoryApi:
    """Has the methods of `penstock.kubernetes.client.Client`."""

    namespace = "penstock-system"

    def __init__(self) -> None:
        self.requests = Requests()
        self.log: list[str] = []
        self._changed = threading.Condition()
        self._objects: dict[Place, Json] = {}
        self._events: list[tuple[int, str, str, Json]] = []
        self._version = itertools.count(1)
        self._stopped = False

    # -- the client's methods ----------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        self.requests.count("get")
        with self._changed:
            return copy.deepcopy(self._found(resource, namespace, name))

    def pages(self, resource: Resource, namespace: str | None = None, **_: Any) -> Iterator[Page]:
        self.requests.count("list")
        with self._changed:
            items = [
                copy.deepcopy(one)
                for (plural, _, _), one in self._objects.items()
                if plural == resource.plural
            ]
            version = self._events[-1][0] if self._events else 0
        yield Page(items, str(version))

    def watch(self, resource: Resource, resource_version: str, **_: Any) -> "MemoryWatch":
        self.requests.count("watch")
        return MemoryWatch(self, resource, int(resource_version))

    def create(self, resource: Resource, manifest: Json) -> Json:
        self.requests.count("create")
        with self._changed:
            metadata = manifest["metadata"]
            place = self._place(resource, metadata.get("namespace"), metadata["name"])
            if place in self._objects:
                raise Conflict(f"{place} exists", status=409, reason="AlreadyExists")
            created = copy.deepcopy(manifest)
            created["metadata"] |= {
                "uid": f"uid-{next(self._version)}",
                "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            return self._store(resource, place, "ADDED", created)

    def apply(self, resource: Resource, manifest: Json, **_: Any) -> Json:
        metadata = manifest["metadata"]
        if self.find(resource, metadata.get("namespace"), metadata["name"]) is None:
            return self.create(resource, manifest)
        return self.patch(resource, metadata.get("namespace"), metadata["name"], manifest)

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Json,
        *,
        subresource: str | None = None,
    ) -> Json:
        self.requests.count("patch")
        with self._changed:
            before = self._found(resource, namespace, name)
            wanted = body.get("metadata", {}).get("uid")
            if wanted is not None and wanted != before["metadata"]["uid"]:
                raise Conflict("another uid", status=409, reason="Conflict")
            kept = {"metadata", "status"} if subresource == "status" else set(body) - {"status"}
            after = _merged(before, {key: one for key, one in body.items() if key in kept})
            if after.get("spec") != before.get("spec"):
                after["metadata"]["generation"] += 1
            return self._store(resource, self._place(resource, namespace, name), "MODIFIED", after)

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        propagation: str = "Background",
    ) -> None:
        self.requests.count("delete")
        with self._changed:
            try:
                found = self._found(resource, namespace, name)
            except NotFound:
                return
            if uid is not None and uid != found["metadata"]["uid"]:
                raise Conflict("another uid", status=409, reason="Conflict")
            after = copy.deepcopy(found)
            after["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:01Z")
            self._store(resource, self._place(resource, namespace, name), "MODIFIED", after)

    def close(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    # -- for tests ---------------------------------------------------------------------------------

    def find(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        with self._changed:
            found = self._objects.get(self._place(resource, namespace, name))
            return copy.deepcopy(found)

    def all(self, resource: Resource) -> list[Json]:
        with self._changed:
            items = list(self._objects.items())
        return [one for (plural, _, _), one in items if plural == resource.plural]

    def wait_for_events(self, resource: Resource, version: int, watch: "MemoryWatch") -> list[Any]:
        with self._changed:
            while not (self._stopped or watch.stopped):
                found = [
                    (number, type_, one)
                    for number, type_, plural, one in self._events
                    if number > version and plural == resource.plural
                ]
                if found:
                    return found
                self._changed.wait(0.5)
            return []

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -- storage -----------------------------------------------------------------------------------

    def _place(self, resource: Resource, namespace: str | None, name: str) -> Place:
        return resource.plural, (namespace or "") if resource.namespaced else "", name

    def _found(self, resource: Resource, namespace: str | None, name: str) -> Json:
        place = self._place(resource, namespace, name)
        if place not in self._objects:
            raise NotFound(f"{place} is not there", status=404, reason="NotFound")
        return self._objects[place]

    def _store(self, resource: Resource, place: Place, type_: str, found: Json) -> Json:
        metadata = found["metadata"]
        metadata["resourceVersion"] = str(next(self._version))
        found["apiVersion"], found["kind"] = resource.group_version, resource.kind
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self._objects.pop(place, None)
            type_ = "DELETED"
        else:
            self._objects[place] = found
        self.log.append(f"{type_} {'/'.join(place)}")
        event = copy.deepcopy(found)
        self._events.append((int(metadata["resourceVersion"]), type_, place[0], event))
        if type_ == "DELETED":
            self._collect(metadata["uid"])
        elif place[0] == "persistentvolumes" and "status" not in found:
            after = {**copy.deepcopy(found), "status": {"phase": "Bound"}}
            self._store(resource, place, "MODIFIED", after)
        self._changed.notify_all()
        return event

    def _collect(self, uid: str) -> None:
        for (plural, namespace, name), one in list(self._objects.items()):
            owners = one["metadata"].get("ownerReferences") or []
            if owners and all(owner["uid"] == uid for owner in owners):
                resource = Resource(one["apiVersion"], plural, one["kind"])
                after = copy.deepcopy(one)
                after["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:01Z")
                self._store(resource, (plural, namespace, name), "MODIFIED", after)


class MemoryWatch:
    def __init__(self, api: MemoryApi, resource: Resource, version: int) -> None:
        self.stopped = False
        self._api = api
        self._resource = resource
        self._version = version

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        while found := self._api.wait_for_events(self._resource, self._version, self):
            for number, type_, one in found:
                self._version = number
                yield type_, copy.deepcopy(one)

    def stop(self) -> None:
        self.stopped = True
        self._api.wake()


def _merged(before: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    after = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _merged(after.get(key), value)
    return copy.deepcopy(after)


def wait_until(condition: Any, what: str, timeout_s: float = 10.0) -> Any:
    until_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < until_s, what
        time.sleep(0.01)
    return found
