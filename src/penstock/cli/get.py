"""penstock get and describe: declared resources and their state."""

import sys
import time
from collections.abc import Sequence
from itertools import compress
from typing import Any

import click

from penstock.api.tables import aligned, table
from penstock.cli.options import all_namespaces_option, find_kinds, namespace_option
from penstock.cli.output import as_text, notify

Json = dict[str, Any]

_WATCH_S = 1.0


@click.command()
@click.argument("kind")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@namespace_option
@all_namespaces_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "yaml", "json", "name"]),
    default="table",
    show_default=True,
)
@click.option("-w", "--watch", is_flag=True, help="Then print each change, until Ctrl-C.")
def get(
    kind: str,
    names: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    output: str,
    watch: bool,
) -> None:
    """List data sets, runtimes, loads, jobs and secrets.

    KIND is datasets, runtimes (all, or one kind like jindoruntimes), dataloads, datamigrates,
    dataprocesses, databackups, jobs, secrets, or all. A job given by name is shown with its
    instances.

    \b
    Example:
      penstock get datasets
      penstock get dataset imagenet -o yaml
      penstock get dataloads -w
      penstock get job resnet
    """
    view = _View(kind, names, None if all_namespaces else namespace or "default", output, watch)
    view.print()
    if not watch:
        return
    try:
        while True:
            sys.stdout.flush()
            time.sleep(_WATCH_S)
            view.print_changes()
    except KeyboardInterrupt:
        return


class _View:
    """The resources that were asked for, and the rows that were printed of them last."""

    def __init__(
        self, kind: str, names: Sequence[str], namespace: str | None, output: str, watch: bool
    ) -> None:
        infos = find_kinds(kind, "get", namespace)
        self._word = kind
        self._kinds = [info.kind for info in infos]
        self._none = f"no {infos[0].plural} are" if len(infos) == 1 else "nothing is"
        self._names = names
        self._namespace = namespace
        self._output = output
        # A job given by name is shown with its instances, as `arena get` does.
        is_of_jobs = self._kinds == ["TrainingJob"]
        self._in_detail = is_of_jobs and bool(names) and output == "table" and not watch
        self._printed: dict[str, list[str]] = {}  # by uid

    def print(self) -> None:
        found = self._find()
        if self._output in ("yaml", "json"):
            # One resource given by name is printed itself; otherwise a List, as by kubectl.
            is_one = len(self._names) == 1 and len(found) == 1
            whole = found[0] if is_one else {"apiVersion": "v1", "kind": "List", "items": found}
            click.echo(as_text(whole, self._output))
        elif self._output == "name":
            for shown in found:
                click.echo(f"{shown['kind'].lower()}/{shown['metadata']['name']}")
        elif not found:
            place = f" in the namespace {self._namespace}" if self._namespace else ""
            notify(f"{self._none} declared{place}")
        elif self._in_detail:
            from penstock.api.jobs import TrainingJob
            from penstock.cli.jobs import details

            click.echo("\n\n".join("\n".join(details(TrainingJob(shown))) for shown in found))
        else:
            self._print_tables(found)

    def print_changes(self) -> None:
        """Print the rows that differ from those printed last."""
        found = self._find()
        for kind in self._kinds:
            objects = [one for one in found if one["kind"] == kind]
            if not objects:
                continue
            rows = self._rows(objects, kind)
            changed = self._remember(objects, rows)
            for has_changed, line in zip(changed, aligned(rows)[1:], strict=True):
                if has_changed:
                    click.echo(line)

    def _find(self) -> list[Json]:
        from penstock.api.resources import get_all

        found = get_all(self._word, *self._names, namespace=self._namespace, start_loop=True)
        return [one.as_dict() for one in found]

    def _print_tables(self, found: list[Json]) -> None:
        kinds = [kind for kind in self._kinds if any(one["kind"] == kind for one in found)]
        for number, kind in enumerate(kinds):
            if number:
                click.echo("")
            if len(self._kinds) > 1:
                click.echo(f"# {kind}")
            objects = [one for one in found if one["kind"] == kind]
            rows = self._rows(objects, kind)
            for line in aligned(rows):
                click.echo(line)
            self._remember(objects, rows)

    def _rows(self, objects: list[Json], kind: str) -> list[list[str]]:
        return table(objects, kind, wide=self._output == "wide", namespaces=not self._namespace)

    def _remember(self, objects: list[Json], rows: list[list[str]]) -> list[bool]:
        """Whether each object's row has changed, apart from its age."""
        compared = [title not in ("AGE", "DURATION") for title in rows[0]]
        changed: list[bool] = []
        for shown, row in zip(objects, rows[1:], strict=True):
            cells = list(compress(row, compared))
            uid = shown["metadata"]["uid"]
            changed.append(self._printed.get(uid) != cells)
            self._printed[uid] = cells
        return changed


@click.command()
@click.argument("kind")
@click.argument("name")
@namespace_option
def describe(kind: str, name: str, namespace: str | None) -> None:
    """Show one resource: spec, status, conditions, events.

    \b
    Example:
      penstock describe dataset imagenet
    """
    from penstock.api import resources

    find_kinds(kind, "describe", namespace)
    click.echo(resources.describe(kind, name, namespace=namespace or "default"))
