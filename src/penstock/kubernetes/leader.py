"""Leader election by a Lease, in the way of client-go: one of several operators works.

The clocks of machines are never compared: a lease has run out when this process has seen no change
of it for its whole duration. The leader gives up before that, 10 s after its last renewal; the
5 s between are more than the two timeouts of a request that is under way.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from penstock.errors import ApiError, Conflict, NotFound, PenstockError
from penstock.kubernetes.client import LEASES, Client, Json

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    lease_s: int = 15  # others wait that long without a renewal
    renew_deadline_s: float = 10.0  # the leader gives up after that
    renew_every_s: float = 5.0
    retry_s: tuple[float, float] = (2.0, 5.0)  # between attempts, drawn evenly
    request_s: float = 2.0  # twice that, and no answer can come after the lease


TIMING: Final = Timing()


class Election:
    """Takes part in the election of one lease until `stop`.

    `on_lost` is called once, in the election's thread, when leadership ends without `stop`: the
    process must do nothing more on the cluster, and best ends.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        on_lost: Callable[[], None],
        timing: Timing = TIMING,
    ) -> None:
        self._client = client.impatient(timing.request_s)
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._on_lost = on_lost
        self._timing = timing
        self._leading = threading.Event()
        self._stopping = threading.Event()
        self._releasing = threading.Lock()  # of several calls of `stop`, one releases
        self._lease: Json = {}  # as last seen
        self._changed_s = 0.0  # when its content was last seen to change
        self._thread = threading.Thread(target=self._renew, name="leader", daemon=True)

    @property
    def leading(self) -> bool:
        return self._leading.is_set()

    def acquire(self) -> bool:
        """Wait until this process leads. Return False if `stop` came first."""
        holder = None
        while not self._stopping.is_set():
            try:
                if self._try_to_take():
                    log.info("leading %s/%s as %s", self._namespace, self._name, self._identity)
                    self._leading.set()
                    self._thread.start()
                    return True
                if holder != (holder := _holder(self._lease)):
                    log.info("%s/%s is held by %s", self._namespace, self._name, holder)
            except PenstockError as error:
                log.warning("leader election: %s; trying again", error)
            self._stopping.wait(random.uniform(*self._timing.retry_s))
        return False

    def stop(self) -> None:
        """Leave the election; release the lease, so that the next leader need not wait."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with self._releasing:
            held = self._leading.is_set()
            self._leading.clear()
        if held:
            try:
                self._write({"holderIdentity": "", "leaseDurationSeconds": 1})
            except ApiError as error:
                log.warning("the lease is not released, and runs out by itself: %s", error)
        self._client.close()

    def _try_to_take(self) -> bool:
        try:
            self._see(self._client.get(LEASES, self._namespace, self._name))
        except NotFound:
            return self._create()
        spec = _spec(self._lease)
        lease_s = float(spec.get("leaseDurationSeconds") or self._timing.lease_s)
        # It is ours already if the answer to the write that took it got lost.
        free = _holder(self._lease) in ("", self._identity)
        if not free and time.monotonic() < self._changed_s + lease_s:
            return False
        now = _now()
        try:
            self._write(
                {
                    "holderIdentity": self._identity,
                    "leaseDurationSeconds": self._timing.lease_s,
                    "acquireTime": now,
                    "renewTime": now,
                    "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1,
                }
            )
        except Conflict:  # another one was faster
            return False
        return True

    def _create(self) -> bool:
        now = _now()
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.lease_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        metadata = {"name": self._name, "namespace": self._namespace}
        lease = {
            "apiVersion": LEASES.group_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": spec,
        }
        try:
            self._see(self._client.create(LEASES, lease))
        except Conflict:
            return False
        return True

    def _renew(self) -> None:
        renewed_s = time.monotonic()
        pause_s = self._timing.renew_every_s
        while not self._stopping.wait(pause_s):
            sent_s = time.monotonic()  # the lease counts from before the request
            try:
                if not self._still_ours():
                    break
                renewed_s, pause_s = sent_s, self._timing.renew_every_s
                continue
            except PenstockError as error:
                log.warning("the lease is not renewed: %s", error)
            left_s = renewed_s + self._timing.renew_deadline_s - time.monotonic()
            if left_s <= 0:
                break
            pause_s = min(left_s, random.uniform(*self._timing.retry_s))
        if not self._stopping.is_set():
            log.error("leadership of %s/%s is lost", self._namespace, self._name)
            self._leading.clear()
            self._on_lost()

    def _still_ours(self) -> bool:
        """Renew the lease; return False if another one has it."""
        try:
            self._write({"renewTime": _now()})
        except Conflict:  # someone labelled it, or another one has taken it
            self._see(self._client.get(LEASES, self._namespace, self._name))
            if _holder(self._lease) != self._identity:
                return False
            self._write({"renewTime": _now()})
        except NotFound:
            return self._create()
        return True

    def _write(self, spec: Json) -> None:
        """Change the lease, if nobody else has since it was seen."""
        version = self._lease["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        self._see(self._client.patch(LEASES, self._namespace, self._name, body))

    def _see(self, lease: Json) -> None:
        if _spec(lease) != _spec(self._lease):
            self._changed_s = time.monotonic()
        self._lease = lease


def _spec(lease: Json) -> dict[str, Any]:
    return cast("dict[str, Any]", lease.get("spec") or {})


def _holder(lease: Json) -> str:
    return str(_spec(lease).get("holderIdentity") or "")


def _now() -> str:
    """Return the time as Kubernetes' MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
