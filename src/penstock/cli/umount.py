"""penstock umount: the end of a mount, and of its server."""

import click

from penstock.daemon.registry import absolute
from penstock.daemon.stop import stop_mount


@click.command()
@click.argument("mountpoint")
@click.option("--lazy", is_flag=True, help="Detach now; end when the last user is gone.")
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount, and wait until its server has put everything away.

    \b
    Example:
      penstock umount /mnt/imagenet
    """
    stop_mount(absolute(mountpoint), lazy=lazy)
