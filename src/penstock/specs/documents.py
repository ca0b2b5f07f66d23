"""Read manifests: YAML text to resources, or a list of all mistakes. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from penstock.errors import ManifestError, Problem, did_you_mean
from penstock.specs.kinds import FLUID, KINDS, OURS, ResourceKey
from penstock.specs.models import MODELS
from penstock.specs.resource import Resource
from penstock.specs.schema import find
from penstock.specs.validation import Mistake, mistakes, refusals, unknown_fields
from penstock.specs.yaml_tree import Lines, Tree, read_trees


@dataclass(frozen=True)
class Document:
    """A resource, and where it is written."""

    resource: Resource
    raw: dict[str, Any]  # as written
    file: str
    lines: Lines

    def where(self, path: str = "") -> str:
        """Return `dataset.yaml:9` for a path like spec.mounts.0.mountPoint."""
        return f"{self.file}:{self.lines.of(path)}"


def read(text: str, file: str, *, namespace: str = "default") -> list[Document]:
    """Return every resource in one file. Raises ManifestError with all mistakes in it."""
    return read_all([(text, file)], namespace=namespace)


def read_all(sources: Iterable[tuple[str, str]], *, namespace: str = "default") -> list[Document]:
    """Return every resource of several files, given as (text, file). None may be in two of them.

    `namespace` is for resources without one.
    """
    problems: list[Problem] = []
    documents = list(read_each(sources, problems, namespace=namespace))
    if problems:
        raise ManifestError.of(problems)
    return documents


def read_each(
    sources: Iterable[tuple[str, str]], problems: list[Problem], *, namespace: str = "default"
) -> Iterator[Document]:
    """Yield the resources without mistakes; add the mistakes of the others to `problems`."""
    seen: dict[ResourceKey, Document] = {}
    for text, file in sources:
        found_any, known = False, len(problems)
        for tree in read_trees(text, file, problems):
            for one in _items(tree, file, problems):
                found_any = True
                document = _document(one, file, namespace, problems)
                if document is None:
                    continue
                if (first := seen.get(document.resource.key)) is not None:
                    what = f"{document.resource.key} is there twice; first in {first.where()}"
                    problems.append(Problem(document.where(), what, "keep one of them"))
                    continue
                seen[document.resource.key] = document
                yield document
        if not found_any and len(problems) == known:
            hint = "a manifest begins with apiVersion and kind"
            problems.append(Problem(file, "has no resource", hint))


def decode(data: bytes, file: str) -> str:
    """Decode the content of a file."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(f"{file}:{line}", "is not text", "a manifest is YAML, in UTF-8")
        raise ManifestError.of([problem]) from error


def _items(tree: Tree, file: str, problems: list[Problem]) -> Iterator[Tree]:
    """Yield the document itself, or the items of a List; skip an empty document."""
    if tree.value is None:
        return
    where = f"{file}:{tree.lines.of('')}"
    if isinstance(tree.value, list):
        hint = "put --- between resources, or name them items of a `kind: List`"
        problems.append(Problem(where, "a list, not a resource", hint))
        return
    if not isinstance(tree.value, dict):
        hint = "a manifest begins with apiVersion and kind"
        problems.append(Problem(where, "not a resource", hint))
        return
    value = cast("dict[str, Any]", tree.value)
    kind = value.get("kind")
    if not (isinstance(kind, str) and kind.endswith("List") and "items" in value):
        yield tree
        return
    items = value["items"]
    if not isinstance(items, list):
        problems.append(Problem(where, "items: must be a list", "begin each item with `- `"))
        return
    for index, item in enumerate(cast("list[Any]", items)):
        prefix = f"items.{index}"
        ambiguous = {
            path.removeprefix(prefix + "."): text
            for path, text in tree.ambiguous.items()
            if path.startswith(prefix + ".")
        }
        yield from _items(Tree(item, tree.lines.below(prefix), ambiguous), file, problems)


