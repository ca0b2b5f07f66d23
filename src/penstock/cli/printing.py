"""Objects as `-o` asks for them: kubectl's forms."""

import json
from collections.abc import Sequence
from typing import Any

import click

from penstock.resources.tables import aligned, table

Json = dict[str, Any]


def print_objects(found: Sequence[Json], kind: str, output: str, *, namespaces: bool) -> None:
    if output in ("yaml", "json"):
        click.echo(text_of({"apiVersion": "v1", "kind": "List", "items": list(found)}, output))
    elif output == "name":
        for shown in found:
            click.echo(f"{shown['kind'].lower()}/{shown['metadata']['name']}")
    else:
        for line in aligned(table(found, kind, wide=output == "wide", namespaces=namespaces)):
            click.echo(line)


def text_of(whole: Any, form: str) -> str:
    if form == "json":
        return json.dumps(whole, indent=2)
    import yaml

    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True).rstrip("\n")
