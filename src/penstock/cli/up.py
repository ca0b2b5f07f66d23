"""penstock up: everything that is declared, back again."""

import click

from penstock.cli.declared import Progress, namespace_option
from penstock.cli.output import notify, print_error


@click.command()
@click.argument("names", nargs=-1, metavar="[DATASET]...")
@namespace_option
@click.option("--restart", is_flag=True, help="Mount these anew, with all that their specs say.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when it is there.")
def up(names: tuple[str, ...], namespace: str | None, restart: bool, wait: bool) -> int:
    """Bring back what is declared, after a reboot or trouble.

    \b
    Example:
      penstock up
      penstock up --restart imagenet
    """
    from penstock.api import resources as api

    try:
        with Progress() as progress:
            troubles = api.up(
                *names,
                namespace=namespace or "default",
                restart=restart,
                wait=wait,
                tell=progress.pairs,
            )
    except KeyboardInterrupt:
        notify("it goes on without you; `penstock get datasets -w` shows how far it is")
        raise click.exceptions.Abort from None
    for trouble in troubles:
        print_error(f"dataset {trouble.key.name}: {trouble.what}", trouble.hint, trouble.exit_code)
    return max((trouble.exit_code for trouble in troubles), default=0)
