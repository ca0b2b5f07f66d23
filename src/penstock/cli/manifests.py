"""penstock validate and explain: check manifests, look up their fields.

Imports the models when a command runs: they take 0.1 s, which `penstock --help` need not wait for.
"""

import json
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import output_option
from penstock.errors import ManifestError

if TYPE_CHECKING:
    from penstock.api.manifests import Checked, Explanation


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
@output_option
def validate(names: tuple[str, ...], output: str) -> None:
    """Check manifests, and list fields without effect.

    Applies nothing and asks no store. Shows every mistake with its line, and the fields that are
    accepted but change nothing on one machine.

    \b
    Example:
      penstock validate -f dataset.yaml
    """
    from penstock.api.manifests import check

    checked, problems = check(names)
    if output == "json":
        shown: dict[str, Any] = {
            "resources": [_as_dict(one) for one in checked],
            "problems": [
                {"where": one.where, "what": one.what, "hint": one.hint} for one in problems
            ],
        }
        click.echo(json.dumps(shown, indent=2))
    else:
        for one in checked:
            for line in _lines(one):
                click.echo(line)
    if problems:
        raise ManifestError.of(problems)


def _as_dict(one: "Checked") -> dict[str, Any]:
    return {
        **one.key._asdict(),
        "where": one.where,
        "without_effect": [asdict(field) for field in one.without_effect],
    }


def _lines(one: "Checked") -> list[str]:
    key = one.key
    place = "" if key.namespace == "default" else f" in {key.namespace}"
    lines = [f"{key.kind.lower()}/{key.name}{place}: ok"]
    by_reason: dict[str, list[str]] = {}
    for field in one.without_effect:
        by_reason.setdefault(field.reason, []).append(field.path)
    for reason, paths in by_reason.items():
        lines.append(f"  no effect: {', '.join(paths)} ({reason})")
    return lines


@click.command()
@click.argument("path", required=False)
@click.option("--recursive", is_flag=True, help="Also all fields below it.")
@output_option
def explain(path: str | None, recursive: bool, output: str) -> None:
    """Explain a field of a manifest, and its effect here.

    PATH is a kind or, with dots, a field of it. Without PATH, the kinds are listed.

    \b
    Example:
      penstock explain dataset.spec.mounts
      penstock explain dataload --recursive
    """
    from penstock.api import manifests

    if path is None:
        kinds = manifests.explain_all()
        if output == "json":
            click.echo(json.dumps([asdict(one) for one in kinds], indent=2))
            return
        for one in kinds:
            click.echo(f"{one.kind:<20}{_first_sentence(one.description)}")
        return
    found = manifests.explain(path, recursive=recursive)
    if output == "json":
        click.echo(json.dumps(asdict(found), indent=2))
        return
    for line in _head(found):
        click.echo(line)
    if found.fields:
        click.echo("\nFIELDS:")
    for line in _tree(found, "  ") if recursive else _list(found):
        click.echo(line)


def _head(one: "Explanation") -> list[str]:
    lines = [f"KIND:   {one.kind}"]
    if one.path:
        lines += [f"FIELD:  {one.path}", f"TYPE:   {_type(one)}"]
    else:
        lines.append(f"GROUPS: {', '.join(one.groups)}")
    if one.effect:
        lines.append(f"EFFECT: {one.effect}")
    return [*lines, "", fill(" ".join(one.description.split()), 96)]


def _list(one: "Explanation") -> list[str]:
    lines: list[str] = []
    for field in one.fields:
        lines.append(f"  {field.name}  <{_type(field)}>")
        lines.append(fill(field.description, 92, initial_indent="    ", subsequent_indent="    "))
        if field.effect:
            lines.append(
                fill(field.effect, 92, initial_indent="    ! ", subsequent_indent="      ")
            )
    return lines


def _tree(one: "Explanation", indent: str) -> list[str]:
    lines: list[str] = []
    for field in one.fields:
        effect = f"  ! {field.effect.partition(' (')[0]}" if field.effect else ""
        lines.append(f"{indent}{field.name}  <{_type(field)}>{effect}")
        lines += _tree(field, indent + "  ")
    return lines


def _type(one: "Explanation") -> str:
    return one.type + (", required" if one.required else "")


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."
