"""penstock mount: a bucket as a read-only directory."""

from typing import Any

import click

from penstock.cli.mount_settings import read_settings, with_mount_options
from penstock.cli.talk import Listing, say
from penstock.daemon.registry import clear_dead_mount
from penstock.daemon.start import become_supervisor, start_supervisor


@click.command()
@click.argument("source")
@click.argument("mountpoint")
@click.option(
    "-b",
    "--background",
    "in_background",
    is_flag=True,
    help="Return when the mount is ready; it is served by processes of its own.",
)
@with_mount_options
def mount(source: str, mountpoint: str, in_background: bool, **options: Any) -> None:
    """Mount a bucket as a read-only directory.

    SOURCE is s3://bucket/prefix, oss://, bos://, gs://, az://, https:// or file:///path.
    Credentials come from the AWS_*, GOOGLE_* and AZURE_* variables, AWS profiles and roles.

    \b
    Example:
      penstock mount s3://bucket/imagenet /mnt/imagenet --cache-dir /nvme/cache --cache-size 200GiB
    """  # fmt: skip
    settings = read_settings(source, mountpoint, options)
    if clear_dead_mount(settings.mountpoint):
        say(f"a dead mount was at {settings.mountpoint}: cleared away")
    if not in_background:
        become_supervisor(settings)
    with Listing(settings.shown) as listing:
        lines = start_supervisor(settings, progress=listing.update)
    for line in lines:
        say(line)
