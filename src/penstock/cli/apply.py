"""penstock apply: what is declared is made real."""

import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.declared import Progress, namespace_option
from penstock.cli.output import notify

if TYPE_CHECKING:
    from penstock.reconcile.admission import Applied


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="Manifests: a file, a folder of them, or - for stdin. May be given several times.",
)
@namespace_option
@click.option("--dry-run", is_flag=True, help="Check everything and say what would change.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Return when data sets are bound."
)
@click.option("--timeout", metavar="DURATION", help="Wait no longer than this.")
def apply(
    files: tuple[str, ...], namespace: str | None, dry_run: bool, wait: bool, timeout: str | None
) -> None:
    """Make what manifests declare real: data sets, runtimes, loads.

    Fluid's YAML as it is. Everything is checked first, and all of it is taken or nothing. Applied
    again, what has changed is changed in place where that can be.

    \b
    Example:
      penstock apply -f dataset.yaml -f runtime.yaml
      penstock get datasets
    """
    from penstock.api import resources as api
    from penstock.reconcile.admission import apply as admit
    from penstock.reconcile.loop_control import wake_loop
    from penstock.reconcile.manifests import read_manifests
    from penstock.reconcile.state import State
    from penstock.reconcile.waiting import wait_for_pairs
    from penstock.units import parse_duration

    timeout_s = None if timeout is None else parse_duration(timeout, what="--timeout")
    documents = read_manifests(files, namespace=namespace or "default")
    state = State()
    applied = admit(state, documents, namespace=namespace, dry_run=dry_run)
    for one in applied:
        click.echo(_line(one) + (" (dry run)" if dry_run else ""))
    if dry_run:
        return
    sys.stdout.flush()
    wake_loop(state.folder)
    if not wait:
        return
    names = api.pairs_of(applied)
    try:
        with Progress() as progress:
            troubles = wait_for_pairs(state, names, timeout_s=timeout_s, tell=progress.pairs)
    except KeyboardInterrupt:
        notify("it goes on without you; `penstock get datasets -w` shows how far it is")
        raise click.exceptions.Abort from None
    for line in api.why_unbound(state, names):
        notify(line)
    api.raise_trouble(troubles)


def _line(one: "Applied") -> str:
    """As kubectl says it: `dataset.data.fluid.io/imagenet created`."""
    group = one.api_version.partition("/")[0] if "/" in one.api_version else ""
    kind = one.key.kind.lower() + (f".{group}" if group else "")
    return f"{kind}/{one.key.name} {one.outcome}"
