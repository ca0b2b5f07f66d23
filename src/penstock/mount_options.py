"""Make the settings of a mount from options, for the command line and for manifests alike.

Options arrive as values by their long names (`penstock.settings.OPTIONS`); one that is not given
is absent. `-o` takes the names that people know from libfuse, JuiceFS and Alluxio: each is acted
on, or rejected with the reason; none is ignored in silence.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.cache.tier import TierSpec
from penstock.errors import OptionError
from penstock.mounttable import filesystem_type
from penstock.paths import default_cache_dir
from penstock.settings import (
    BASE_MEMORY_BYTES,
    MEMORY_A_BUFFERED_BYTE,
    OPTION_OF_FIELD,
    OPTIONS,
    STORE_OPTIONS,
    TIER_OPTIONS,
    Change,
    MountSettings,
    Part,
)
from penstock.store.connect import StoreOptions
from penstock.units import format_size

Values = Mapping[str, Any]


def read_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of options that were written as text, as in manifests. A repeatable option
    is a list of words. Raises OptionError."""
    found: dict[str, Any] = {}
    for name, text in texts.items():
        option = OPTIONS[name]
        if option.repeatable:
            found[name] = tuple(option.read(word) for word in text.split())
        else:
            found[name] = option.read(text.strip())
    return found


def make_settings(
    parts: tuple[Part, ...],
    mountpoint: Path,
    options: Values,
    tiers: tuple[TierSpec, ...] | None = None,
) -> MountSettings:
    """Return the settings of a new mount; `tiers` replaces the options of tiers."""
    settings = MountSettings(parts, mountpoint, **_fields(options))
    return _fit_memory(replace(settings, tiers=_tiers(options) if tiers is None else tiers))


def store_options(options: Values) -> StoreOptions:
    return StoreOptions(**_store_fields(options))


def change_settings(current: MountSettings, options: Values) -> MountSettings:
    """Return the settings of a mount in use with the given options changed. Raises OptionError for
    one that only a new mount could change."""
    changed = _fields(options)
    for name, value in changed.items():
        option = OPTION_OF_FIELD[name]
        if option.change is not Change.HAND_OVER and getattr(current, name) != value:
            raise cannot_change(option.label, current.mountpoint)
    store = _store_fields(options)
    for name, value in store.items():
        option = STORE_OPTIONS[name]
        if option.change is not Change.HAND_OVER and any(
            getattr(part.store, name) != value for part in current.parts
        ):
            raise cannot_change(option.title, current.mountpoint)
    changed["parts"] = tuple(
        replace(part, store=replace(part.store, **store)) for part in current.parts
    )
    of_tiers = {option.name for option in TIER_OPTIONS} & options.keys()
    if of_tiers == {"cache-size"}:
        if len(current.tiers) != 1:
            raise OptionError("--cache-size: this mount has several tiers", hint="use --tier")
        changed["tiers"] = (replace(current.tiers[0], quota_bytes=options["cache-size"]),)
    elif of_tiers:
        changed["tiers"] = _tiers(options)
    return _fit_memory(replace(current, **changed))


def cannot_change(what: str, mountpoint: Path) -> OptionError:
    return OptionError(
        f"{what} cannot change while it is mounted",
        hint=f"penstock umount {mountpoint}, and mount it again",
    )


def _fields(options: Values) -> dict[str, Any]:
    """Return the fields of MountSettings that one option each decides. A long option comes before
    the same setting in `-o`."""
    found = parse_kernel_options(options.get("o", ()))
    for name, option in OPTION_OF_FIELD.items():
        if option.name in options:
            found[name] = options[option.name]
    return found


def _store_fields(options: Values) -> dict[str, Any]:
    return {
        name: options[option.name]
        for name, option in STORE_OPTIONS.items()
        if option.name in options
    }


def _fit_memory(settings: MountSettings) -> MountSettings:
    """Check that memory, buffer and blocks fit each other; the buffer shrinks to what memory
    allows."""
    block, memory = settings.block_bytes, settings.memory_bytes
    least = BASE_MEMORY_BYTES + block * MEMORY_A_BUFFERED_BYTE
    if memory < least:
        raise OptionError(
            f"--memory: {format_size(memory)} is not enough for blocks of {format_size(block)}",
            hint=f"give at least {format_size(least)}, or lower --block-size",
        )
    if settings.buffer_bytes < block:
        buffer = format_size(settings.buffer_bytes)
        raise OptionError(
            f"--buffer-size: {buffer} does not hold even one block of {format_size(block)}",
            hint="raise it, or lower --block-size",
        )
    most = (memory - BASE_MEMORY_BYTES) // MEMORY_A_BUFFERED_BYTE
    return replace(settings, buffer_bytes=min(settings.buffer_bytes, most))


