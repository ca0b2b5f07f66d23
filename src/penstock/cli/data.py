"""penstock data list: the data sets that `submit --data` takes, as arena lists volumes."""

import click

from penstock.api.tables import aligned, table
from penstock.cli.arena import GoFlags, cluster_options
from penstock.cli.options import all_namespaces_option, namespace_option
from penstock.cli.output import notify


@click.group()
def data() -> None:
    """List the data sets that jobs can use.

    \b
    Example:
      penstock data list
    """


@data.command("list", cls=GoFlags)
@namespace_option
@all_namespaces_option
@cluster_options
def list_data(namespace: str | None, all_namespaces: bool) -> None:
    """List the data sets that `penstock submit --data` takes, in arena's columns.

    \b
    Example:
      penstock data list
      penstock data list -A
    """
    from penstock.api.resources import get_all

    place = None if all_namespaces else namespace or "default"
    found = [one.as_dict() for one in get_all("Dataset", namespace=place, start_loop=True)]
    if not found:
        notify("no data sets are declared" + (f" in the namespace {place}" if place else ""))
        return
    ages = [row[-1] for row in table(found, "Dataset", wide=False, namespaces=False)][1:]
    rows = [["NAME", "ACCESSMODE", "DESCRIPTION", "OWNER", "AGE"]]
    for one, age in zip(found, ages, strict=True):
        notes: dict[str, str] = one["metadata"].get("annotations") or {}
        described, owner = notes.get("description", ""), notes.get("owner", "")
        rows.append([one["metadata"]["name"], "ReadOnlyMany", described, owner, age])
    if place is None:
        spaces = ["NAMESPACE", *(one["metadata"]["namespace"] for one in found)]
        rows = [[space, *row] for space, row in zip(spaces, rows, strict=True)]
    for line in aligned(rows):
        click.echo(line)
