"""CustomResourceDefinitions: up to date, structural, with every field of the models."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from penstock.api.tables import columns_of
from penstock.kubernetes.client import RUNTIMES, SERVED
from penstock.kubernetes.crds import FOLDER, as_yaml, definition, definitions
from penstock.specs.models import MODELS
from penstock.specs.schema import walk

Json = dict[str, Any]
KEEP = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"


def schema_of(kind: str) -> Json:
    return definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def at(schema: Json, path: str) -> Json:
    for step in path.split("."):
        schema = schema.get("items", schema)["properties"][step]
    return schema


def every_schema(schema: Json, path: str) -> Iterator[tuple[str, Json]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from every_schema(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from every_schema(schema[key], f"{path}[]")


def test_the_files_of_the_chart_are_up_to_date(pytestconfig: pytest.Config):
    folder = pytestconfig.rootpath / FOLDER
    found = {file.name: file.read_text() for file in folder.iterdir()}
    expected = {name: as_yaml(manifest) for name, manifest in definitions().items()}
    assert found == expected, "run: python -m penstock.kubernetes.crds"


def test_the_files_hold_what_was_made():
    for manifest in definitions().values():
        assert yaml.safe_load(as_yaml(manifest)) == manifest


@pytest.mark.parametrize("kind", SERVED)
def test_every_field_of_a_model_is_in_its_schema_with_its_description(kind: str):
    schema = schema_of(kind)["properties"]["spec"]
    spec = MODELS[kind].model_fields["spec"].annotation
    assert spec is not None
    for path, shape in walk(spec):
        assert at(schema, path)["description"] == shape.description


@pytest.mark.parametrize("kind", SERVED)
def test_schemas_are_structural_and_keep_unknown_fields(kind: str):
    for path, schema in every_schema(schema_of(kind)["properties"]["spec"], "spec"):
        assert ("type" in schema) != bool(
            schema.get(INT_OR_STRING) or (schema.get(KEEP) and "type" not in schema)
        ), path
        if schema.get("type") == "object":
            assert schema.get(KEEP) or "additionalProperties" in schema, path
        # The API server refuses a null that an enum does not name.
        assert not ("enum" in schema and schema.get("nullable")), path


def test_values_that_the_models_convert_may_have_any_type():
    level = at(schema_of("AlluxioRuntime"), "spec.tieredstore.levels")["items"]["properties"]
    assert level["quota"][INT_OR_STRING] is True
    assert "type" not in level["high"]  # 0.95 and "0.95"
    options = at(schema_of("Dataset"), "spec.mounts")["items"]["properties"]["options"]
    assert options["additionalProperties"] == {KEEP: True, "nullable": True}  # `debug:`


def test_only_what_nothing_can_be_done_without_is_required():
    assert at(schema_of("Dataset"), "spec.mounts")["items"]["required"] == ["mountPoint"]
    assert at(schema_of("DataProcess"), "spec")["required"] == ["dataset", "processor"]
    assert "required" not in schema_of("Dataset")


@pytest.mark.parametrize("kind", SERVED)
def test_every_kind_has_a_status_and_runtimes_scale(kind: str):
    subresources = definition(kind)["spec"]["versions"][0]["subresources"]
    assert subresources["status"] == {}
    assert ("scale" in subresources) == (kind in RUNTIMES)


def test_no_short_name_takes_one_of_kubernetes():
    names: Mapping[str, Json] = {kind: definition(kind)["spec"]["names"] for kind in SERVED}
    short = {one for found in names.values() for one in found.get("shortNames", [])}
    assert "ds" not in short  # DaemonSets
    assert {"alluxio", "juicefs", "load", "penstock"} <= short
    assert {tuple(found["categories"]) for found in names.values()} == {("fluid",)}


@pytest.mark.parametrize(
    "kind",
    ["Dataset", "AlluxioRuntime", "JuiceFSRuntime", "DataLoad", "DataMigrate", "DataBackup"],
)
def test_kubectl_prints_the_columns_of_penstock_get(kind: str):
    version = definition(kind)["spec"]["versions"][0]
    printed = [
        (one["name"].upper(), one.get("priority", 0) > 0)
        for one in version["additionalPrinterColumns"]
    ]
    own = ("NAME", "MOUNT PATH", "PROGRESS")  # kubectl's first; two that Fluid does not have
    expected = [
        (column.title, column.wide) for column in columns_of(kind) if column.title not in own
    ]
    assert printed == expected
