"""penstock run: a training script that tells the mount what it will read, as it is."""

import os
import signal
import sys
from pathlib import Path

import click

from penstock.cli.output import print_error

_HOOK = Path(__file__).parent.parent / "integrations" / "hook"
_NOT_FOUND, _NOT_RUNNABLE = 127, 126  # a shell's


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...]) -> int:
    """Run a training script whose loaders tell the mount what they will read.

    Each PyTorch DataLoader of COMMAND and of the Python processes that it starts hands the mount
    the order of each epoch when it begins. What is read, and in which order, stays as it is. When
    the order cannot be told in advance, one line says so, and the script runs without.

    \b
    Example:
      penstock run -- python train.py --data /mnt/imagenet
      penstock run -- torchrun --nproc-per-node 8 train.py
    """
    places = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    # Python ignores these, and what is ignored stays so in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # In place of this process: signals and the exit code are the command's own.
        os.execvpe(command[0], command, environment)
    except (FileNotFoundError, NotADirectoryError):
        return print_error(
            f"{command[0]}: no such command",
            "`penstock run -- python train.py` runs a script",
            _NOT_FOUND,
        )
    except OSError as error:
        return print_error(
            f"{command[0]}: {error.strerror}",
            "`penstock run -- python train.py` runs a script",
            _NOT_RUNNABLE,
        )
