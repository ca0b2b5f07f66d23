"""The options of a mount by their long names, and the settings that they make: for the command line
and for declared mounts alike.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.blocks import UNIT_BYTES
from penstock.cache.policy import POLICIES
from penstock.cache.tier import TierSpec, parse_quota, parse_tier
from penstock.catalog.incoming import MOST_FILES
from penstock.errors import OptionError
from penstock.kernel_options import (
    parse_deadline,
    parse_kernel_options,
    parse_mode,
    parse_owner,
    parse_timeout,
)
from penstock.mounttable import filesystem_type
from penstock.paths import default_cache_dir
from penstock.settings import (
    BASE_MEMORY_BYTES,
    MEMORY_A_BUFFERED_BYTE,
    MODES,
    MountSettings,
    Part,
)
from penstock.store.connect import StoreOptions
from penstock.store.versions import WAYS
from penstock.units import GIB, KIB, MIB, format_size, parse_duration, parse_size

_MOST_WORKERS = 32
_TRUE, _FALSE = ("true", "yes", "1", ""), ("false", "no", "0")


@dataclass(frozen=True, slots=True)
class Option:
    """What an option takes, before its text is looked at more closely."""

    default: Any = None
    choices: tuple[str, ...] = ()
    least: int | None = None  # a whole number, from here
    most: int | None = None
    flag: bool = False
    several: bool = False


OPTIONS: Final[Mapping[str, Option]] = {
    "mode": Option("auto", choices=MODES),
    "refresh": Option("10m"),
    "endpoint": Option(),
    "region": Option(),
    "anonymous": Option(flag=True),
    "manifest": Option(),
    "deadline": Option("60s"),
    "verify-store": Option("auto", choices=WAYS),
    "cache-dir": Option(several=True),
    "cache-size": Option(),
    "tier": Option(several=True),
    "no-cache": Option(flag=True),
    "policy": Option("keep", choices=tuple(sorted(POLICIES))),
    "block-size": Option("8MiB"),
    "prefetch": Option(4, least=0, most=256),
    "buffer-size": Option("256MiB"),
    "page-cache": Option(),
    "memory": Option("1GiB"),
    "threads": Option(32, least=2, most=512),
    "workers": Option("auto"),
    "attr-cache": Option(),
    "entry-cache": Option(),
    "uid": Option(),
    "gid": Option(),
    "file-mode": Option("0444"),
    "dir-mode": Option("0555"),
    "max-files": Option(MOST_FILES, least=1),
    "watchdog": Option("30s"),
    "give-up": Option("5m"),
    "grace": Option("30s"),
    "allow-other": Option(flag=True),
    "o": Option(several=True),
}


def read_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Options that were written as text, by their long names, as the values that `make_settings`
    takes; all others as they are by default. Checks what click checks on the command line."""
    options = {name.replace("-", "_"): _default(option) for name, option in OPTIONS.items()}
    for name, text in texts.items():
        options[name.replace("-", "_")] = _value(name, OPTIONS[name], text.strip())
    return options


def _default(option: Option) -> Any:
    if option.several:
        return ()
    return False if option.flag else option.default


def _value(name: str, option: Option, text: str) -> Any:
    if option.flag:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise OptionError(f"--{name}: {text!r} is neither true nor false")
        return text.lower() in _TRUE
    if option.choices and text not in option.choices:
        raise OptionError(f"--{name}: {text!r} is not one of {', '.join(option.choices)}")
    if option.least is not None:
        most = 2**63 if option.most is None else option.most
        valid = re.fullmatch(r"[0-9]{1,19}", text) is not None
        if not valid or not option.least <= int(text) <= most:
            bounds = f"from {option.least}" + (f" to {option.most}" if option.most else "")
            raise OptionError(f"--{name}: {text!r} is not a whole number {bounds}")
        return int(text)
    if option.several:
        return tuple(text.split())
    return Path(text) if name == "manifest" else text


