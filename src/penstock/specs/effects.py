"""What in a manifest changes nothing on one machine, and why. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from penstock.specs.fields import Fields
from penstock.specs.resource import Resource
from penstock.specs.shapes import Shape, shapes_of


@dataclass(frozen=True, slots=True)
class NoEffect:
    path: str  # as in the manifest: spec.fuse.imageTag
    reason: str


def without_effect(resource: Resource) -> list[NoEffect]:
    """Each field that is said, to another value than the usual one, and has no effect.

    Entries of options, properties and arguments are not looked at: which of them have a
    counterpart is known elsewhere.
    """
    return list(_walk(resource, ""))


def _walk(model: Fields, path: str) -> Iterator[NoEffect]:
    for name, shape in shapes_of(type(model)).items():
        if shape.attribute not in model.model_fields_set:
            continue
        value = getattr(model, shape.attribute)
        below = f"{path}.{name}" if path else name
        if shape.no_effect is not None:
            if _is_set_without_effect(model, shape, value):
                yield NoEffect(below, shape.no_effect)
        elif isinstance(value, Fields):
            yield from _walk(value, below)
        elif isinstance(value, list):
            for index, item in enumerate(cast("list[Any]", value)):
                if isinstance(item, Fields):
                    yield from _walk(item, f"{below}.{index}")


def _is_set_without_effect(model: Fields, shape: Shape, value: Any) -> bool:
    info = type(model).model_fields[shape.attribute]
    if value is None or value in ("", [], {}) or _empty(value):
        return False
    if not info.is_required() and value == info.get_default(call_default_factory=True):
        return False
    match shape.when:
        case "above one":
            return value > 1
        case "false":
            return value is False
        case "writing":
            return any(mode != "ReadOnlyMany" for mode in value)
        case "exclusive":
            return value == "Exclusive"
        case "without a secret":
            return any("secret" not in volume for volume in value)
        case _:
            return True


def _empty(value: Any) -> bool:
    """Where only volumes are mounted, their Secrets are found, even for a master."""
    if not isinstance(value, Fields):
        return False
    return not value.model_dump(exclude_defaults=True, exclude={"volume_mounts"})
