"""Manifests to models, where the manifest is known to be good. Pure."""

from typing import Any

from pydantic import ValidationError

from penstock.errors import ManifestError
from penstock.specs.models import MODELS
from penstock.specs.resource import Resource


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