def make_settings(
    parts: tuple[Part, ...],
    mountpoint: Path,
    options: Mapping[str, Any],
    tiers: tuple[TierSpec, ...] | None = None,
) -> MountSettings:
    """`options` has every name of OPTIONS, with dashes as underscores. `tiers` are taken instead of
    what the options say of them."""
    words = parse_kernel_options(options["o"])
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
    refresh = options["refresh"]
    refresh_s = None if refresh == "never" else parse_duration(refresh, what="--refresh")
    if refresh_s is not None and refresh_s < 1:
        raise OptionError(
            "--refresh: at least 1s", hint="`never` and `penstock refresh` list on demand"
        )
    watchdog_s = parse_duration(options["watchdog"], what="--watchdog")
    if watchdog_s < 1:
        raise OptionError("--watchdog: at least 1s")
    return MountSettings(
        parts=parts,
        mountpoint=mountpoint,
        tiers=_tiers(options) if tiers is None else tiers,
        policy=options["policy"],
        mode=options["mode"],
        refresh_s=refresh_s,
        block_bytes=block,
        buffer_bytes=min(buffer, (memory - BASE_MEMORY_BYTES) // MEMORY_A_BUFFERED_BYTE),
        prefetch_blocks=options["prefetch"],
        page_cache_bytes=_page_cache(options["page_cache"]),
        threads=options["threads"],
        workers=_workers(options["workers"]),
        memory_bytes=memory,
        max_files=options["max_files"],
        watchdog_s=watchdog_s,
        give_up_s=parse_duration(options["give_up"], what="--give-up"),
        grace_s=parse_duration(options["grace"], what="--grace"),
        file_mode=parse_mode(options["file_mode"], "--file-mode"),
        dir_mode=parse_mode(options["dir_mode"], "--dir-mode"),
        **words,
    )


def store_options(options: Mapping[str, Any]) -> StoreOptions:
    return StoreOptions(
        options["endpoint"],
        options["region"],
        options["anonymous"],
        options["manifest"],
        parse_deadline(options["deadline"]),
        options["verify_store"],
    )


def _page_cache(text: str | None) -> int | None:
    return None if text is None else parse_size(text, what="--page-cache", bare_unit=MIB)


def _workers(text: str) -> int | None:
    if text == "auto":
        return None
    if not re.fullmatch(r"[0-9]{1,2}", text) or not 1 <= int(text) <= _MOST_WORKERS:
        raise OptionError(
            f"--workers: {text!r} is neither auto nor a whole number from 1 to {_MOST_WORKERS}"
        )
    return int(text)


def _tiers(options: Mapping[str, Any]) -> tuple[TierSpec, ...]:
    directories = [
        Path(os.path.abspath(path))
        for text in options["cache_dir"]
        for path in text.replace(",", ":").split(":")
        if path
    ]
    said = [
        name
        for name in ("--tier", "--cache-dir", "--cache-size", "--no-cache")
        if options[name.strip("-").replace("-", "_")]
    ]
    for first, second in (
        ("--tier", "--cache-dir"),
        ("--tier", "--cache-size"),
        ("--no-cache", "--tier"),
        ("--no-cache", "--cache-dir"),
        ("--no-cache", "--cache-size"),
    ):
        if first in said and second in said:
            raise OptionError(f"{first} and {second} exclude each other")
    if options["no_cache"]:
        return ()
    if options["tier"]:
        return tuple(map(parse_tier, options["tier"]))
    quota = None
    if options["cache_size"] is not None:
        quota = parse_quota(options["cache_size"], "--cache-size", bare_unit=MIB)
    paths = tuple(directories) or (default_cache_dir(),)
    in_memory = all(path.parent.exists() and filesystem_type(path) == "tmpfs" for path in paths)
    return (TierSpec("MEM" if in_memory else "SSD", paths, quota),)
