"""penstock help and version: what --help and --version print, as commands."""

import click

from penstock.errors import OptionError
from penstock.release import __version__


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def help(words: tuple[str, ...]) -> None:  # noqa: A001 (the command's name)
    """Show the help of a command; of all commands without COMMAND.

    \b
    Example:
      penstock help submit pytorch
    """
    root = click.get_current_context().find_root()
    command: click.Command = root.command
    context = root
    for word in words:
        child = command.get_command(context, word) if isinstance(command, click.Group) else None
        if child is None:
            raise OptionError(
                f"{context.command_path} has no command {word!r}",
                hint=f"`penstock help {' '.join(context.command_path.split()[1:])}".rstrip()
                + "` lists what there is",
            )
        names = context.help_option_names
        command = child
        context = click.Context(child, parent=context, info_name=word, help_option_names=names)
    click.echo(command.get_help(context))


@click.command()
@click.option("--short", is_flag=True, help="Only the number.")
def version(short: bool) -> None:
    """Print the version of Penstock.

    \b
    Example:
      penstock version --short
    """
    click.echo(__version__ if short else f"penstock {__version__}")
