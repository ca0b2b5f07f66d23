"""What is wrong with a manifest, in words: unknown fields, and what the models refuse. Pure.

Values are not shown: they may be secrets. Our own refusals show what they know to be none.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import did_you_mean, nearest
from penstock.specs.fields import REFUSED, Fields
from penstock.specs.models import MODELS
from penstock.specs.resource import Resource
from penstock.specs.shapes import find, shapes_of, walk

Mistake = tuple[str, str, str | None]  # path, what, hint


def unknown_fields(kind: str, manifest: Mapping[str, Any]) -> Iterator[Mistake]:
    """Every field that this kind does not have at that place."""
    yield from unknown_in(MODELS[kind], manifest)


def unknown_in(model: type[Fields], written: Mapping[str, Any]) -> Iterator[Mistake]:
    """The same for anything that is made of fields: a benchmark's plan is no resource."""
    yield from _unknown(model, model, written, "")


def refusals(model: type[Fields], error: ValidationError) -> Iterator[Mistake]:
    for one in error.errors(include_url=False, include_input=True):
        path = ".".join(str(step) for step in one["loc"])
        what, hint = _refusal(model, path, one)
        yield path, f"{path}: {what}" if path else what, hint


def _unknown(whole: type[Fields], model: type[Fields], value: Any, path: str) -> Iterator[Mistake]:
    if not isinstance(value, Mapping):
        return
    shapes = shapes_of(model)
    for key, below in cast("Mapping[str, Any]", value).items():
        deeper = f"{path}.{key}" if path else key
        if key not in shapes:
            yield deeper, f"{deeper[:120]}: unknown field", _instead(whole, model, key, path)
        elif (inner := shapes[key].model) is not None:
            if shapes[key].is_list and isinstance(below, list):
                for index, item in enumerate(cast("list[Any]", below)):
                    yield from _unknown(whole, inner, item, f"{deeper}.{index}")
            else:
                yield from _unknown(whole, inner, below, deeper)


def _instead(whole: type[Fields], model: type[Fields], key: str, path: str) -> str:
    """The nearest name at that place; or where else this name is; or all names of that place."""
    names = list(shapes_of(model))
    near = nearest(key, names, cutoff=0.7)
    if near is not None and _same(near, key):
        return f"did you mean {near}?"
    elsewhere = [other for other, shape in walk(whole) if _same(shape.name, key)]
    if elsewhere:
        return f"it is a field of another place: {', '.join(elsewhere[:3])}"
    at = ".".join(step for step in path.split(".") if not step.isdigit())
    others = [
        kind
        for kind, other in MODELS.items()
        if issubclass(whole, Resource)
        and other is not whole
        and find(other, f"{at}.{key}" if at else key) is not None
    ]
    if others:
        return f"it is a field of {', '.join(others)}"
    if near is not None:
        return f"did you mean {near}?"
    return f"fields of {path or _called(whole)}: {', '.join(names)}"


def _called(model: type[Fields]) -> str:
    return model.__name__ if issubclass(model, Resource) else "this file"


def _same(one: str, other: str) -> bool:
    return nearest(one, (other,), cutoff=1.0) is not None


_WANTED = {
    "string_type": "must be text",
    "model_type": "must be a map",
    "model_attributes_type": "must be a map",
    "dict_type": "must be a map",
    "list_type": "must be a list",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number, and is too large",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}
_FOUND: Mapping[type[Any], str] = {
    dict: "a map", list: "a list", str: "text", bool: "true or false", int: "a number",
    float: "a number", type(None): "empty",
}  # fmt: skip


def _refusal(model: type[Fields], path: str, error: ErrorDetails) -> tuple[str, str | None]:
    kind, context = error["type"], error.get("ctx") or {}
    if kind == REFUSED:
        return str(context["what"]), cast("str | None", context["hint"])
    if kind == "missing":
        return "is missing", _meaning(model, path)
    if kind == "literal_error":
        return _choice(str(context["expected"]), error["input"])
    if kind == "greater_than_equal":
        return f"must be {context['ge']} or more", None
    if kind in _WANTED:
        found = _FOUND.get(type(cast("object", error["input"])))
        what = f"{_WANTED[kind]}, and is {found}" if found else _WANTED[kind]
        return what, _shape_hint(model, path, kind, error["input"])
    return error["msg"], None


def _choice(expected: str, given: Any) -> tuple[str, str | None]:
    """`expected` is pydantic's: 'MEM', 'SSD' or 'HDD'."""
    names = [name.strip("' ") for name in expected.replace(" or ", ", ").split(",")]
    names = [name for name in names if name]
    what = f"must be one of {', '.join(names)}"
    if not isinstance(given, str):
        return what, None
    return f"{what}, and is {given[:40]!r}", did_you_mean(given, names, cutoff=0.5)


def _meaning(model: type[Fields], path: str) -> str:
    shape = find(model, path)
    if shape is None or path == "spec":
        return f"`penstock explain {model.__name__.lower()}.spec` shows what there is"
    return f"{path.rpartition('.')[2]}: {shape.description}"


def _shape_hint(model: type[Fields], path: str, kind: str, given: Any) -> str | None:
    above, _, name = path.rpartition(".")
    if kind == "string_type":
        if not isinstance(given, dict | list):
            return "put it in quotes"
        # Options are text, but some indent encryptOptions into them; it belongs beside them.
        holder = find(model, above)
        beside = find(model, f"{above.rpartition('.')[0]}.{name}")
        if holder is not None and holder.is_map and beside is not None:
            return f"{name} is a field beside {above.rpartition('.')[2]}: indent it less"
    if kind == "list_type" and isinstance(given, dict):
        return "begin each item with `- `"
    return None
