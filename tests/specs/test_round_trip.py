"""What was read, written and read again is the same; and no text breaks the reader."""

import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock.specs.documents import read
from penstock.specs.fields import Fields
from penstock.specs.kinds import KINDS
from penstock.specs.load import dump, model_of
from penstock.specs.models import MODELS
from penstock.specs.secret import Secret
from tests.support.manifests import problems

WORDS = st.text("abcxyz-/. :#'\"\n0123456789é", max_size=12)
# What a validator accepts, by the field's name as it is written.
GIVEN: dict[str, st.SearchStrategy[Any]] = {
    "mountPoint": st.sampled_from(["s3://bucket/x", "local:///data", "dataset://ns/name"]),
    "uri": st.sampled_from(["s3://bucket", "file:///data"]),
    "path": st.sampled_from(["/", "/a", "/a/b"]),
    "mountPath": st.just("/data"),
    "subPath": st.just("a/b"),
    "backupPath": st.just("local:///backup"),
    "quota": st.sampled_from(["1Gi", "20G", "1.5Ti", 5]),
    "quotaList": st.just("1Gi"),
    "high": st.sampled_from(["0.9", 1, 0.95]),
    "low": st.sampled_from(["0.5", "0.1"]),
    "name": st.sampled_from(["a", "my-data", "x.y"]),
    "namespace": st.sampled_from(["default", "team"]),
    "policy": st.just("Once") | st.just("OnEvent"),
    "schedule": st.just(""),
}
SKIPPED = {"status", "generateName", "apiVersion", "kind", "metadata"}
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(), int: st.integers(1, 100), float: st.just(1.5), str: WORDS,
    type(None): st.none(), Any: st.none() | WORDS | st.integers(),
}  # fmt: skip


def values(annotation: Any) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(arguments[0])
    if origin in (Union, types.UnionType):
        return st.one_of([values(one) for one in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(WORDS, values(arguments[1]), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, Fields):
        return st.deferred(lambda: fields(annotation))
    return SIMPLE[annotation]


@cache
def fields(model: type[Fields]) -> st.SearchStrategy[dict[str, Any]]:
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for attribute, info in model.model_fields.items():
        name = info.alias or attribute
        if name in SKIPPED:
            continue
        strategy = GIVEN[name] if name in GIVEN else values(info.annotation)
        if model is Secret and name in ("data", "stringData"):
            strategy = st.dictionaries(WORDS, st.sampled_from(["aGVsbG8=", ""]), max_size=2)
        (required if info.is_required() else optional)[name] = strategy
    return st.fixed_dictionaries(required, optional=optional)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(list(MODELS)))
    return {
        "apiVersion": draw(st.sampled_from(KINDS[kind].groups)),
        "kind": kind,
        "metadata": draw(fields(MODELS[kind].model_fields["metadata"].annotation)),  # type: ignore[arg-type]
        **draw(fields(MODELS[kind])),
    }


def examples(count: int) -> settings:
    return settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=count)


@examples(60)
@given(manifests())
def test_what_is_written_and_read_again_is_the_same(manifest: dict[str, Any]) -> None:
    text = yaml.safe_dump(manifest, allow_unicode=True)
    found = problems(text)
    # Each field by itself is good, and may only not go with another one.
    assert not any("unknown field" in one.what for one in found)
    assume(not found)
    (document,) = read(text, "f.yaml")
    written = dump(document.resource)
    (again,) = read(yaml.safe_dump(written, allow_unicode=True), "f.yaml")
    assert dump(again.resource) == written
    assert again.resource == model_of(written)
    assert again.resource.key == document.resource.key
    # What a server adds to the metadata is dropped.
    rest = {"metadata"}
    assert again.resource.model_dump(exclude=rest) == document.resource.model_dump(exclude=rest)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3)
    ),
    max_leaves=10,
)


@examples(60)
@given(manifests(), st.data())
def test_anything_anywhere_is_read_or_refused(
    manifest: dict[str, Any], data: st.DataObject
) -> None:
    """One value of a good manifest, however deep, is replaced by anything at all."""
    holder: Any = manifest
    while True:
        keys = list(holder if isinstance(holder, dict) else range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
            holder = holder[key]
            continue
        holder[key] = data.draw(ANYTHING)
        break
    assert all(one.what for one in problems(yaml.safe_dump(manifest)))


PIECES = ("- ", "a", ": ", "\n", "  ", "&a ", "*a", "<<", "{", "}", "[", "]", "kind", "---\n", "1",
          "'", "|\n", "!!x ", ",", "? ")  # fmt: skip


@examples(150)
@given(st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = problems(text)
    assert found  # none of it has an apiVersion
    assert all(one.what for one in found)
