"""Options that several commands share, and the kinds of resources that they name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import ManifestError

if TYPE_CHECKING:
    from penstock.api.resources import KindInfo

Command = Callable[..., Any]


def namespace_option(command: Command) -> Command:
    return click.option("-n", "--namespace", metavar="NAME", help="[default: default]")(command)


def all_namespaces_option(command: Command) -> Command:
    option = click.option("-A", "--all-namespaces", is_flag=True, help="In every namespace.")
    return option(command)


def output_option(command: Command) -> Command:
    forms = click.Choice(["table", "json"])
    return click.option("-o", "--output", type=forms, default="table", show_default=True)(command)


def type_option(command: Command) -> Command:
    """Accept arena's -T and ignore it: arena finds a job by trainer and name, Penstock by name."""
    return click.option("-T", "--type", hidden=True, expose_value=False)(command)


def find_kinds(word: str, verb: str, namespace: str | None) -> "list[KindInfo]":
    """The kinds that `word` names; if it names a job instead, as with arena, a hint says so."""
    from penstock.api import resources

    try:
        return resources.find_kinds(word)
    except ManifestError as error:
        job = resources.ResourceKey("TrainingJob", namespace or "default", word)
        if not resources.existing([job]):
            raise
        where = f" -n {namespace}" if namespace not in (None, "default") else ""
        raise ManifestError(
            str(error), hint=f"there is a job of that name: `penstock {verb} job {word}{where}`"
        ) from None
