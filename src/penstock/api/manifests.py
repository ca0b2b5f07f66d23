"""Manifests before they are applied: read them, check them, explain their fields. Changes nothing.

Imports the models and YAML: a command that only looks at resources must not import this module.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import Problem
from penstock.reconcile.manifests import look_at_manifests, read_manifests
from penstock.specs.documents import Document, read_all
from penstock.specs.explain import Explanation, explain, explain_all
from penstock.specs.kinds import KINDS, ResourceKey
from penstock.specs.schema import fields_without_effect
from penstock.specs.secret_fields import HIDDEN, take_secrets

__all__ = [
    "HIDDEN",
    "Checked",
    "Document",
    "Explanation",
    "Ineffective",
    "Manifests",
    "check",
    "explain",
    "explain_all",
    "hide_secrets",
    "keys_to_delete",
    "read",
    "validate",
]

Path = str | os.PathLike[str]
# A file, a folder or YAML text; an object; or several files or objects.
Manifests = Path | Mapping[str, Any] | Sequence[Path] | Sequence[Mapping[str, Any]]


def read(manifests: Manifests, *, namespace: str | None = None) -> list[Document]:
    """Return the resources, each with its lines in the text; raise ManifestError with every
    mistake."""
    namespace = namespace or "default"
    if isinstance(manifests, (str, os.PathLike)):
        if "\n" in str(manifests):
            return read_all([(str(manifests), "text")], namespace=namespace)
        return read_manifests([os.fspath(manifests)], namespace=namespace)
    if isinstance(manifests, Mapping):
        return read_all([(json.dumps(manifests), "object")], namespace=namespace)
    paths = [os.fspath(one) for one in manifests if isinstance(one, (str, os.PathLike))]
    if paths:
        return read_manifests(paths, namespace=namespace)
    texts = [(json.dumps(one), f"object {number}") for number, one in enumerate(manifests, 1)]
    return read_all(texts, namespace=namespace)


def validate(manifests: Manifests) -> list[Document]:
    """Read manifests; raise ManifestError with every mistake. Asks no store."""
    return read(manifests)


@dataclass(frozen=True, slots=True)
class Ineffective:
    """A field that is accepted and changes nothing on one machine."""

    path: str
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A resource without mistakes."""

    key: ResourceKey
    where: str
    without_effect: list[Ineffective]


def check(names: Sequence[str]) -> tuple[list[Checked], list[Problem]]:
    """Return the correct resources in these files and folders, and every mistake in the others."""
    documents, problems = look_at_manifests(names)
    checked = [
        Checked(
            document.resource.key,
            document.where(),
            [
                Ineffective(one.path, document.where(one.path), one.reason)
                for one in fields_without_effect(document.resource)
            ],
        )
        for document in documents
    ]
    return checked, problems


def keys_to_delete(names: Sequence[str], *, namespace: str | None = None) -> list[ResourceKey]:
    """What these files and folders declare, in reverse order: users before what they use."""
    documents = read_manifests(names, namespace=namespace or "default")
    return [document.resource.key for document in reversed(documents)]


def hide_secrets(manifest: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the manifest with HIDDEN for each value that looks secret, and whether it has any."""
    hidden, secrets = take_secrets(manifest)
    return hidden, bool(secrets)


def kind_names() -> list[str]:
    """The kinds of resources, as `penstock get` takes them."""
    return [info.plural for info in KINDS.values()]
