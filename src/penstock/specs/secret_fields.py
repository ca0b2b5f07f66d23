"""Take the secrets out of a manifest before it is stored or shown, and put them back for use.

All values of a Secret are secrets, and so are options, properties and variables whose names mention
keys, tokens or passwords. A JSON-like pointer names the place of each. It uses the names of list
items that have names, so that a mount added before another one does not get its keys. Pure, and
without models.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, cast

HIDDEN = "<hidden>"

_SECRET_NAME = re.compile(
    r"key|secret|token|passw(?:or)?d|passphrase|credential|signature|\bsas\b|\bak\b|\bsk\b",
    re.IGNORECASE,
)
# A password in an address, as in JuiceFS's metaurl: redis://:PASSWORD@host/1
_IN_ADDRESS = re.compile(r"^[^:/?#\s]+://[^/?#\s]*:[^/?#\s@]+@")
# Maps whose keys users choose. Elsewhere `key` is a label's name, or a Secret's key.
_MAPS = ("options", "sharedOptions", "properties", "env", "parallelOptions", "logConfig")
# kubectl copies the whole manifest into it.
_COPY = "kubectl.kubernetes.io/last-applied-configuration"


def take_secrets(manifest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a copy of the manifest with HIDDEN for each secret, and the secrets by their pointers.

    A value that is HIDDEN already stays and is not returned: it stands for the stored secret.
    """
    hidden = deepcopy(dict(manifest))
    _remove_copies(hidden)
    values: dict[str, str] = {}
    for pointer, holder, key in _find(hidden):
        if holder[key] != HIDDEN:
            values[pointer] = holder[key]
            holder[key] = HIDDEN
    return hidden, values


def put_secrets(manifest: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of the manifest with its secrets. One without a value stays HIDDEN."""
    whole = deepcopy(dict(manifest))
    for pointer, holder, key in _find(whole):
        if holder[key] == HIDDEN and pointer in values:
            holder[key] = values[pointer]
    return whole


def hidden_places(manifest: Mapping[str, Any]) -> list[str]:
    """Return the pointers of HIDDEN values, which stand for stored secrets."""
    found = _find(deepcopy(dict(manifest)))
    return [pointer for pointer, holder, key in found if holder[key] == HIDDEN]


def names_a_secret(name: str) -> bool:
    """Whether an option of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def _find(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (pointer, map, key) of each secret. The map is part of the manifest, to be changed."""
    if manifest.get("kind") == "Secret":
        for part in ("data", "stringData"):
            held = manifest.get(part)
            if isinstance(held, dict):
                yield from _texts(cast("dict[str, Any]", held), f"/{part}", all_of_them=True)
        return
    yield from _walk(manifest.get("spec"), "/spec")


def _walk(node: Any, pointer: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    if isinstance(node, dict):
        entries = cast("dict[str, Any]", node)
        name, value = entries.get("name"), entries.get("value")
        if isinstance(name, str) and isinstance(value, str) and is_secret(name, value):
            yield f"{pointer}/value", entries, "value"
        for key, below in entries.items():
            deeper = f"{pointer}/{_escaped(key)}"
            if key in _MAPS and isinstance(below, dict):
                yield from _texts(cast("dict[str, Any]", below), deeper)
            else:
                yield from _walk(below, deeper)
    elif isinstance(node, list):
        items = cast("list[Any]", node)
        for step, item in zip(_steps(items), items, strict=True):
            yield from _walk(item, f"{pointer}/{step}")


def _texts(
    entries: dict[str, Any], pointer: str, *, all_of_them: bool = False
) -> Iterator[tuple[str, dict[str, Any], str]]:
    for key, value in entries.items():
        text = str(value) if isinstance(value, int | float) else value
        if isinstance(text, str) and (all_of_them or is_secret(key, text)):
            entries[key] = text  # a key of digits may be written without quotes
            yield f"{pointer}/{_escaped(key)}", entries, key


def is_secret(name: str, value: str) -> bool:
    """Whether a value is a secret: by its name, or as an address with a password."""
    if value == HIDDEN:
        return True
    return bool(value) and (names_a_secret(name) or _IN_ADDRESS.match(value) is not None)


def _steps(items: list[Any]) -> list[str]:
    names: list[str | None] = []
    for item in items:
        name = cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None
        names.append(name if isinstance(name, str) and name else None)
    return [
        f"@{_escaped(name)}" if name is not None and names.count(name) == 1 else str(index)
        for index, name in enumerate(names)
    ]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _remove_copies(manifest: dict[str, Any]) -> None:
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict):
        annotations = cast("dict[str, Any]", metadata).get("annotations")
        if isinstance(annotations, dict):
            cast("dict[str, Any]", annotations).pop(_COPY, None)
