"""The model of each kind, and Secret. Pure."""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationError

from penstock.errors import ManifestError
from penstock.specs.dataset import Dataset
from penstock.specs.fields import field, invalid
from penstock.specs.jobs import TrainingJob
from penstock.specs.operations import DataBackup, DataLoad, DataMigrate, DataProcess
from penstock.specs.resource import Resource
from penstock.specs.runtimes import (
    AlluxioRuntime,
    JindoRuntime,
    JuiceFSRuntime,
    PenstockRuntime,
    ThinRuntime,
    ThinRuntimeProfile,
)
from penstock.specs.secret_fields import HIDDEN, put_secrets


def _only_text(value: Any) -> Any:
    """Refuse numbers: 0123 would be read as 83, and a wrong key is worse than none."""
    if value is not None and not isinstance(value, str):
        raise invalid("is not text", "put it in quotes")
    return value or ""


def _base64(text: str) -> str:
    try:
        if text != HIDDEN:
            base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(
            "is not base64",
            "put plain text under stringData, or encode it: printf %s VALUE | base64",
        ) from None
    return text


SecretText = Annotated[str, BeforeValidator(_only_text)]


class Secret(Resource):
    """Keys and passwords for the encryptOptions of mounts. Encrypted on disk, and never shown."""

    data: dict[str, Annotated[SecretText, AfterValidator(_base64)]] = field(
        "Names and values, the values in base64.", factory=dict, secret=True
    )
    string_data: dict[str, SecretText] = field(
        "Names and values, as plain text; they win over `data`.", factory=dict, secret=True
    )
    type: str = field(
        "Type of the Secret in Kubernetes.",
        default="Opaque",
        no_effect="types of Secrets: all are treated alike",
    )
    immutable: bool = field(
        "Whether it can be changed.",
        default=False,
        no_effect="immutable: a Secret can always be applied again",
    )

    def value_of(self, key: str) -> str:
        """Return the plain text of one key. `stringData` wins over `data`, as in Kubernetes."""
        if key in self.string_data:
            return self.string_data[key]
        if key not in self.data:
            known = ", ".join(sorted({*self.data, *self.string_data})) or "none"
            raise ManifestError(f"{self.key} has no key {key!r}", hint=f"its keys: {known}")
        try:
            return base64.b64decode(self.data[key]).decode()
        except ValueError:
            raise ManifestError(f"{self.key}: the value of {key!r} is not text") from None


Runtime = AlluxioRuntime | JindoRuntime | JuiceFSRuntime | ThinRuntime | PenstockRuntime
Operation = DataLoad | DataMigrate | DataProcess | DataBackup

MODELS: Mapping[str, type[Resource]] = {
    model.__name__: model
    for model in (
        Dataset,
        AlluxioRuntime,
        JindoRuntime,
        JuiceFSRuntime,
        ThinRuntime,
        PenstockRuntime,
        ThinRuntimeProfile,
        DataLoad,
        DataMigrate,
        DataProcess,
        DataBackup,
        TrainingJob,
        Secret,
    )
}


def model_of(manifest: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> Resource:
    """Return the model of a stored manifest, with its secrets put back.

    Fields that only a newer release knows are dropped.
    """
    if secrets:
        manifest = put_secrets(manifest, secrets)
    kind = str(manifest.get("kind"))
    if kind not in MODELS:
        raise ManifestError(f"this release has no kind {kind!r}")
    try:
        return MODELS[kind].model_validate(manifest)
    except ValidationError as error:
        name = manifest.get("metadata", {}).get("name", "?")
        places = ", ".join(".".join(str(step) for step in one["loc"]) for one in error.errors())
        raise ManifestError(
            f"the stored {kind.lower()}/{name} cannot be read: {places}",
            hint="apply its manifest again",
        ) from None
