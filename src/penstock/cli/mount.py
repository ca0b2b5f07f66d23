"""penstock mount: a bucket as a read-only directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock.cli.output import Listing, notify
from penstock.daemon.registry import absolute, clear_dead_mount
from penstock.daemon.start import become_supervisor, start_supervisor
from penstock.mount_options import OPTIONS as KNOWN
from penstock.mount_options import make_settings, store_options
from penstock.settings import MountSettings, Part
from penstock.store.source import parse_source

# The options of a mount on the command line: for `mount` and `upgrade` alike.

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _option(name: str, **words: Any) -> Decorator:
    """One of penstock.mount_options, with its default and what it takes."""
    known = KNOWN[name.removeprefix("--")]
    if known.flag:
        words["is_flag"] = True
    if known.several:
        words["multiple"] = True
    if known.choices:
        words["type"] = click.Choice(known.choices)
    elif known.least is not None:
        words["type"] = click.IntRange(known.least, known.most)
    if known.default is not None:
        words |= {"default": known.default, "show_default": True}
    return click.option(name, **words)


OPTIONS: tuple[Decorator, ...] = (
    _option(
        "--mode",
        help="pagecache: small files; passthrough: large ones, straight from the cache.",
    ),
    _option(
        "--refresh",
        metavar="DURATION|never",
        help="How often the bucket is listed again.",
    ),
    _option("--endpoint", metavar="URL", help="Where the store is, if not at its cloud's"),
    _option("--region", help="The bucket's region."),
    _option("--anonymous", help="Sign nothing: a public bucket."),
    _option(
        "--manifest",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="For https: `SIZE PATH` lines instead of a listing.",
    ),
    _option(
        "--deadline",
        metavar="DURATION",
        help="How long a read may wait for a failing store before EIO.",
    ),
    _option(
        "--verify-store",
        help="Compare bodies with their ETags; auto: where TLS does not protect them.",
    ),
    _option(
        "--cache-dir",
        metavar="DIR",
        help="Where data is cached; several, or DIR:DIR, share the size.",
    ),
    _option(
        "--cache-size",
        metavar="SIZE",
        help="How much is cached there. A bare number counts MiB. [default: 90% of free]",
    ),
    _option(
        "--tier",
        metavar="MEDIUM:DIR[,DIR]:SIZE[:high=,low=]",
        help="A tier, fastest first, instead of --cache-dir: MEM, SSD or HDD.",
    ),
    _option("--no-cache", help="Cache nothing on disk; the page cache remains."),
    _option(
        "--policy",
        help="What stays when a tier is full.",
    ),
    _option(
        "--block-size",
        metavar="SIZE",
        help="What one request fetches of a large object. A bare number counts KiB.",
    ),
    _option(
        "--prefetch",
        metavar="N",
        help="Blocks to stay ahead of a sequential reader.",
    ),
    _option(
        "--buffer-size",
        metavar="SIZE",
        help="Memory for blocks on their way. A bare number counts MiB.",
    ),
    _option(
        "--page-cache",
        metavar="SIZE",
        help="Memory of the kernel's that plans and warm-ups may fill ahead of readers.  "
        "[half of what is available]",
    ),
    _option(
        "--memory",
        metavar="SIZE",
        help="What the server and its workers may hold in all. A bare number counts MiB.",
    ),
    _option(
        "--threads",
        help="Reads that may wait for storage at once.",
    ),
    _option(
        "--workers",
        metavar="N|auto",
        help="Processes that answer reads; auto: by the number of cores.",
    ),
    _option("--attr-cache", metavar="DURATION", help="Kernel keeps attributes for. [1d]"),
    _option("--entry-cache", metavar="DURATION", help="Kernel keeps names for. [1d]"),
    _option("--uid", help="Owner of all files. [you]"),
    _option("--gid", help="Group of all files. [yours]"),
    _option("--file-mode", metavar="OCTAL"),
    _option("--dir-mode", metavar="OCTAL"),
    _option(
        "--max-files",
        metavar="N",
        help="A bucket that lists more is refused.",
    ),
    _option(
        "--watchdog",
        metavar="DURATION",
        help="A server that is silent for so long is replaced.",
    ),
    _option(
        "--give-up",
        metavar="DURATION",
        help="Readers get EIO if no server can be started for so long.",
    ),
    _option(
        "--grace",
        metavar="DURATION",
        help="How long readers may go on after SIGTERM.",
    ),
    _option("--allow-other", help="Other users may read it too."),
    click.option(
        "-o",
        multiple=True,
        metavar="OPT[,OPT]",
        help="Options as of libfuse: kernel_cache,ro,max_read=131072,attr_timeout=7200…",
    ),
)


def with_mount_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def read_settings(source: str, mountpoint: str, options: dict[str, Any]) -> MountSettings:
    part = Part("", parse_source(source), store_options(options))
    return make_settings((part,), absolute(mountpoint), options)


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
    """
    settings = read_settings(source, mountpoint, options)
    if clear_dead_mount(settings.mountpoint):
        notify(f"a dead mount was at {settings.mountpoint}: cleared away")
    if not in_background:
        become_supervisor(settings)
    with Listing(settings.shown) as listing:
        lines = start_supervisor(settings, progress=listing.update)
    for line in lines:
        notify(line)
