"""penstock validate: is a manifest good, and what of it has an effect here?"""

import json
from typing import Any

import click

from penstock.errors import ManifestError
from penstock.reconcile.manifests import look_at_manifests
from penstock.specs.documents import Document
from penstock.specs.schema import NoEffect, without_effect


@click.command()
@click.option(
    "-f",
    "--filename",
    "names",
    metavar="FILE|DIR|-",
    multiple=True,
    required=True,
    help="A manifest, a folder of them, or - for standard input.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def validate(names: tuple[str, ...], output: str) -> None:
    """Check manifests, and say what in them has no effect on one machine.

    Nothing is applied, no bucket is asked. All mistakes are shown, each with its line.

    \b
    Example:
      penstock validate -f dataset.yaml
    """
    documents, problems = look_at_manifests(names)
    if output == "json":
        shown: dict[str, Any] = {
            "resources": [_as_json(document) for document in documents],
            "problems": [
                {"where": one.where, "what": one.what, "hint": one.hint} for one in problems
            ],
        }
        click.echo(json.dumps(shown, indent=2))
    else:
        for document in documents:
            for line in _lines(document):
                click.echo(line)
    if problems:
        raise ManifestError.of(problems)


def _lines(document: Document) -> list[str]:
    key = document.resource.key
    elsewhere = "" if key.namespace == "default" else f" in {key.namespace}"
    lines = [f"{key.kind.lower()}/{key.name}{elsewhere}: ok"]
    for reason, paths in _by_reason(without_effect(document.resource)).items():
        lines.append(f"  no effect: {', '.join(paths)} ({reason})")
    return lines


def _by_reason(found: list[NoEffect]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for one in found:
        grouped.setdefault(one.reason, []).append(one.path)
    return grouped


def _as_json(document: Document) -> dict[str, Any]:
    key = document.resource.key
    return {
        "kind": key.kind,
        "namespace": key.namespace,
        "name": key.name,
        "where": document.where(),
        "without_effect": [
            {"path": one.path, "where": document.where(one.path), "reason": one.reason}
            for one in without_effect(document.resource)
        ],
    }
