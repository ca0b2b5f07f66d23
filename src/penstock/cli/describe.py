"""penstock describe: all of one resource, and what happened to it."""

import click

from penstock.cli.declared import kinds_of, namespace_option


@click.command()
@click.argument("kind")
@click.argument("name")
@namespace_option
def describe(kind: str, name: str, namespace: str | None) -> None:
    """Show all of one resource: spec, status, conditions, events.

    \b
    Example:
      penstock describe dataset imagenet
    """
    from penstock.api import resources as api

    kinds_of(kind, "describe", namespace)
    click.echo(api.describe(kind, name, namespace=namespace or "default"))
