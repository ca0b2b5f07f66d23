"""penstock doctor, label and serve: what is wrong on this machine, its labels, its service."""

import json
from pathlib import Path

import click

from penstock.cli.options import namespace_option, output_option
from penstock.cli.output import notify
from penstock.errors import OptionError


@click.command()
@click.argument("name", required=False)
@namespace_option
@click.option("--limit", default=1000, show_default=True, help="How many hidden objects to list.")
@click.option("-v", "--verbose", is_flag=True, help="Also list the checks that found no problem.")
@click.option(
    "--bundle",
    metavar="FILE.tar.gz",
    type=click.Path(path_type=Path),
    help="Write a support bundle: report, resources, statistics, logs, the last output of jobs; "
    "no secrets.",
)
@output_option
def doctor(
    name: str | None,
    namespace: str | None,
    limit: int,
    verbose: bool,
    bundle: Path | None,
    output: str,
) -> int:
    """Find what is wrong, slow or stuck, and how to fix it.

    NAME is a data set, KIND/NAME of another resource (such as job/NAME), or a mount point; for a
    mount point, the objects that cannot be shown as files are listed too. Without NAME, this
    machine and all that is declared or mounted is examined; a failed job is then only a note.
    Exits with 2 if something is wrong, with 3 if storage cannot be reached.

    \b
    Example:
      penstock doctor
      penstock doctor imagenet
      penstock doctor dataload/warm-imagenet
      penstock doctor job/resnet
      penstock doctor /mnt/imagenet --bundle support.tar.gz
    """
    from penstock.api.machine import diagnose

    diagnosis = diagnose(name, namespace=namespace or "default", limit=limit)
    if bundle is not None:
        names = diagnosis.write_bundle(bundle)
        notify(f"{bundle}: {', '.join(names)}")
        notify(
            "keys, key ids, tokens and passwords are removed; names of buckets, and the last "
            "output of jobs, are included"
        )
    if output == "json":
        click.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        for line in diagnosis.lines(verbose=verbose):
            click.echo(line)
    return diagnosis.exit_code


@click.command()
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE | KEY-]...")
@output_option
def label(changes: tuple[str, ...], output: str) -> None:
    """Show or change the labels of this machine.

    A data set is bound here only if they meet its nodeAffinity. KEY- removes a label.

    \b
    Example:
      penstock label aliyun.accelerator/nvidia_name=Tesla-V100-SXM2-16GB
    """
    from penstock.api.machine import labels, set_labels

    if changes:
        set_labels(dict(map(_change, changes)))
        return
    found = labels()
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in sorted(found.items()):
        click.echo(f"{name}={value}")


def _change(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if equals and name:
        return name, value
    if text.endswith("-") and len(text) > 1:
        return text[:-1], None
    raise OptionError(f"{text!r}: neither KEY=VALUE nor KEY-", hint="penstock label --help")


@click.command()
@click.option("--unit", is_flag=True, help="Only print a systemd unit that runs this command.")
def serve(unit: bool) -> None:
    """Keep running: schedules, events, lost mounts.

    Optional: every other command starts the loop that it needs, which ends when its work is done.
    Mounts and operations continue when this command ends or is killed.

    \b
    Example:
      penstock serve
      penstock serve --unit > /etc/systemd/system/penstock.service
    """
    from penstock.api import machine

    if unit:
        click.echo(machine.systemd_unit(), nl=False)
        return
    machine.serve(
        ready=lambda folder: notify(f"serving {folder}; Ctrl-C ends, and leaves everything mounted")
    )
