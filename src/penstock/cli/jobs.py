"""penstock list, attach and prune; and how the commands for training jobs show one."""

import os
import sys
from typing import TYPE_CHECKING

import click

from penstock.api.tables import aligned
from penstock.cli.arena import GoFlags, cluster_options, container_option
from penstock.cli.options import all_namespaces_option, namespace_option, type_option
from penstock.cli.output import StatusLine, notify, print_objects
from penstock.cli.submit_flags import ALIASES, TRAINERS
from penstock.errors import OptionError
from penstock.units import parse_duration

if TYPE_CHECKING:
    from penstock.api.jobs import TrainingJob

_KIND = "TrainingJob"
_FORMS = ["table", "wide", "json", "yaml", "name"]


@click.command("list", cls=GoFlags)
@namespace_option
@all_namespaces_option
@cluster_options
@click.option("-T", "--type", "trainer", metavar="TRAINER", help="Only jobs of mpi, pytorch, ….")
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
    from penstock.api.jobs import jobs

    if trainer is not None:
        trainer = ALIASES.get(trainer, trainer)
        if trainer not in TRAINERS:
            raise OptionError(
                f"{trainer!r} is not a trainer", hint=f"trainers: {', '.join(TRAINERS)}"
            )
    place = None if all_namespaces else namespace or "default"
    found = [
        one.as_dict() for one in jobs(namespace=place) if trainer in (None, one.spec.get("trainer"))
    ]
    if not found and output in ("table", "wide"):
        notify(
            "no jobs"
            + (f" of {trainer}" if trainer else "")
            + (f" in the namespace {place}" if place else "")
        )
        return
    print_objects(found, _KIND, output, namespaces=place is None)


class _Attach(GoFlags):
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
@click.option(
    "-i", "--instance", metavar="INSTANCE", help="An instance: worker-1, or its whole name."
)
@container_option
@namespace_option
@type_option
@cluster_options
def attach(
    name: str, command: tuple[str, ...], instance: str | None, namespace: str | None
) -> None:
    """Open a shell inside a running job, or run COMMAND there.

    COMMAND sees what the job sees: its data sets at their paths, its processes. Write `--` before a
    COMMAND that has options; the exit code is that of COMMAND.

    \b
    Example:
      penstock attach resnet
      penstock attach resnet -i worker-1 -- ls -l /data
    """
    from penstock.api.jobs import job

    found = job(name, namespace=namespace or "default")
    argv = found.attach_command(command, instance=instance)
    sys.stdout.flush()
    sys.stderr.flush()
    # exec: the terminal, signals and the exit code are those of COMMAND.
    os.execvp(argv[0], argv)


@click.command(cls=GoFlags)
@click.option(
    "-s", "--since", metavar="DURATION", help="Only jobs that ended at least this long ago: 7d."
)
@namespace_option
@all_namespaces_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask; without a terminal, never asks.")
@cluster_options
def prune(since: str | None, namespace: str | None, all_namespaces: bool, yes: bool) -> None:
    """Delete training jobs that have ended, and their logs.

    \b
    Example:
      penstock prune --since 7d
    """
    from penstock.api.jobs import jobs
    from penstock.api.resources import delete_keys

    since_s = 0.0 if since is None else parse_duration(since, what="--since")
    place = None if all_namespaces else namespace or "default"
    ended = [one for one in jobs(namespace=place) if one.ended_at_least(since_s)]
    if not ended:
        notify("no job has ended" + (f" {since} ago or earlier" if since else ""))
        return
    names = ", ".join(one.name for one in ended)
    if not yes and sys.stdin.isatty():
        click.confirm(f"delete {names}, with their logs?", abort=True, err=True)
    with StatusLine() as status:
        status.draw("deleting")
        delete_keys(one.key for one in ended)
    for one in ended:
        click.echo(f"trainingjob/{one.name} deleted")


# -- how a job is shown -----------------------------------------------------------------------


def details(job: "TrainingJob") -> list[str]:
    """The lines of `arena get`: the job, and its instances."""
    head: list[tuple[str, object]] = [
        ("Name", job.name),
        ("Status", job.phase),
        ("Namespace", job.namespace),
        ("Priority", job.spec.get("priority", 0)),
        ("Trainer", job.trainer),
        ("Duration", job.duration),
    ]
    if (attempts := job.status.get("attempts", 1)) > 1:
        head.append(("Attempts", attempts))
    if job.message:
        head.append(("Message", job.message))
    for number, one in enumerate(job.spec.get("data") or ()):
        namespace = f"{one['namespace']}/" if one.get("namespace") else ""
        head.append(
            ("" if number else "Data", f"{namespace}{one['dataset']} at {one['mountPath']}")
        )
    if waited := _data_wait(job):
        head.append(("Data wait", waited))
    lines = [f"{title + ':' if title else '':<12}{value}" for title, value in head]
    return [*lines, "", "Instances:", *_instance_lines(job)]


def _data_wait(job: "TrainingJob") -> str:
    """How long the job waited for data, before it began and in its loops; empty if it did not."""
    from penstock.api.tables import age

    found: list[str] = []
    if job.data_wait_s >= 1:
        found.append(f"{age(job.data_wait_s)} until its data sets were ready")
    if (waits := job.loader_waits) is not None:
        found.append(f"{age(waits.waited_s)} in its loops, {waits.share:.1%} of their time")
    return "; ".join(found)


def _instance_lines(job: "TrainingJob") -> list[str]:
    from penstock.api.jobs import elapsed

    if not job.instances:
        return ["  none has been started"]
    titles = ["NAME", "STATUS", "AGE", "IS_CHIEF", "GPU(Requested)", "NODE"]
    rows = [[f"  {titles[0]}", *titles[1:]], ["  ----", *("-" * len(one) for one in titles[1:])]]
    for one in job.instances:
        began = one.get("startTime")
        rows.append(
            [
                f"  {one['name']}",
                one.get("phase") or "PENDING",
                elapsed(began, one.get("completionTime")) if began else "N/A",
                str(one["name"] == job.chief).lower(),
                str(job.requested_gpus(one)),
                job.status.get("node") or "N/A",
            ]
        )
    return aligned(rows)


def wait_for(job: "TrainingJob") -> None:
    """Show the progress of a job until it has ended; raise JobFailed if it failed. Ctrl-C stops
    the waiting, not the job."""
    try:
        with StatusLine() as status:
            job.wait(progress=_Steps(status).update)
    except KeyboardInterrupt:
        from penstock.api.jobs import command_line_name

        name = command_line_name(job.key)
        notify(f"running in the background; check it with `penstock get job {name}`")
        raise click.exceptions.Abort from None
    notify(f"job {job.name} SUCCEEDED after {job.duration}")


class _Steps:
    """On a terminal one line, kept current; elsewhere one line for each step."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status
        self._printed: tuple[str, str] | None = None

    def update(self, job: "TrainingJob") -> None:
        line = f"{job.name}: {job.phase}" + (f", {job.message}" if job.message else "")
        if sys.stderr.isatty():
            self._status.draw(line)
            return
        # Compared by reason: a percentage in the message would make a hundred lines in a log.
        step = (job.phase, job.status.get("reason", ""))
        if step != self._printed and "phase" in job.status and not job.has_ended:
            self._printed = step
            notify(line)
