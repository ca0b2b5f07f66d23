"""penstock explain: what a field of a manifest means, and what it does here."""

import json
from dataclasses import asdict
from textwrap import fill

import click

from penstock.specs.explain import Explanation, explain_all
from penstock.specs.explain import explain as look_up


@click.command()
@click.argument("path", required=False)
@click.option("--recursive", is_flag=True, help="Everything below it, too.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def explain(path: str | None, recursive: bool, output: str) -> None:
    """Say what a field of a manifest means, and whether it has an effect here.

    PATH is a kind and, with dots, a field of it. Without it, the kinds are listed.

    \b
    Example:
      penstock explain dataset.spec.mounts
      penstock explain dataload --recursive
    """
    if path is None:
        kinds = explain_all()
        if output == "json":
            click.echo(json.dumps([asdict(one) for one in kinds], indent=2))
            return
        for one in kinds:
            click.echo(f"{one.kind:<20}{_first_sentence(one.description)}")
        return
    found = look_up(path, recursive=recursive)
    if output == "json":
        click.echo(json.dumps(asdict(found), indent=2))
        return
    for line in _head(found):
        click.echo(line)
    if found.fields:
        click.echo("\nFIELDS:")
    for line in _tree(found, "  ") if recursive else _list(found):
        click.echo(line)


def _head(one: Explanation) -> list[str]:
    lines = [f"KIND:   {one.kind}"]
    if one.path:
        lines += [f"FIELD:  {one.path}", f"TYPE:   {_type(one)}"]
    else:
        lines.append(f"GROUPS: {', '.join(one.groups)}")
    if one.effect:
        lines.append(f"EFFECT: {one.effect}")
    return [*lines, "", fill(" ".join(one.description.split()), 96)]


def _list(one: Explanation) -> list[str]:
    lines: list[str] = []
    for field in one.fields:
        lines.append(f"  {field.name}  <{_type(field)}>")
        lines.append(fill(field.description, 92, initial_indent="    ", subsequent_indent="    "))
        if field.effect:
            lines.append(
                fill(field.effect, 92, initial_indent="    ! ", subsequent_indent="      ")
            )
    return lines


def _tree(one: Explanation, indent: str) -> list[str]:
    lines: list[str] = []
    for field in one.fields:
        effect = f"  ! {field.effect.partition(' (')[0]}" if field.effect else ""
        lines.append(f"{indent}{field.name}  <{_type(field)}>{effect}")
        lines += _tree(field, indent + "  ")
    return lines


def _type(one: Explanation) -> str:
    return one.type + (", required" if one.required else "")


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."
