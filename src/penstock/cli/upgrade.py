"""penstock upgrade: another server for a mount that is in use."""

import os
from typing import Any

import click

from penstock.cli.mount import given, with_mount_options
from penstock.cli.output import notify
from penstock.daemon.mount_lifecycle import change_in_place, current_settings
from penstock.daemon.mount_registry import find_note, resolve_mountpoint
from penstock.environment import CLOUDS
from penstock.mount_options import change_settings


@click.command()
@click.argument("mountpoint")
@with_mount_options
def upgrade(mountpoint: str, **options: Any) -> None:
    """Replace the server of a mount that is in use.

    The new one is of this release, with the options given here and the keys of your environment.

    Readers see a pause and nothing else. Options that are not given stay as they are. If the new
    server cannot start, the old one goes on.

    \b
    Example:
      penstock upgrade /mnt/imagenet --threads 64
    """
    path = resolve_mountpoint(mountpoint)
    wanted = change_settings(current_settings(path), given(options))
    pause_s = change_in_place(path, wanted, environment=_credentials())
    notify(
        f"{path} is served by a new server (pid {find_note(path).server_pid}); "
        f"readers waited for {pause_s * 1000:.0f} ms"
    )


def _credentials() -> dict[str, str | None]:
    """The keys of this environment: the new server uses them, since they may have been rotated."""
    found: dict[str, str | None] = {
        name: value for name, value in os.environ.items() if name.startswith(CLOUDS)
    }
    if "AWS_ACCESS_KEY_ID" in found:
        found.setdefault("AWS_SESSION_TOKEN", None)  # the old key's token does not fit the new key
    return found
