"""penstock get and describe: declared resources and their state."""

import sys
import time
from collections.abc import Sequence
from itertools import compress
from typing import Any

import click

from penstock.api.jsonpath import column, render
from penstock.api.tables import aligned, table
from penstock.cli.options import all_namespaces_option, find_kinds, namespace_option
from penstock.cli.output import as_text, notify
from penstock.errors import OptionError, did_you_mean

Json = dict[str, Any]

_WATCH_S = 1.0
_FORMS = ("table", "wide", "yaml", "json", "name")
_JSONPATH, _COLUMNS = "jsonpath=", "custom-columns="
_EVENTS = ("events", "event", "ev")


class _OutputForm(click.ParamType[str]):
    """The forms of kubectl that a person writes by hand."""

    name = "form"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "FORM"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in _FORMS or value.startswith((_JSONPATH, _COLUMNS)):
            return value
        hint = f"forms: {', '.join(_FORMS)}, {_JSONPATH}TEMPLATE, {_COLUMNS}TITLE:PATH"
        raise OptionError(f"-o {value}: unknown form", hint=did_you_mean(value, _FORMS, hint))


@click.command()
@click.argument("kind")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@namespace_option
@all_namespaces_option
@click.option(
    "-o",
    "--output",
    type=_OutputForm(),
    default="table",
    show_default=True,
    help="table, wide, yaml, json, name, jsonpath=TEMPLATE or custom-columns=TITLE:PATH,….",
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
    dataprocesses, databackups, jobs, secrets, fluid (all kinds of Fluid), all, or events. A job
    given by name is shown with its instances.

    \b
    Example:
      penstock get datasets
      penstock get dataset imagenet -o yaml
      penstock get dataset imagenet -o jsonpath='{.status.mountPath}'
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
        self._word = kind
        self._of_events = kind.lower() in _EVENTS
        if self._of_events:
            if names:
                raise OptionError("events have no names", hint="penstock describe KIND NAME")
            self._kinds, self._none = ["Event"], "no events are"
        else:
            infos = find_kinds(kind, "get", namespace)
            self._kinds = [info.kind for info in infos]
            self._none = f"no {infos[0].plural} are" if len(infos) == 1 else "nothing is"
        if watch and output.startswith((_JSONPATH, _COLUMNS)):
            raise OptionError("-w prints tables", hint="leave -o out")
        self._names = names
        self._namespace = namespace
        self._output = output
        # A job given by name is shown with its instances, as `arena get` does.
        is_of_jobs = self._kinds == ["TrainingJob"]
        self._in_detail = is_of_jobs and bool(names) and output == "table" and not watch
        self._printed: dict[str, list[str]] = {}  # by uid

    def print(self) -> None:
        found = self._find()
        # One resource given by name is printed itself; otherwise a List, as by kubectl.
        is_one = len(self._names) == 1 and len(found) == 1
        whole = found[0] if is_one else {"apiVersion": "v1", "kind": "List", "items": found}
        if self._output in ("yaml", "json"):
            click.echo(as_text(whole, self._output))
        elif self._output.startswith(_JSONPATH):
            text = render(self._output.removeprefix(_JSONPATH), whole)
            click.echo(text, nl=not text.endswith("\n"))
        elif self._output.startswith(_COLUMNS):
            for line in aligned(_own_columns(self._output.removeprefix(_COLUMNS), found)):
                click.echo(line)
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
        from penstock.api.resources import events, get_all

        if self._of_events:
            return events(namespace=self._namespace)
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
        compared = [title not in ("AGE", "DURATION", "LAST SEEN") for title in rows[0]]
        changed: list[bool] = []
        for shown, row in zip(objects, rows[1:], strict=True):
            cells = list(compress(row, compared))
            uid = shown["metadata"]["uid"]
            changed.append(self._printed.get(uid) != cells)
            self._printed[uid] = cells
        return changed


def _own_columns(columns: str, found: list[Json]) -> list[list[str]]:
    pairs = [one.partition(":") for one in columns.split(",")]
    if not all(title and path for title, _, path in pairs):
        hint = f"write it like {_COLUMNS}NAME:.metadata.name,PHASE:.status.phase"
        raise OptionError(f"-o {_COLUMNS}{columns}: each column is TITLE:PATH", hint=hint)
    cells = [column(path) for _, _, path in pairs]
    titles = [title for title, _, _ in pairs]
    return [titles, *([cell(one) for cell in cells] for one in found)]


@click.command()
@click.argument("kind")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@namespace_option
def describe(kind: str, names: tuple[str, ...], namespace: str | None) -> None:
    """Show resources: spec, status, conditions, events.

    Without NAME, all of that kind.

    \b
    Example:
      penstock describe dataset imagenet
    """
    from penstock.api import resources

    infos = find_kinds(kind, "describe", namespace)
    place = namespace or "default"
    keys = [(kind, name) for name in names]
    if not names:
        keys = [(one.kind, one.name) for one in resources.get_all(kind, namespace=place)]
        if not keys:
            notify(f"no {infos[0].plural} are declared in the namespace {place}")
            return
    texts = [resources.describe(one, name, namespace=place) for one, name in keys]
    click.echo("\n\n\n".join(texts))
