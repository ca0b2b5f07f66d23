"""penstock label: what this machine is, for the nodeAffinity of data sets."""

import json

import click

from penstock.errors import OptionError


@click.command()
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE | KEY-]...")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def label(changes: tuple[str, ...], output: str) -> None:
    """Show or change the labels of this machine.

    A data set whose nodeAffinity they do not meet is not bound here. KEY- takes a label away.

    \b
    Example:
      penstock label aliyun.accelerator/nvidia_name=Tesla-V100-SXM2-16GB
    """
    from penstock.reconcile.loop_control import wake_loop
    from penstock.reconcile.node_affinity import this_node
    from penstock.reconcile.state import State

    state = State()
    if changes:
        state.set_labels(dict(map(_change, changes)))
        wake_loop(state.folder)
        return
    labels = this_node(state.labels()).labels
    if output == "json":
        click.echo(json.dumps(labels, indent=2))
        return
    for name, value in sorted(labels.items()):
        click.echo(f"{name}={value}")


def _change(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if equals and name:
        return name, value
    if text.endswith("-") and len(text) > 1:
        return text[:-1], None
    raise OptionError(f"{text!r}: neither KEY=VALUE nor KEY-", hint="penstock label --help")
