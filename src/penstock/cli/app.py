"""`penstock`: the table of contents, and the one place where errors become lines and exit codes."""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from penstock.cli.output import print_error
from penstock.errors import PenstockError
from penstock.release import __version__
from penstock.store.redaction import LOG_FORMAT, RedactingFormatter

# Each command is a module of its own, imported when it is asked for: `stats` then answers in half
# the time, since it needs neither stores nor caches.
SECTIONS: Sequence[tuple[str, Sequence[str]]] = (
    ("Mount a bucket", ("mount", "umount", "upgrade")),
    (
        "Declare data sets",
        ("apply", "get", "describe", "delete", "load", "validate", "explain", "label"),
    ),
    ("Keep what is declared", ("up", "serve")),
    ("Warm it up", ("warm",)),
    ("Train", ("submit", "list", "logs", "top", "attach", "prune", "run")),
    ("Know before", ("plan",)),
    ("Prove it", ("bench",)),
    ("Look inside", ("stats", "doctor")),
    ("Keep it fresh", ("refresh", "cache")),
)


class Contents(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for _, names in SECTIONS for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"penstock.cli.{cmd_name}")
        return getattr(module, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS:
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, one.get_short_help_str(70)) for name, one in commands if one]
                )


@click.group(cls=Contents, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="penstock %(version)s")
def app() -> None:
    """Feeds training jobs from object storage at the speed of the page cache.

    \b
    Example:
      penstock mount s3://bucket/imagenet /mnt/imagenet -b
      penstock umount /mnt/imagenet
    """


def main() -> None:
    logging.basicConfig(stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    # Ours alone: at DEBUG botocore writes each request's headers into the log, tokens included.
    logging.getLogger("penstock").setLevel(os.environ.get("PENSTOCK_LOG", "WARNING").upper())
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    try:
        result = app.main(list(arguments), prog_name="penstock", standalone_mode=False)
    except PenstockError as error:
        return print_error(str(error), error.hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "penstock"
        return print_error(error.format_message(), f"`{path} --help` shows what there is", 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    return result if isinstance(result, int) else 0
