"""Manifests to test with: small ones, as people write them."""

from textwrap import dedent, indent

from penstock.errors import ManifestError, Problem
from penstock.specs.documents import Document, read

FLUID = "data.fluid.io/v1alpha1"


def manifest(kind: str, spec: str, *, name: str = "imagenet", version: str = FLUID) -> str:
    head = f"apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\n"
    return head + "spec:\n" + indent(dedent(spec).strip("\n") + "\n", "  ")


def dataset(*mounts: str, name: str = "imagenet") -> str:
    """Each mount begins in line 7 or later: `mounts:` is line 6."""
    items = "".join("- " + indent(dedent(one).strip(), "  ").strip() + "\n" for one in mounts)
    return manifest("Dataset", "mounts:\n" + items, name=name)


def level(text: str) -> str:
    """A runtime whose first level is in line 8."""
    item = "- " + indent(dedent(text).strip(), "    ").strip()
    return manifest("AlluxioRuntime", f"tieredstore:\n  levels:\n  {item}\n")


def read_one(text: str) -> Document:
    (document,) = read(text, "f.yaml")
    return document


def problems(text: str) -> tuple[Problem, ...]:
    try:
        read(text, "f.yaml")
    except ManifestError as error:
        return error.problems
    return ()


def problem(text: str) -> tuple[str, str]:
    """The only one: `f.yaml:7: what`, and its hint."""
    (one,) = problems(text)
    return str(one), one.hint or ""
