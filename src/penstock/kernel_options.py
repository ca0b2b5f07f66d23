"""The option names that people know from libfuse, JuiceFS and Alluxio.

Each is honoured, or refused with the reason; none is swallowed.
"""

import re
from typing import Any

from penstock.errors import OptionError
from penstock.units import KIB, MIB, parse_duration, parse_size

_PAGE = 4 * KIB

# What this mount does anyway: saying so changes nothing and is not an error.
ALWAYS = {
    "ro": "a mount is always read-only",
    "kernel_cache": "the kernel always keeps the pages it has read",
    "default_permissions": "the kernel always checks modes",
    "async_read": "reads are always sent in parallel",
    "nosuid": "always set",
    "nodev": "always set",
    "noatime": "always set",
}

REFUSED = {
    "rw": "data sets are mounted read-only",
    "direct_io": "it would turn the page cache off, which is what makes reads fast",
    "auto_cache": "pages are dropped by version, when the object changes; mtimes do not decide",
    "sync_read": "it would send one read at a time",
    "auto_unmount": "`penstock umount` or SIGTERM unmounts; a dead mount is cleared by umount",
    "allow_root": "say allow_other, or nothing",
    "subtype": "it is always penstock",
    "big_writes": "nothing is written",
    "writeback_cache": "nothing is written",
    "max_write": "nothing is written",
    "max_readahead": "it is set for the mount itself, to 1 MiB",
    "max_background": "it is set to 64",
    "max_idle_threads": "threads are not started and ended; see --threads",
    "clone_fd": "one descriptor serves all threads",
    "umask": "say --file-mode and --dir-mode",
}


def parse_kernel_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """`-o kernel_cache,ro,max_read=131072` as fields of MountSettings."""
    found: dict[str, Any] = {}
    for word in (word for text in texts for word in text.split(",") if word):
        name, has_value, value = word.partition("=")
        if name in REFUSED:
            raise OptionError(f"-o {name}: refused: {REFUSED[name]}")
        if name in ALWAYS and not has_value:
            continue
        if name in _FLAGS and not has_value:
            field_name, value = _FLAGS[name]
            found[field_name] = value
        elif name in _VALUES and has_value:
            field_name, parse = _VALUES[name]
            found[field_name] = parse(value, f"-o {name}")
        else:
            raise OptionError(f"-o {word}: unknown option", hint="known: " + ", ".join(_known()))
    return found


def parse_max_read(text: str, what: str) -> int:
    size = parse_size(text, what=what)
    if not _PAGE <= size <= MIB or size % _PAGE:
        raise OptionError(f"{what}: must be a multiple of 4096, up to 1 MiB")
    return size


def parse_timeout(text: str, what: str) -> float:
    return parse_duration(text, what=what)


def parse_deadline(text: str) -> float:
    seconds = parse_duration(text, what="--deadline")
    if not 1 <= seconds <= 3600:
        raise OptionError("--deadline: from 1s to 1h", hint="what is cached never waits for it")
    return seconds


def parse_owner(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) >= 2**32 - 1:
        raise OptionError(
            f"{what}: {text!r} is not the number of a user or group",
            hint="`id -u` and `id -g` tell",
        )
    return int(text)


def parse_mode(text: str, what: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise OptionError(f"{what}: {text!r} is not an octal mode", hint="write it like 0444")
    return mode


def _text(value: str, _what: str) -> str:
    return value


_FLAGS = {
    "allow_other": ("allow_other", True),
    "nonempty": ("nonempty", True),
    "no_resend": ("kernel_resend", False),
}
_VALUES = {
    "max_read": ("max_read_bytes", parse_max_read),
    "attr_timeout": ("attr_timeout_s", parse_timeout),
    "entry_timeout": ("entry_timeout_s", parse_timeout),
    "uid": ("uid", parse_owner),
    "gid": ("gid", parse_owner),
    "fsname": ("name", _text),
}


def known_names() -> frozenset[str]:
    """Those that are acted on."""
    return frozenset((*_FLAGS, *_VALUES))


def _known() -> list[str]:
    return sorted([*ALWAYS, *_FLAGS, *(f"{name}=…" for name in _VALUES)])
