"""penstock bench report and compare: reports from results. Two commands of the group `bench`.

The reporting itself is imported when a command runs, so that `penstock bench --help` needs none.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.output import notify
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.bench.reporting import Comparison

_RUN = click.Path(path_type=Path)


@click.command("report")
@click.argument("folder", metavar="DIR", type=_RUN)
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    multiple=True,
    type=_RUN,
    help="Write only this: .html, .md or .json; repeatable. [all three, in DIR]",
)
def report(folder: Path, outputs: tuple[Path, ...]) -> int:
    """Write the report of a benchmark run: a web page, Markdown, JSON.

    DIR is what `penstock bench run` wrote. The page is one self-contained file. An experiment that
    did not prove what it claims is listed, and no figure uses it. The verdict goes to stderr, the
    paths to stdout. Exits with 2 if no experiment has a result; the report then shows why.

    \b
    Example:
      penstock bench report bench-results/seed-001-20260101-120000
      penstock bench report bench-results/seed-001-20260101-120000 -o /tmp/report.html
    """
    _require_libraries()
    from penstock.bench.reporting.page import NAMES, write_one
    from penstock.bench.reporting.summary import summary_of
    from penstock.bench.reporting.tables import clean

    summary = summary_of(folder)
    for path in outputs or tuple(folder / name for name in NAMES):
        write_one(summary, path)
        click.echo(path)
    notify(clean(summary.verdict.sentence))
    for group in summary.run.left_out_alike():
        count = "" if len(group) == 1 else f" ({len(group)} experiments)"
        notify(clean(f"left out: {group[0].arm.label}, {group[0].why_not}{count}"))
    if not summary.run.results:
        notify(f"penstock: {folder}: no experiment has a result")
        notify("hint: `penstock bench run --resume` continues a run; its logs are in logs/")
        return 2
    return 0


@click.command("compare")
@click.argument("a", type=_RUN)
@click.argument("b", type=_RUN)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "md"]),
    default="table",
    show_default=True,
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Compare different data sets or machines too; the result starts with a warning.",
)
def compare(a: Path, b: Path, output: str, anyway: bool) -> None:
    """Show where run B is faster or slower than run A.

    Arms are compared in the settings that both runs have. Only a difference that the repeats can
    show is called one (Welch's t test on logarithms, at 5%, corrected for the number of rows).
    Runs of different data sets or machines are refused.

    \b
    Example:
      penstock bench compare bench-results/before bench-results/after
      penstock bench compare bench-results/before bench-results/after -o md
    """
    _require_libraries()
    from penstock.bench.reporting import compare as compare_runs

    found = compare_runs(a, b, anyway=anyway)
    for warning in found.warnings:
        notify(f"WARNING: not like with like: {warning}")
    if output == "json":
        click.echo(json.dumps(found.to_json(), indent=2))
    elif output == "md":
        click.echo(found.to_markdown(), nl=False)
    else:
        _print_table(found)


def _require_libraries() -> None:
    try:
        import_module("penstock.bench.reporting")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed, and reports need it",
            hint="in a checkout of Penstock: pip install '.[bench]'",
        ) from error


def _print_table(found: "Comparison") -> None:
    from rich.text import Text

    from penstock.bench.reporting.comparing import TEST
    from penstock.bench.reporting.tables import clean, output_console, print_tables

    console = output_console(width=160)
    for warning in found.warnings:
        console.print(Text(clean(f"NOT LIKE WITH LIKE: {warning}"), style="bold red"))
    console.print(Text(clean(f"A: {found.a}\nB: {found.b}")))
    print_tables([found.table], console)
    for change in found.changes:
        console.print(Text(clean(change)))
    console.print(Text(f"{TEST}."))
