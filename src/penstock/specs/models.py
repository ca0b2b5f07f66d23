"""Every kind of resource as a model. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from penstock.errors import ManifestError
from penstock.specs.dataset import Dataset
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
from penstock.specs.secret import Secret

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


# Manifests to models, where the manifest is known to be good. Pure.


def model_of(manifest: dict[str, Any]) -> Resource:
    """From what was kept. Fields that only a newer release knows are dropped."""
    kind = str(manifest.get("kind"))
    if kind not in MODELS:
        raise ManifestError(f"{kind!r} is not a kind that this release knows")
    try:
        return MODELS[kind].model_validate(manifest)
    except ValidationError as error:
        name = manifest.get("metadata", {}).get("name", "?")
        places = ", ".join(".".join(str(step) for step in one["loc"]) for one in error.errors())
        raise ManifestError(
            f"{kind.lower()}/{name} as it was kept cannot be read: {places}",
            hint="apply its manifest again",
        ) from None
