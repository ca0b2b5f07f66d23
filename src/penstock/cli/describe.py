"""penstock describe: all of one resource, and what happened to it."""

import click

from penstock.cli.declared import namespace_option


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
    from penstock import api

    click.echo(api.describe(kind, name, namespace=namespace or "default"))
