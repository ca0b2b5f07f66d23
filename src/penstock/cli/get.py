"""penstock get: declared resources and how they are."""

import sys
import time
from itertools import compress
from typing import Any

import click

from penstock.api.tables import aligned, table
from penstock.cli.declared import kinds_of, namespace_option
from penstock.cli.output import notify, text_of
from penstock.reconcile import live_status
from penstock.reconcile.loop_control import is_running, wake_loop
from penstock.reconcile.state import State
from penstock.specs.kinds import KindInfo, ResourceKey

_WATCH_S = 1.0


@click.command()
@click.argument("kind")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="In every namespace.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "yaml", "json", "name"]),
    default="table",
    show_default=True,
)
@click.option("-w", "--watch", is_flag=True, help="Then a line for each that changes; Ctrl-C ends.")
def get(
    kind: str,
    names: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    output: str,
    watch: bool,
) -> None:
    """Show data sets, runtimes, loads, jobs and other declared resources.

    KIND is datasets, runtimes (all, or one kind like jindoruntimes), dataloads, datamigrates,
    dataprocesses, databackups, jobs, secrets, or all. A job that is named is shown with its
    instances.

    \b
    Example:
      penstock get datasets
      penstock get dataset imagenet -o yaml
      penstock get dataloads -w
      penstock get job resnet
    """
    place = None if all_namespaces else namespace or "default"
    question = _Question(kinds_of(kind, "get", namespace), names, place, output, watch)
    state = State()
    question.answer(state)
    if watch:
        _watch(state, question)


class _Question:
    def __init__(
        self,
        kinds: list[KindInfo],
        names: tuple[str, ...],
        namespace: str | None,
        output: str,
        watch: bool,
    ) -> None:
        self._kinds = [info.kind for info in kinds]
        self._what = f"no {kinds[0].plural} are" if len(kinds) == 1 else "nothing is"
        self._names = names
        self._namespace = namespace
        self._output = output
        # A job that is named is shown with its instances, as `arena get` does.
        is_of_jobs = self._kinds == ["TrainingJob"]
        self._in_detail = is_of_jobs and bool(names) and output == "table" and not watch
        self._printed: dict[str, list[str]] = {}

    def answer(self, state: State) -> None:
        found = self._find(state)
        if self._output in ("yaml", "json"):
            # One that was named is itself; several are a List, as kubectl has it.
            one = len(self._names) == 1 and len(found) == 1
            whole = found[0] if one else {"apiVersion": "v1", "kind": "List", "items": found}
            click.echo(text_of(whole, self._output))
        elif self._output == "name":
            for shown in found:
                click.echo(f"{shown['kind'].lower()}/{shown['metadata']['name']}")
        elif not found:
            place = f" in the namespace {self._namespace}" if self._namespace else ""
            notify(f"{self._what} declared{place}")
        elif self._in_detail:
            from penstock.cli.job_view import details

            click.echo("\n\n".join("\n".join(details(shown)) for shown in found))
        else:
            self._tables(found)

    def changes(self, state: State) -> None:
        """The lines that are not as they were printed last."""
        for kind in self._kinds:
            objects = [one for one in self._find(state) if one["kind"] == kind]
            if not objects:
                continue
            rows = table(objects, kind, wide=self._output == "wide", namespaces=not self._namespace)
            changed = self._remember(objects, rows)
            for has_changed, line in zip(changed, aligned(rows)[1:], strict=True):
                if has_changed:
                    click.echo(line)

    def _remember(self, objects: list[dict[str, Any]], rows: list[list[str]]) -> list[bool]:
        """Notes what is printed of each, but for how long it has been; returns which are not as
        they were."""
        kept = [title not in ("AGE", "DURATION") for title in rows[0]]
        changed: list[bool] = []
        for shown, row in zip(objects, rows[1:], strict=True):
            seen = list(compress(row, kept))
            uid = shown["metadata"]["uid"]
            changed.append(self._printed.get(uid) != seen)
            self._printed[uid] = seen
        return changed

    def _tables(self, found: list[dict[str, Any]]) -> None:
        kinds = [kind for kind in self._kinds if any(one["kind"] == kind for one in found)]
        for number, kind in enumerate(kinds):
            if number:
                click.echo("")
            if len(self._kinds) > 1:
                click.echo(f"# {kind}")
            objects = [one for one in found if one["kind"] == kind]
            rows = table(objects, kind, wide=self._output == "wide", namespaces=not self._namespace)
            for line in aligned(rows):
                click.echo(line)
            self._remember(objects, rows)

    def _find(self, state: State) -> list[dict[str, Any]]:
        stored = state.all(self._kinds, self._namespace)
        if self._names:
            from penstock.api.resources import no_such

            by_name = [one for name in self._names for one in stored if one.key.name == name]
            for name in self._names:
                if not any(one.key.name == name for one in by_name):
                    kind = self._kinds[0] if len(self._kinds) == 1 else "resource"
                    raise no_such(ResourceKey(kind, self._namespace or "any", name))
            stored = by_name
        shown = live_status.show(stored)
        # Someone unmounted it, or the machine was started anew; or who wanted it was killed.
        if any(map(live_status.is_missing, shown)) or (
            live_status.has_work(stored) and not is_running(state.folder)
        ):
            wake_loop(state.folder)
        return shown


def _watch(state: State, question: _Question) -> None:
    try:
        while True:
            sys.stdout.flush()
            time.sleep(_WATCH_S)
            question.changes(state)
    except KeyboardInterrupt:
        return
