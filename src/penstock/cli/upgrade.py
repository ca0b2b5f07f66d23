"""penstock upgrade: replace the server of a mount that is in use."""

from typing import Any

import click

from penstock.api import mounts
from penstock.cli.mount import given, with_mount_options
from penstock.cli.output import notify


@click.command()
@click.argument("mountpoint")
@with_mount_options
def upgrade(mountpoint: str, **options: Any) -> None:
    """Replace the server of a mount that is in use.

    The new server runs the installed release, with the options given here and the keys of your
    environment; other options stay as they are. Readers see only a pause. If the new server cannot
    start, the old one continues.

    \b
    Example:
      penstock upgrade /mnt/imagenet --threads 64
    """
    upgraded = mounts.upgrade(mountpoint, given(options))
    notify(
        f"{upgraded.mountpoint} is served by a new server (pid {upgraded.server_pid}); "
        f"readers waited for {upgraded.pause_s * 1000:.0f} ms"
    )
