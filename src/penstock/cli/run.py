"""penstock run: run a training script unchanged, and tell the mount what it will read."""

import os
import signal
import sys
from pathlib import Path

import click

from penstock.cli.output import print_error

_HOOK = Path(__file__).parent.parent / "integrations" / "hook"
# The exit codes of a shell.
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...]) -> int:
    """Run a training script with planned reads.

    Each PyTorch DataLoader of COMMAND, and of the Python processes that it starts, sends the mount
    the order of each epoch when the epoch begins. What is read, and in which order, is unchanged.
    When the order cannot be predicted, one line says so, and the script runs without a plan.

    To know the order in advance, a copy of each sampler is iterated, up to twice for an epoch. A
    sampler that writes files or changes global variables would notice: set its attribute
    penstock_plan = False, and it is only iterated by the script.

    \b
    Example:
      penstock run -- python train.py --data /mnt/imagenet
      penstock run -- torchrun --nproc-per-node 8 train.py
    """
    paths = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # Python ignores these signals, and COMMAND would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    hint = "`penstock run -- python train.py` runs a script"
    try:
        # exec: signals and the exit code are those of COMMAND.
        os.execvpe(command[0], command, environment)
    except (FileNotFoundError, NotADirectoryError):
        return print_error(f"{command[0]}: no such command", hint, _NOT_FOUND)
    except OSError as error:
        return print_error(f"{command[0]}: {error.strerror}", hint, _NOT_RUNNABLE)
