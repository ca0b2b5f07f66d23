"""The fields of a model as users write them: names, types, documentation, and effect. Pure.

Serves explain, the search for unknown fields, the report of fields without effect, and the
reference page.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from penstock.specs.fields import NO_EFFECT, NO_EFFECT_WHEN, Fields, Quantity
from penstock.specs.resource import Resource


@dataclass(frozen=True, slots=True)
class Shape:
    name: str  # in YAML: mountPoint
    attribute: str  # in Python: mount_point
    type_name: str  # in words
    description: str
    required: bool
    no_effect: str | None  # why it has no effect here
    when: str  # and with which values
    model: type[Fields] | None  # of its value, or of the items of its list
    is_list: bool = False
    is_map: bool = False  # its keys are chosen by users


@cache
def shapes_of(model: type[Fields]) -> Mapping[str, Shape]:
    """By name, in the order in which they are field."""
    found: dict[str, Shape] = {}
    for attribute, info in model.model_fields.items():
        shape = _shape(attribute, info)
        found[shape.name] = shape
    return found


def walk(model: type[Fields], path: str = "") -> Iterator[tuple[str, Shape]]:
    """Yield every field below a model with its path, without the numbers of list items."""
    for name, shape in shapes_of(model).items():
        below = f"{path}.{name}" if path else name
        yield below, shape
        if shape.model is not None:
            yield from walk(shape.model, below)


def find(model: type[Fields], path: str) -> Shape | None:
    """Return the field at a path, with or without numbers of list items."""
    shape: Shape | None = None
    inside: type[Fields] | None = model
    for step in path.split("."):
        if step.isdigit() and shape is not None and shape.is_list:
            continue
        if inside is None or step not in shapes_of(inside):
            return None
        shape = shapes_of(inside)[step]
        inside = shape.model
    return shape


def _shape(attribute: str, info: FieldInfo) -> Shape:
    extra = cast("dict[str, Any]", info.json_schema_extra or {})
    annotation: Any = info.annotation
    if info.metadata:
        annotation = Annotated[(annotation, *info.metadata)]
    model, is_list, is_map, words = _read(annotation)
    return Shape(
        name=info.alias or attribute,
        attribute=attribute,
        type_name=words,
        description=info.description or "",
        required=info.is_required(),
        no_effect=extra.get(NO_EFFECT),
        when=extra.get(NO_EFFECT_WHEN, "always"),
        model=model,
        is_list=is_list,
        is_map=is_map,
    )


_QUANTITY = get_args(Quantity)[1:]
_PLAIN = {str: "text", int: "whole number", bool: "true or false", float: "number", Any: "anything"}


def _read(annotation: Any) -> tuple[type[Fields] | None, bool, bool, str]:
    """Return the model of the value, whether it is a list, whether a map, and the type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if any(one in _QUANTITY for one in arguments[1:]):
            quantity = any(one is _QUANTITY[-1] for one in arguments[1:])
            return None, False, False, "quantity" if quantity else "text"
        return _read(arguments[0])
    if origin in (Union, types.UnionType):
        rest = [one for one in arguments if one is not type(None)]
        return _read(rest[0])
    if origin is Literal:
        named = [str(one) for one in arguments if one != ""]
        return None, False, False, "one of " + ", ".join(named)
    if origin is list:
        model, _, is_map, words = _read(arguments[0])
        if model is not None:
            return model, True, False, "list of maps"
        return None, True, False, "list of maps" if is_map else f"list of {words}"
    if origin is dict:
        return None, False, True, "map of text" if arguments[1] is not Any else "map"
    if isinstance(annotation, type) and issubclass(annotation, Fields):
        return annotation, False, False, "map"
    return None, False, False, _PLAIN.get(cast("Any", annotation), "text")


@dataclass(frozen=True, slots=True)
class NoEffect:
    path: str  # as in the manifest: spec.fuse.imageTag
    reason: str


def fields_without_effect(resource: Resource) -> list[NoEffect]:
    """Return the fields without effect that are set to another value than their default.

    Does not look at options, properties and arguments: penstock.fluid has their tables.
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
    """Whether nothing but volumeMounts is set, which has an effect: it locates Secrets."""
    if not isinstance(value, Fields):
        return False
    return not value.model_dump(exclude_defaults=True, exclude={"volume_mounts"})
