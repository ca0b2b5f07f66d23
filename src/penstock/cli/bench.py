"""penstock bench: a plan, a run of it, a report; and what a killed run has left.

`report` and `compare` are in bench_report.py; each is imported when it is asked for.
"""

import json
import shlex
import sys
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.output import notify
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.bench.workflow.run import Outcome

_ELSEWHERE = {"report": "penstock.cli.bench_report", "compare": "penstock.cli.bench_report"}


class _Bench(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["init", "run", "report", "compare", "clean"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            return getattr(import_module(_ELSEWHERE[cmd_name]), cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Bench)
def bench() -> None:
    """Measure Penstock against other systems, from nothing to a report.

    \b
    Example:
      penstock bench init > plan.yaml
      penstock bench run plan.yaml
    """


@bench.command()
def init() -> None:
    """Print a plan to begin with; it runs as it is.

    \b
    Example:
      penstock bench init > plan.yaml
    """
    plan = resources.files("penstock.bench.plans").joinpath("template.yaml")
    click.echo(plan.read_text("utf-8"), nl=False)


@bench.command()
@click.argument("plan", required=False, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("bench-results"),
    show_default=True,
    help="Folder in which the folder of results is made.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Continue a run that was ended; measure only what has no result yet.",
)
@click.option("--dry-run", is_flag=True, help="Check the plan and print what would be done.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a value of the plan, as in dataset.files=300; repeatable.",
)
@click.option("--skip-missing", is_flag=True, help="Leave out arms whose program is not installed.")
@click.option(
    "--medium",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where data and caches lie; /dev/shm if it is large enough, else the folder for temporary "
    "files.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How figures are printed, or what --dry-run would do.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def run(
    plan: Path | None,
    out: Path,
    resume: Path | None,
    dry_run: bool,
    overrides: tuple[str, ...],
    skip_missing: bool,
    medium: Path | None,
    output: str,
    quiet: bool,
) -> int:
    """Run a benchmark, write its results and report, and print its figures.

    The last line of stdout is the folder of results; with -o json stdout is summary.json.
    Everything that the run starts, mounts or makes is gone at the end, however it ends; after a
    kill -9, `penstock bench clean` or the next run removes it.

    \b
    Example:
      penstock bench run plan.yaml --dry-run
      penstock bench run plan.yaml --set dataset.files=300
      penstock bench run --resume bench-results/first-look-20260102-030405
    """
    from penstock.bench.workflow.run import Settings

    if plan is not None and resume is not None:
        raise UsageError("--resume and a plan at once", hint="a resumed run has its own plan")
    if plan is None and resume is None:
        raise UsageError("give a plan, or --resume a run", hint="penstock bench run plan.yaml")
    settings = Settings(out, shlex.join(["penstock", *sys.argv[1:]]), medium, skip_missing)
    if dry_run:
        if plan is None:
            raise UsageError("--dry-run goes with a plan", hint="leave --resume out")
        return _preview(plan, overrides, settings, output)
    from penstock.bench.workflow import run as running
    from penstock.bench.workflow.view import view_for

    view = view_for(quiet=quiet)
    if resume is not None:
        if overrides:
            raise UsageError("--resume and --set at once", hint="a resumed run has its own plan")
        return _print_outcome(running.resume_run(resume.absolute(), settings, view), output)
    assert plan is not None
    from penstock.bench.plans.reading import read_plan_file

    read = read_plan_file(plan, overrides)
    text = plan.read_text() + "".join(f"# --set {one}\n" for one in overrides)
    return _print_outcome(running.run_plan(read, text, settings, view), output)


def _preview(path: Path, overrides: tuple[str, ...], settings: object, output: str) -> int:
    from penstock.bench.plans.reading import read_plan_file
    from penstock.bench.workflow.preview import preview
    from penstock.bench.workflow.run import Settings

    assert isinstance(settings, Settings)
    seen = preview(read_plan_file(path, overrides), settings)
    if output == "json":
        click.echo(json.dumps(seen.to_json(), indent=2))
    else:
        for line in seen.lines():
            click.echo(line)
    seen.found.raise_problems()
    return 0


def _print_outcome(outcome: "Outcome", output: str) -> int:
    total = outcome.done + len(outcome.failed) + outcome.skipped
    notify(f"{outcome.done} of {total} experiments measured")
    for name, why in outcome.invalid:
        notify(f"invalid: {name}: {why}")
    for step in (*outcome.failed, *outcome.trouble):
        notify(f"failed: {step.name}: {step.error}")
        if step.hint:
            notify(f"  hint: {step.hint}")
    if outcome.exit_code:
        notify(f"hint: penstock bench run --resume {shlex.quote(str(outcome.results))}")
    if output == "json" and (outcome.results / "summary.json").exists():
        click.echo((outcome.results / "summary.json").read_text(), nl=False)
        return outcome.exit_code
    if outcome.done:
        from penstock.bench.reporting.summary import summary_of
        from penstock.bench.reporting.tables import output_console

        summary_of(outcome.results).print(output_console())
    click.echo(str(outcome.results))
    return outcome.exit_code


@bench.command()
@click.argument("name", required=False, metavar="[RUN]")
def clean(name: str | None) -> int:
    """Remove what killed runs left: processes, mounts, folders, objects.

    A run that is still alive is left alone. Results stay.

    \b
    Example:
      penstock bench clean
    """
    from penstock.bench.workflow.registry import clean as clean_up

    found = clean_up(wanted=name)
    for one in found:
        if one.what:
            notify(f"{one.run}: {one.what}")
        if one.left:
            notify(f"{one.run}: left: {one.left}")
        if one.hint:
            notify(f"hint: {one.hint}")
    if not found:
        notify("nothing to clean" if name is None else f"no run {name} has left anything")
    return 2 if any(one.left for one in found) else 0
