"""penstock mount: a bucket as a read-only directory."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import click

from penstock.blocks import UNIT_BYTES
from penstock.cache.policy import POLICIES
from penstock.cache.tier import TierSpec, parse_quota, parse_tier
from penstock.cli import background
from penstock.cli.mount_options import (
    parse_deadline,
    parse_kernel_options,
    parse_mode,
    parse_owner,
    parse_timeout,
)
from penstock.cli.talk import Listing, say
from penstock.daemon.places import default_cache_dir
from penstock.daemon.registry import absolute
from penstock.daemon.server import Ready, Server
from penstock.daemon.settings import MODES, MountSettings
from penstock.errors import OptionError, PenstockError
from penstock.mounttable import filesystem_type
from penstock.store.connect import StoreOptions
from penstock.store.source import parse_source
from penstock.store.verified import WAYS
from penstock.units import GIB, KIB, MIB, format_size, parse_duration, parse_size


@click.command()
@click.argument("source")
@click.argument("mountpoint")
@click.option(
    "-b",
    "--background",
    "in_background",
    is_flag=True,
    help="Return when the mount is ready; it is served by a process of its own.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    help="pagecache: small files; passthrough: large ones, straight from the cache.",
)
@click.option(
    "--refresh",
    "refresh_",
    default="10m",
    show_default=True,
    metavar="DURATION|never",
    help="How often the bucket is listed again.",
)
@click.option("--endpoint", metavar="URL", help="Where the store is, if not at its cloud's own.")
@click.option("--region", help="The bucket's region.")
@click.option("--anonymous", is_flag=True, help="Sign nothing: a public bucket.")
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For https: `SIZE PATH` lines instead of a listing.",
)
@click.option(
    "--deadline",
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="How long a read may wait for a failing store before EIO.",
)
@click.option(
    "--verify-store",
    type=click.Choice(WAYS),
    default="auto",
    show_default=True,
    help="Compare bodies with their ETags; auto: where TLS does not protect them.",
)
@click.option(
    "--cache-dir",
    multiple=True,
    metavar="DIR",
    help="Where data is cached; several, or DIR:DIR, share the size.",
)
@click.option(
    "--cache-size",
    metavar="SIZE",
    help="How much is cached there. A bare number counts MiB. [default: 90% of free]",
)
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    metavar="MEDIUM:DIR[,DIR]:SIZE[:high=,low=]",
    help="A tier, fastest first, instead of --cache-dir: MEM, SSD or HDD.",
)
@click.option("--no-cache", is_flag=True, help="Cache nothing on disk; the page cache remains.")
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    default="keep",
    show_default=True,
    help="What stays when a tier is full.",
)
@click.option(
    "--block-size",
    default="8MiB",
    show_default=True,
    metavar="SIZE",
    help="What one request fetches of a large object. A bare number counts KiB.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(0, 256),
    default=4,
    show_default=True,
    metavar="N",
    help="Blocks to stay ahead of a sequential reader.",
)
@click.option(
    "--buffer-size",
    default="256MiB",
    show_default=True,
    metavar="SIZE",
    help="Memory for blocks on their way. A bare number counts MiB.",
)
@click.option(
    "--threads",
    type=click.IntRange(2, 512),
    default=32,
    show_default=True,
    help="Reads that may wait for storage at once.",
)
@click.option("--attr-cache", metavar="DURATION", help="How long the kernel keeps attributes. [1d]")
@click.option("--entry-cache", metavar="DURATION", help="How long the kernel keeps names. [1d]")
@click.option("--uid", help="Owner of all files. [you]")
@click.option("--gid", help="Group of all files. [yours]")
@click.option("--file-mode", default="0444", show_default=True, metavar="OCTAL")
@click.option("--dir-mode", default="0555", show_default=True, metavar="OCTAL")
@click.option("--allow-other", is_flag=True, help="Other users may read it too.")
@click.option(
    "-o",
    "kernel_options",
    multiple=True,
    metavar="OPT[,OPT]",
    help="Options as of libfuse: kernel_cache,ro,max_read=131072,attr_timeout=7200…",
)
def mount(source: str, mountpoint: str, in_background: bool, **options: Any) -> None:
    """Mount a bucket as a read-only directory.

    SOURCE is s3://bucket/prefix, oss://, bos://, gs://, az://, https:// or file:///path.
    Credentials come from the AWS_*, GOOGLE_* and AZURE_* variables, AWS profiles and roles.

    \b
    Example:
      penstock mount s3://bucket/imagenet /mnt/imagenet --cache-dir /nvme/cache --cache-size 200GiB
    """  # fmt: skip
    settings = read_settings(source, mountpoint, options)
    if in_background and not background.is_child():
        background.launch(settings.mountpoint, str(settings.source))
        return
    parent = background.parent()
    server = Server(settings, log_path=parent.log_path if parent is not None else None)
    _unmount_on_signals(server)
    if parent is not None:
        with parent.reporting():
            ready = server.start(parent.progress)
            try:
                parent.ready(describe(settings, ready))
            except PenstockError:
                server.leave()  # whoever asked for it is gone
                server.wait()
                raise
    else:
        with Listing(str(settings.source)) as listing:
            ready = server.start(listing.update)
        for line in describe(settings, ready):
            say(line)
    server.wait()


def describe(settings: MountSettings, ready: Ready) -> list[str]:
    """The lines a user sees once the mount is ready."""
    cache = "no cache"
    if settings.tiers:
        cache = "cache " + ", ".join(
            f"{tier.medium} {':'.join(map(str, tier.paths))}"
            + (f" ({format_size(tier.quota_bytes)})" if tier.quota_bytes else "")
            for tier in settings.tiers
        )
    lines = [
        f"{settings.source} is mounted at {settings.mountpoint}: {ready.files:,} files, "
        f"{format_size(ready.size_bytes)}; mode {ready.mode}; {cache}",
        f"unmount with: penstock umount {settings.mountpoint}",
    ]
    if ready.hidden:
        lines.append(
            f"{ready.hidden:,} objects cannot be shown as files; "
            f"`penstock doctor {settings.mountpoint}` lists them"
        )
    return lines + [f"note: {note}" for note in ready.notes]


def read_settings(source: str, mountpoint: str, options: dict[str, Any]) -> MountSettings:
    words = parse_kernel_options(options["kernel_options"])
    for name, option in (("attr_timeout_s", "attr_cache"), ("entry_timeout_s", "entry_cache")):
        if options[option] is not None:
            words[name] = parse_timeout(options[option], f"--{option.replace('_', '-')}")
    for name in ("uid", "gid"):
        if options[name] is not None:
            words[name] = parse_owner(options[name], f"--{name}")
    if options["allow_other"]:
        words["allow_other"] = True
    block = parse_size(options["block_size"], what="--block-size", bare_unit=KIB)
    if not UNIT_BYTES <= block <= GIB or block % UNIT_BYTES:
        raise OptionError("--block-size: must be a multiple of 128 KiB, up to 1 GiB")
    buffer = parse_size(options["buffer_size"], what="--buffer-size", bare_unit=MIB)
    if buffer < block:
        raise OptionError(
            f"--buffer-size: {format_size(buffer)} hold not even one block of {format_size(block)}",
            hint="raise it, or lower --block-size",
        )
    refresh = options["refresh_"]
    refresh_s = None if refresh == "never" else parse_duration(refresh, what="--refresh")
    if refresh_s is not None and refresh_s < 1:
        raise OptionError(
            "--refresh: at least 1s", hint="`never` and `penstock refresh` list on demand"
        )
    return MountSettings(
        source=parse_source(source),
        mountpoint=absolute(mountpoint),
        store=StoreOptions(
            options["endpoint"],
            options["region"],
            options["anonymous"],
            options["manifest"],
            parse_deadline(options["deadline"]),
            options["verify_store"],
        ),
        tiers=_tiers(options),
        policy=options["policy"],
        mode=options["mode"],
        refresh_s=refresh_s,
        block_bytes=block,
        buffer_bytes=buffer,
        prefetch_blocks=options["prefetch"],
        threads=options["threads"],
        file_mode=parse_mode(options["file_mode"], "--file-mode"),
        dir_mode=parse_mode(options["dir_mode"], "--dir-mode"),
        **words,
    )


def _tiers(options: dict[str, Any]) -> tuple[TierSpec, ...]:
    directories = [
        Path(os.path.abspath(path))
        for text in options["cache_dir"]
        for path in text.replace(",", ":").split(":")
        if path
    ]
    said = [
        name for name in ("--tier", "--cache-dir", "--cache-size", "--no-cache")
        if options[{"--tier": "tiers"}.get(name, name.strip("-").replace("-", "_"))]
    ]  # fmt: skip
    for first, second in (("--tier", "--cache-dir"), ("--tier", "--cache-size"),
                          ("--no-cache", "--tier"), ("--no-cache", "--cache-dir"),
                          ("--no-cache", "--cache-size")):  # fmt: skip
        if first in said and second in said:
            raise OptionError(f"{first} and {second} exclude each other")
    if options["no_cache"]:
        return ()
    if options["tiers"]:
        return tuple(map(parse_tier, options["tiers"]))
    quota = None
    if options["cache_size"] is not None:
        quota = parse_quota(options["cache_size"], "--cache-size", bare_unit=MIB)
    paths = tuple(directories) or (default_cache_dir(),)
    in_memory = all(path.parent.exists() and filesystem_type(path) == "tmpfs" for path in paths)
    return (TierSpec("MEM" if in_memory else "SSD", paths, quota),)


def _unmount_on_signals(server: Server) -> None:
    """From here on a signal is waited for by a thread of its own: a handler would run in the main
    thread, which sleeps in a join and may sleep on."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # threads inherit it

    def wait() -> None:
        while True:
            number = signal.sigwait(signals)
            if not server.leave():
                os._exit(128 + number)  # still listing: there is nothing to put away

    threading.Thread(target=wait, name="signals", daemon=True).start()
