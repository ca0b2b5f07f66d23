"""penstock delete: what was declared is taken down again."""

import click

from penstock.cli.declared import Progress, kinds_of, namespace_option
from penstock.errors import NoSuchResource, OptionError
from penstock.specs.kinds import ResourceKey, find_kind


@click.command()
@click.argument("kind", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-f", "--filename", "files", multiple=True, metavar="FILE|DIR|-", help="All that they declare."
)
@namespace_option
@click.option("--force", is_flag=True, help="Also while it is in use: readers get errors.")
@click.option("--ignore-not-found", is_flag=True, help="What is not there is no error.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when it is gone.")
def delete(
    kind: str | None,
    names: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str | None,
    force: bool,
    ignore_not_found: bool,
    wait: bool,
) -> None:
    """Delete what was declared; data sets are unmounted, jobs are ended.

    The cache is cleared unless the runtime says that it is kept; the bucket is never touched.
    Refused while someone uses a data set. A job goes with all its processes and its logs.

    \b
    Example:
      penstock delete dataset imagenet
      penstock delete -f dataset.yaml
      penstock delete job resnet
    """
    from penstock.api import resources as api
    from penstock.reconcile.state import State

    if bool(files) == (kind is not None):
        raise OptionError(
            "say what to delete: -f FILE, or KIND NAME", hint="penstock delete --help"
        )
    if kind is not None:
        kinds_of(kind, "delete", namespace)  # of one that is none, said before anything else
    if kind is not None and not names:
        raise OptionError(f"which {kind}?", hint=f"penstock delete {kind} NAME")
    keys = _keys_of(files, namespace) if files else []
    if kind is not None:
        keys = [ResourceKey(find_kind(kind).kind, namespace or "default", name) for name in names]
    state = State()
    there = [key for key in keys if state.find(key) is not None]
    missing = [key for key in keys if key not in there]
    with Progress() as progress:
        progress.draw("deleting")
        api.delete_keys(state, there, force=force, wait=wait)
    for key in there:
        click.echo(f"{key.kind.lower()}/{key.name} deleted")
    if missing and not ignore_not_found:
        raise NoSuchResource(
            "not there: " + ", ".join(f"{key.kind.lower()} {key.name}" for key in missing),
            hint="--ignore-not-found makes that no error",
        )


def _keys_of(files: tuple[str, ...], namespace: str | None) -> list[ResourceKey]:
    """In the opposite order: who uses something goes before what is used."""
    from penstock.reconcile.manifests import read_manifests

    documents = read_manifests(files, namespace=namespace or "default")
    return [document.resource.key for document in reversed(documents)]
