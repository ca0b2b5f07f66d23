"""penstock doctor: what is wrong, slow or stuck, why, and what to do."""

import json
from pathlib import Path

import click

from penstock.cli.declared import namespace_option
from penstock.cli.output import notify


@click.command()
@click.argument("name", required=False)
@namespace_option
@click.option("--limit", default=1000, show_default=True, help="How many hidden objects to list.")
@click.option("-v", "--verbose", is_flag=True, help="Every check, also of what is well.")
@click.option(
    "--bundle",
    metavar="FILE.tar.gz",
    type=click.Path(path_type=Path),
    help="Write a support bundle: report, resources, statistics, logs, the ends of what jobs "
    "printed; no secrets.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def doctor(
    name: str | None,
    namespace: str | None,
    limit: int,
    verbose: bool,
    bundle: Path | None,
    output: str,
) -> int:
    """Say what is wrong, slow or stuck, why, and what to do.

    NAME is a data set, KIND/NAME of another resource, such as job/NAME, or a mount point, of which
    it also lists the objects that cannot be shown as files. Without it: this machine and all that
    is declared or mounted; a job that failed is only noted then. Exits with 2 if something is
    wrong, with 3 if storage cannot be reached.

    \b
    Example:
      penstock doctor
      penstock doctor imagenet
      penstock doctor dataload/warm-imagenet
      penstock doctor job/resnet
      penstock doctor /mnt/imagenet --bundle support.tar.gz
    """
    from penstock.doctor.examination import as_json, as_text, examine, hidden_lines
    from penstock.doctor.findings import exit_code

    report = examine(name, namespace=namespace or "default", limit=limit)
    if bundle is not None:
        from penstock.doctor.bundle import write_bundle

        names = write_bundle(report, bundle)
        notify(f"{bundle}: {', '.join(names)}")
        notify(
            "keys, key ids, tokens and passwords are taken out; names of buckets, and the ends of "
            "what jobs printed, are in it"
        )
    if output == "json":
        click.echo(json.dumps(as_json(report), indent=2))
    else:
        for line in (*as_text(report, verbose=verbose), *hidden_lines(report.hidden, limit)):
            click.echo(line)
    return exit_code(report.findings)