_EXCLUSIVE = (
    ("tier", "cache-dir"),
    ("tier", "cache-size"),
    ("no-cache", "tier"),
    ("no-cache", "cache-dir"),
    ("no-cache", "cache-size"),
)


def _tiers(options: Values) -> tuple[TierSpec, ...]:
    for first, second in _EXCLUSIVE:
        if options.get(first) and options.get(second):
            raise OptionError(f"--{first} and --{second} exclude each other")
    if options.get("no-cache"):
        return ()
    if tiers := options.get("tier"):
        return tiers
    directories = tuple(
        Path(os.path.abspath(path))
        for text in options.get("cache-dir", ())
        for path in text.replace(",", ":").split(":")
        if path
    )
    paths = directories or (default_cache_dir(),)
    in_memory = all(path.parent.exists() and filesystem_type(path) == "tmpfs" for path in paths)
    return (TierSpec("MEM" if in_memory else "SSD", paths, options.get("cache-size")),)


# -- the words of -o ---------------------------------------------------------------------

# What this mount does anyway: to give one changes nothing and is not an error.
ALWAYS: Final[Mapping[str, str]] = {
    "ro": "a mount is always read-only",
    "kernel_cache": "the kernel always keeps the pages it has read",
    "default_permissions": "the kernel always checks modes",
    "async_read": "reads are always sent in parallel",
    "nosuid": "always set",
    "nodev": "always set",
    "noatime": "always set",
}

REFUSED: Final[Mapping[str, str]] = {
    "rw": "data sets are mounted read-only",
    "direct_io": "it would turn the page cache off, which is what makes reads fast",
    "auto_cache": "pages are dropped by version, when the object changes; mtimes do not decide",
    "sync_read": "it would send one read at a time",
    "auto_unmount": "`penstock umount` or SIGTERM unmounts; a dead mount is cleared by umount",
    "allow_root": "use allow_other, or nothing",
    "subtype": "it is always penstock",
    "big_writes": "nothing is written",
    "writeback_cache": "nothing is written",
    "max_write": "nothing is written",
    "max_readahead": "it is set for the mount itself, to 1 MiB",
    "max_background": "it is set to 64",
    "max_idle_threads": "threads are not started and ended; see --threads",
    "clone_fd": "each worker has a clone of its own; see --workers",
    "umask": "use --file-mode and --dir-mode",
}

# The fields that a word of `-o` sets, by that word.
_FIELD_OF_WORD: Final[Mapping[str, str]] = {
    option.kernel: name for name, option in OPTION_OF_FIELD.items() if option.kernel
}


def known_names() -> frozenset[str]:
    """The words of `-o` that are acted on."""
    return frozenset(_FIELD_OF_WORD)


def parse_kernel_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return `-o kernel_cache,ro,max_read=131072` as fields of MountSettings."""
    found: dict[str, Any] = {}
    for word in (word for text in texts for word in text.split(",") if word):
        name, has_value, value = word.partition("=")
        if name in REFUSED:
            raise OptionError(f"-o {name}: refused: {REFUSED[name]}")
        if name in ALWAYS and not has_value:
            continue
        field_name = _FIELD_OF_WORD.get(name)
        option = None if field_name is None else OPTION_OF_FIELD[field_name]
        if field_name is None or option is None or option.flag == bool(has_value):
            raise OptionError(f"-o {word}: unknown option", hint="known: " + ", ".join(_known()))
        # A flag that is on by default is named for its opposite: no_resend.
        found[field_name] = (
            not name.startswith("no_") if option.flag else option.read(value, f"-o {name}")
        )
    return found


def _known() -> list[str]:
    options = ((name, OPTION_OF_FIELD[field]) for name, field in _FIELD_OF_WORD.items())
    words = (name if option.flag else f"{name}=…" for name, option in options)
    return sorted([*ALWAYS, *words])