def _document(tree: Tree, file: str, namespace: str, problems: list[Problem]) -> Document | None:
    manifest = cast("dict[str, Any]", tree.value)
    if (unknown := _unknown_kind(manifest)) is not None:
        wrong, resource = [unknown], None
    else:
        wrong, resource = _check(tree, namespace)
    for path, what, hint in sorted(wrong, key=lambda one: tree.lines.of(one[0])):
        problems.append(Problem(f"{file}:{tree.lines.of(path)}", what, hint))
    if wrong or resource is None:
        return None
    return Document(resource, manifest, file, tree.lines)


def _check(tree: Tree, namespace: str) -> tuple[list[Mistake], Resource | None]:
    manifest = cast("dict[str, Any]", tree.value)
    kind = str(manifest["kind"])
    unknown = list(unknown_fields(kind, manifest))
    try:
        resource = MODELS[kind].model_validate(_with_namespace(manifest, namespace))
    except ValidationError as error:
        refused = [
            (path, what, hint)
            for path, what, hint in refusals(MODELS[kind], error)
            if not (what.endswith(": is missing") and _misspelt(path, manifest, unknown))
        ]
        return unknown + refused, None
    wrong = unknown + list(mistakes(resource, tree.lines.of))
    for path in tree.ambiguous:
        if _wants_text(MODELS[kind], path):
            what = (
                f"{path}: is text, but YAML reads this value as another number, or as true or false"
            )
            wrong.append((path, what, "put it in quotes"))
    return wrong, resource


def _misspelt(path: str, manifest: dict[str, Any], unknown: list[Mistake]) -> bool:
    """Whether a missing field is there under a wrong name, which is reported already."""
    above, _, name = path.rpartition(".")
    if path == "metadata.name" and "generateName" in manifest["metadata"]:
        return True
    return any(
        other.rpartition(".")[0] == above and hint == f"did you mean {name}?"
        for other, _, hint in unknown
    )


def _wants_text(model: type[Resource], path: str) -> bool:
    """Whether a path is in a map of text. Names in such a map may have dots."""
    above = path
    while above := above.rpartition(".")[0]:
        if (shape := find(model, above)) is not None:
            return shape.type_name == "map of text"
    return False


def _with_namespace(manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("namespace") is not None:
        return manifest
    return {**manifest, "metadata": {**metadata, "namespace": namespace}}


# Fluid's kinds that Penstock does not have.
_OTHER_FLUID_KINDS = (
    "EFCRuntime",
    "VineyardRuntime",
    "GooseFSRuntime",
    "CacheRuntime",
    "CacheRuntimeClass",
)


def _unknown_kind(manifest: dict[str, Any]) -> Mistake | None:
    """Return why a manifest is not one of our resources; None if it is one."""
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    ours = ", ".join(KINDS)
    if not isinstance(kind, str) or not kind:
        return "kind", "kind: is missing", f"one of {ours}"
    if not isinstance(version, str) or not version:
        groups = KINDS[kind].groups if kind in KINDS else (FLUID, OURS)
        return "apiVersion", "apiVersion: is missing", f"write apiVersion: {groups[0]}"
    group = version.partition("/")[0] if "/" in version else ""
    if kind in KINDS:
        groups = KINDS[kind].groups
        if version in groups:
            return None
        if kind == "Secret" and group and group not in (FLUID, OURS):
            return (
                "apiVersion",
                f"{kind} of {version[:60]!r} is not Penstock's",
                "apply it with kubectl",
            )
        what = f"{kind} has no apiVersion {version[:60]!r}"
        return "apiVersion", what, f"write apiVersion: {' or '.join(groups)}"
    if kind in _OTHER_FLUID_KINDS:
        hint = "use AlluxioRuntime, JindoRuntime, JuiceFSRuntime, ThinRuntime or PenstockRuntime"
        return "kind", f"{kind} is not supported", hint
    hint = did_you_mean(kind, KINDS, cutoff=0.75)
    if hint and (group in ("", FLUID.partition("/")[0], OURS.partition("/")[0])):
        return "kind", f"{kind[:60]!r} is not a kind", hint
    if group in (FLUID.partition("/")[0], OURS.partition("/")[0]):
        return "kind", f"{kind[:60]!r} is not a kind", f"kinds: {ours}"
    return (
        "kind",
        f"{kind[:60]} of {version[:60]} is not Penstock's",
        f"apply it with kubectl; Penstock's are {ours}",
    )
