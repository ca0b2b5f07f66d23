"""penstock list: the training jobs there are."""

import click

from penstock.cli.declared import namespace_option
from penstock.cli.job_view import KIND
from penstock.cli.output import notify

_FORMS = ["table", "wide", "json", "yaml", "name"]


@click.command("list")
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="In every namespace.")
@click.option("-T", "--type", "trainer", metavar="TRAINER", help="Only those of mpi, pytorch, ….")
@click.option("-o", "--output", type=click.Choice(_FORMS), default="table", show_default=True)
def list_jobs(
    namespace: str | None, all_namespaces: bool, trainer: str | None, output: str
) -> None:
    """List training jobs.

    \b
    Example:
      penstock list
      penstock list -A -o json
    """
    from penstock.cli.output import print_objects
    from penstock.cli.submit_flags import ALIASES, TRAINERS
    from penstock.errors import OptionError
    from penstock.reconcile import live_status
    from penstock.reconcile.state import State

    if trainer is not None:
        trainer = ALIASES.get(trainer, trainer)
        if trainer not in TRAINERS:
            raise OptionError(
                f"{trainer!r} is not a trainer", hint=f"trainers: {', '.join(TRAINERS)}"
            )
    place = None if all_namespaces else namespace or "default"
    found = [
        one
        for one in live_status.show(State().all([KIND], place))
        if trainer in (None, one["spec"].get("trainer"))
    ]
    if not found and output in ("table", "wide"):
        notify(
            "no jobs"
            + (f" of {trainer}" if trainer else "")
            + (f" in the namespace {place}" if place else "")
        )
        return
    print_objects(found, KIND, output, namespaces=place is None)


list = list_jobs  # noqa: A001 - a command is found by its name
