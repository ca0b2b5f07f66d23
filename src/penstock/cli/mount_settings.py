"""The options of a mount, and the settings that they make: for `mount` and `upgrade` alike."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock.blocks import UNIT_BYTES
from penstock.cache.policy import POLICIES
from penstock.cache.tier import TierSpec, parse_quota, parse_tier
from penstock.catalog.incoming import MOST_FILES
from penstock.cli.mount_options import (
    parse_deadline,
    parse_kernel_options,
    parse_mode,
    parse_owner,
    parse_timeout,
)
from penstock.daemon.places import default_cache_dir
from penstock.daemon.registry import absolute
from penstock.daemon.settings import (
    BASE_MEMORY_BYTES,
    MEMORY_A_BUFFERED_BYTE,
    MODES,
    MountSettings,
)
from penstock.errors import OptionError
from penstock.mounttable import filesystem_type
from penstock.store.connect import StoreOptions
from penstock.store.source import parse_source
from penstock.store.verified import WAYS
from penstock.units import GIB, KIB, MIB, format_size, parse_duration, parse_size

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--mode",
        type=click.Choice(MODES),
        default="auto",
        show_default=True,
        help="pagecache: small files; passthrough: large ones, straight from the cache.",
    ),
    click.option(
        "--refresh",
        "refresh_",
        default="10m",
        show_default=True,
        metavar="DURATION|never",
        help="How often the bucket is listed again.",
    ),
    click.option("--endpoint", metavar="URL", help="Where the store is, if not at its cloud's"),
    click.option("--region", help="The bucket's region."),
    click.option("--anonymous", is_flag=True, help="Sign nothing: a public bucket."),
    click.option(
        "--manifest",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="For https: `SIZE PATH` lines instead of a listing.",
    ),
    click.option(
        "--deadline",
        default="60s",
        show_default=True,
        metavar="DURATION",
        help="How long a read may wait for a failing store before EIO.",
    ),
    click.option(
        "--verify-store",
        type=click.Choice(WAYS),
        default="auto",
        show_default=True,
        help="Compare bodies with their ETags; auto: where TLS does not protect them.",
    ),
    click.option(
        "--cache-dir",
        multiple=True,
        metavar="DIR",
        help="Where data is cached; several, or DIR:DIR, share the size.",
    ),
    click.option(
        "--cache-size",
        metavar="SIZE",
        help="How much is cached there. A bare number counts MiB. [default: 90% of free]",
    ),
    click.option(
        "--tier",
        "tiers",
        multiple=True,
        metavar="MEDIUM:DIR[,DIR]:SIZE[:high=,low=]",
        help="A tier, fastest first, instead of --cache-dir: MEM, SSD or HDD.",
    ),
    click.option("--no-cache", is_flag=True, help="Cache nothing on disk; the page cache remains."),
    click.option(
        "--policy",
        type=click.Choice(sorted(POLICIES)),
        default="keep",
        show_default=True,
        help="What stays when a tier is full.",
    ),
    click.option(
        "--block-size",
        default="8MiB",
        show_default=True,
        metavar="SIZE",
        help="What one request fetches of a large object. A bare number counts KiB.",
    ),
    click.option(
        "--prefetch",
        type=click.IntRange(0, 256),
        default=4,
        show_default=True,
        metavar="N",
        help="Blocks to stay ahead of a sequential reader.",
    ),
    click.option(
        "--buffer-size",
        default="256MiB",
        show_default=True,
        metavar="SIZE",
        help="Memory for blocks on their way. A bare number counts MiB.",
    ),
    click.option(
        "--page-cache",
        metavar="SIZE",
        help="Memory of the kernel's that plans and warm-ups may fill ahead of readers.  "
        "[half of what is available]",
    ),
    click.option(
        "--memory",
        default="1GiB",
        show_default=True,
        metavar="SIZE",
        help="What the server may hold in all. A bare number counts MiB.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(2, 512),
        default=32,
        show_default=True,
        help="Reads that may wait for storage at once.",
    ),
    click.option("--attr-cache", metavar="DURATION", help="Kernel keeps attributes for. [1d]"),
    click.option("--entry-cache", metavar="DURATION", help="Kernel keeps names for. [1d]"),
    click.option("--uid", help="Owner of all files. [you]"),
    click.option("--gid", help="Group of all files. [yours]"),
    click.option("--file-mode", default="0444", show_default=True, metavar="OCTAL"),
    click.option("--dir-mode", default="0555", show_default=True, metavar="OCTAL"),
    click.option(
        "--max-files",
        type=click.IntRange(1),
        default=MOST_FILES,
        show_default=True,
        metavar="N",
        help="A bucket that lists more is refused.",
    ),
    click.option(
        "--watchdog",
        default="30s",
        show_default=True,
        metavar="DURATION",
        help="A server that is silent for so long is replaced.",
    ),
    click.option(
        "--give-up",
        default="5m",
        show_default=True,
        metavar="DURATION",
        help="Readers get EIO if no server can be started for so long.",
    ),
    click.option(
        "--grace",
        default="30s",
        show_default=True,
        metavar="DURATION",
        help="How long readers may go on after SIGTERM.",
    ),
    click.option("--allow-other", is_flag=True, help="Other users may read it too."),
    click.option(
        "-o",
        "kernel_options",
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
    memory = parse_size(options["memory"], what="--memory", bare_unit=MIB)
    least = BASE_MEMORY_BYTES + block * MEMORY_A_BUFFERED_BYTE
    if memory < least:
        raise OptionError(
            f"--memory: {format_size(memory)} are not enough for blocks of {format_size(block)}",
            hint=f"give at least {format_size(least)}, or lower --block-size",
        )
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
    watchdog_s = parse_duration(options["watchdog"], what="--watchdog")
    if watchdog_s < 1:
        raise OptionError("--watchdog: at least 1s")
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
        buffer_bytes=min(buffer, (memory - BASE_MEMORY_BYTES) // MEMORY_A_BUFFERED_BYTE),
        prefetch_blocks=options["prefetch"],
        page_cache_bytes=_page_cache(options["page_cache"]),
        threads=options["threads"],
        memory_bytes=memory,
        max_files=options["max_files"],
        watchdog_s=watchdog_s,
        give_up_s=parse_duration(options["give_up"], what="--give-up"),
        grace_s=parse_duration(options["grace"], what="--grace"),
        file_mode=parse_mode(options["file_mode"], "--file-mode"),
        dir_mode=parse_mode(options["dir_mode"], "--dir-mode"),
        **words,
    )


def _page_cache(text: str | None) -> int | None:
    return None if text is None else parse_size(text, what="--page-cache", bare_unit=MIB)


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
