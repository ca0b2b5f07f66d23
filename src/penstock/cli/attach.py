"""penstock attach: a shell, or a command, where a training job is."""

import os
import sys

import click

from penstock.cli.declared import namespace_option
from penstock.cli.job_view import chief_of, find_job, named, phase_of, type_option
from penstock.errors import OptionError, UsageError


class _Attach(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise OptionError(
                error.format_message(),
                hint="-- comes before a command that has options: penstock attach NAME -- ls -l",
            ) from None


@click.command(cls=_Attach)
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-i", "--instance", metavar="INSTANCE", help="Which: worker-1, or its whole name.")
@namespace_option
@type_option
def attach(
    name: str, command: tuple[str, ...], instance: str | None, namespace: str | None
) -> None:
    """Open a shell inside a running job, or run COMMAND there.

    It sees what the job sees: its data sets at their paths, its processes. `--` comes before a
    COMMAND that has options; the exit code is the command's own.

    \b
    Example:
      penstock attach resnet
      penstock attach resnet -i worker-1 -- ls -l /data
    """
    from penstock.reconcile.state import State

    state = State()
    job = find_job(state, name, namespace)
    if (phase := phase_of(job.status)) != "RUNNING":
        raise UsageError(
            f"job {name} is {phase}: there is nothing to attach to",
            hint=f"`penstock get job {named(job.key)}` shows how it is",
        )
    from penstock.jobs.attach import attach_argv

    chosen = instance or chief_of(job.status.get("instances") or [])
    argv = attach_argv(state, job, chosen, command)
    sys.stdout.flush()
    sys.stderr.flush()
    # In place of this process: the terminal, signals and the exit code are the command's own.
    os.execvp(argv[0], argv)
