"""`penstock`: the table of contents, and the one place where errors become lines and exit codes."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import click

from penstock.cli import arena, configuration
from penstock.cli.completion import is_completing, with_words
from penstock.cli.output import notify, print_error
from penstock.errors import OptionError, PenstockError, did_you_mean
from penstock.release import __version__
from penstock.store.redaction import set_up_logging

# Each command, and the module of penstock.cli that has it. A module is imported when its command
# runs: `stats` then answers in half the time, since it needs neither stores nor caches.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Mount a bucket": {
        "mount": "mount",
        "stats": "mounts",
        "refresh": "mounts",
        "upgrade": "upgrade",
        "umount": "mounts",
    },
    "Declare data sets": {
        "apply": "apply",
        "create": "apply",
        "edit": "edit",
        "get": "get",
        "describe": "get",
        "load": "apply",
        "up": "apply",
        "delete": "apply",
    },
    "Check manifests": {"validate": "manifests", "explain": "manifests"},
    "Fill the cache": {"warm": "warm", "cache": "cache", "shared": "shared"},
    "Train": {
        "submit": "submit",
        "list": "jobs",
        "logs": "logs",
        "top": "top",
        "attach": "jobs",
        "prune": "jobs",
        "data": "data",
        "run": "run",
    },
    "Plan and measure": {"plan": "plan", "bench": "bench"},
    "Operate this machine": {
        "ui": "ui",
        "doctor": "machine",
        "label": "machine",
        "serve": "machine",
    },
    "Get help": {"help": "help", "version": "help", "completion": "completion"},
    "Run on Kubernetes": {"operator": "operator", "node": "node", "server": "server"},
}
_MODULES = {name: module for names in SECTIONS.values() for name, module in names.items()}
# Commands of kubectl that people try, and what to do instead.
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "scale": (
        "one machine serves each data set by one worker: there is nothing to scale",
        "on Kubernetes: kubectl scale; here --workers and the quotas of tieredstore",
    ),
    "rollout": ("data sets are not rolled out", "penstock up --restart NAME"),
    "exec": ("there are no pods here", "penstock attach JOB runs a command inside a job"),
    "patch": ("manifests are not patched", "penstock edit KIND NAME, or penstock apply -f FILE"),
    "replace": ("manifests are not replaced", "penstock apply -f FILE changes what exists"),
}
_HELP_WIDTH = 68  # characters of a command's line that fit beside its name in 80 columns


class Contents(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        module = import_module(f"penstock.cli.{_MODULES[cmd_name]}")
        command = getattr(module, "list_jobs" if cmd_name == "list" else cmd_name)
        return with_words(command, cmd_name) if is_completing() else command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arena.SAME.get(args[0], args[0])
        if ctx.resilient_parsing:  # for completion
            return super().resolve_command(ctx, [name, *args[1:]])
        if name in _ELSEWHERE:
            what, hint = _ELSEWHERE[name]
            raise OptionError(f"{name}: {what}", hint=hint)
        if name not in _MODULES and not name.startswith("-"):
            listed = "`penstock --help` lists the commands"
            near = did_you_mean(name, _MODULES)
            hint = arena.COMMANDS.get(name) or (f"{near} {listed}" if near else listed)
            raise OptionError(f"there is no command {name!r}", hint=hint)
        found = super().resolve_command(ctx, [name, *args[1:]])
        if found[1] is not None:
            ctx.default_map = configuration.defaults(found[1], name, _MODULES)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, one.get_short_help_str(_HELP_WIDTH)) for name, one in commands if one]
                )


# PENSTOCK_VERSION and the like are names that people use: no variable stands for these.
@click.group(
    cls=Contents,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "PENSTOCK",
    },
)
@click.version_option(
    __version__, "-V", "--version", message="penstock %(version)s", allow_from_autoenv=False
)
def app() -> None:
    """Feed training jobs from object storage at the speed of the page cache.

    \b
    Example:
      penstock mount s3://bucket/imagenet /mnt/imagenet -b
      penstock umount /mnt/imagenet
    """


def main() -> None:
    set_up_logging()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; print its error, if any, and return the exit code."""
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
        hint = arena.instead(error) or f"see `{path} --help`"
        return print_error(error.format_message(), hint, 2)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        # click raises an Abort of its own for Ctrl-C; a command's own Abort has said more already.
        if not isinstance(error, click.exceptions.Abort) or error.__cause__ is not None:
            notify("interrupted")
        return 130
    return result if isinstance(result, int) else 0
