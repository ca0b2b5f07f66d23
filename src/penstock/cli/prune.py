"""penstock prune: training jobs that have ended are forgotten."""

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from penstock.cli.declared import Progress, namespace_option
from penstock.cli.job_view import KIND, phase_of
from penstock.cli.output import notify
from penstock.jobs.job_status import ENDED

if TYPE_CHECKING:
    from penstock.reconcile.snapshot import Stored


@click.command()
@click.option(
    "-s", "--since", metavar="DURATION", help="Only those that ended so long ago, or longer: 7d."
)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="In every namespace.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing; without a terminal nothing is asked.")
def prune(since: str | None, namespace: str | None, all_namespaces: bool, yes: bool) -> None:
    """Remove training jobs that have ended, and their logs.

    \b
    Example:
      penstock prune --since 7d
    """
    from penstock.api import resources as api
    from penstock.reconcile.state import State
    from penstock.units import parse_duration

    since_s = 0.0 if since is None else parse_duration(since, what="--since")
    state = State()
    place = None if all_namespaces else namespace or "default"
    jobs = [one for one in state.all([KIND], place) if _ended_for(one, since_s)]
    if not jobs:
        notify("no job has ended" + (f" {since} ago or earlier" if since else ""))
        return
    names = ", ".join(one.key.name for one in jobs)
    if not yes and sys.stdin.isatty():
        click.confirm(f"remove {names}, with their logs?", abort=True, err=True)
    with Progress() as progress:
        progress.draw("deleting")
        api.delete_keys(state, [one.key for one in jobs], force=False, wait=True)
    for one in jobs:
        click.echo(f"trainingjob/{one.key.name} deleted")


def _ended_for(job: "Stored", since_s: float) -> bool:
    if phase_of(job.status) not in ENDED or job.deleting is not None:
        return False
    ended = job.status.get("completionTime")
    if ended is None:
        return not since_s
    return time.time() - datetime.fromisoformat(ended).timestamp() >= since_s
