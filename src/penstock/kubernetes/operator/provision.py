"""Data sets for claims alone: dynamic provisioning by a StorageClass of ours.

The parameters of the class say what the data set is; its claims get a Dataset and a
PenstockRuntime of their name, which they own:

    mountPoint           the source; ${namespace} and ${name} are the claim's
    option.NAME          an option of the mount
    secret.NAME          an option in a Secret of the claim's namespace: SECRET/KEY
    runtime.NAME         an option of the PenstockRuntime
    tier.medium, tier.path, tier.quota    its cache
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.errors import Conflict, NotFound, UsageError, did_you_mean
from penstock.kubernetes.client import (
    DATASETS,
    PERSISTENT_VOLUME_CLAIMS,
    RUNTIMES,
    Client,
)
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.operator.objects import Claim, StorageClass
from penstock.kubernetes.operator.view import View
from penstock.kubernetes.operator.writer import Writer
from penstock.kubernetes.volumes import Request
from penstock.reconcile.dataset_phases import Notice
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]

_PLAIN: Final = ("mountPoint", "tier.medium", "tier.path", "tier.quota")
_PREFIXES: Final = ("option.", "secret.", "runtime.")
_KIND: Final = "PenstockRuntime"
_CLAIM: Final = "PersistentVolumeClaim"


class Provisioner:
    def __init__(self, client: Client, view: View, writer: Writer) -> None:
        self._client = client
        self._view = view
        self._writer = writer

    def reconcile(self, key: ServedKey) -> None:
        claim = self._view.claim(key)
        if claim is None or request_of(claim, self._view) is None or claim.deleting:
            return
        found = self._view.storage_class(claim.storage_class)
        if found is None or (found.waits_for_consumer and not claim.selected_node):
            return
        if self._view.dataset(key) is not None:
            return
        if not found.parameters:  # the class of claims that the operator makes itself
            return
        try:
            manifests = manifests_of(found, key, claim.uid)
        except UsageError as error:
            message = f"{error} (hint: {error.hint})" if error.hint else str(error)
            notice = Notice("ProvisioningFailed", message, "Warning")
            self._writer.event("v1", ResourceKey(_CLAIM, *key), claim.uid, notice)
            return
        if not self._is_there(key, claim.uid):
            return
        for resource, manifest in zip((RUNTIMES[_KIND], DATASETS), manifests, strict=True):
            try:
                self._client.create(resource, manifest)
            except Conflict:
                continue  # it is there: from before a restart, or of a user

    def _is_there(self, key: ServedKey, uid: str) -> bool:
        """Ask the server: the cache may still have a claim that its data set has just gone with."""
        try:
            metadata = self._client.get(PERSISTENT_VOLUME_CLAIMS, *key)["metadata"]
        except NotFound:
            return False
        return metadata["uid"] == uid and "deletionTimestamp" not in metadata


def request_of(claim: Claim, view: View) -> Request | None:
    """Return what a user's claim of a class of ours asks for; None for any other claim."""
    if claim.applied or view.storage_class(claim.storage_class) is None:
        return None
    return Request(claim.storage_class, claim.uid, claim.access_modes, claim.storage)


def manifests_of(found: StorageClass, key: ServedKey, claim_uid: str) -> tuple[Json, Json]:
    """Return a runtime and a Dataset for a claim. Raises UsageError."""
    parameters = found.parameters
    for name in parameters:
        if name not in _PLAIN and not name.startswith(_PREFIXES):
            hint = did_you_mean(name, _PLAIN, f"parameters: {', '.join((*_PLAIN, *_PREFIXES))}")
            what = f"StorageClass {found.name}: {name!r} is not a parameter"
            raise UsageError(what, hint=hint)
    if not parameters.get("mountPoint"):
        what = f"StorageClass {found.name}: mountPoint is missing"
        raise UsageError(what, hint="write it like s3://BUCKET/${namespace}/${name}")
    mount: Json = {"mountPoint": _filled(parameters["mountPoint"], key), "path": "/"}
    if options := {name: _filled(value, key) for name, value in _below(parameters, "option.")}:
        mount["options"] = options
    if secrets := [_encrypted(found, name, value) for name, value in _below(parameters, "secret.")]:
        mount["encryptOptions"] = secrets
    owner = {
        "apiVersion": "v1",
        "kind": _CLAIM,
        "name": key.name,
        "uid": claim_uid,
    }
    metadata = {"name": key.name, "namespace": key.namespace, "ownerReferences": [owner]}
    runtime: Json = {"options": dict(_below(parameters, "runtime."))}
    if "tier.medium" in parameters:
        level = {"mediumtype": parameters["tier.medium"], "path": parameters.get("tier.path", "")}
        if "tier.quota" in parameters:
            level["quota"] = parameters["tier.quota"]
        runtime["tieredstore"] = {"levels": [level]}
    resource = RUNTIMES[_KIND]
    return (
        {
            "apiVersion": resource.group_version,
            "kind": _KIND,
            "metadata": metadata,
            "spec": runtime,
        },
        {
            "apiVersion": DATASETS.group_version,
            "kind": DATASETS.kind,
            "metadata": metadata,
            "spec": {"mounts": [mount]},
        },
    )


def _below(parameters: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in sorted(parameters.items()):
        if name.startswith(prefix):
            yield name.removeprefix(prefix), value


def _filled(text: str, key: ServedKey) -> str:
    return text.replace("${namespace}", key.namespace).replace("${name}", key.name)


def _encrypted(found: StorageClass, name: str, value: str) -> Json:
    secret, slash, secret_key = value.partition("/")
    if not (secret and slash and secret_key):
        what = f"StorageClass {found.name}: secret.{name} is not SECRET/KEY"
        raise UsageError(what, hint=f"write it like secret.{name}: keys/id")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": secret_key}}}
