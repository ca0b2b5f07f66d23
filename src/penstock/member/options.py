"""What a user asks of a member, and memcached's command line for it. Pure."""

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.cache.members import DEFAULT_PORT
from penstock.errors import OptionError
from penstock.units import GIB, MIB, format_size, parse_size

LOOPBACK = "127.0.0.1"
LEAST_VERSION = (1, 6)  # the meta protocol
_LEAST_MEMORY_BYTES = 64 * MIB
_LEAST_FLASH_BYTES = GIB
# The tier stores blocks of up to 512 KiB with 100 bytes of its own; memcached's limit is 1 MiB.
_ITEM_LIMIT = "2m"
# Each process of each mount keeps up to 16 connections to a member.
_CONNECTIONS = 8192
_OWN_FILES = 64  # memcached's own descriptors, beside its connections
_MOST_THREADS = 16
# extstore counts its pages in 16 bits.
_MOST_FLASH_PAGES = 60_000
_FLASH_PAGE_MIB = 64


@dataclass(frozen=True, slots=True)
class Flash:
    folder: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemberOptions:
    memory_bytes: int
    flash: Flash | None = None
    listen: str = LOOPBACK
    port: int = DEFAULT_PORT
    threads: int | None = None  # None: one for each core

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.listen).is_loopback

    @property
    def listens_everywhere(self) -> bool:
        return ipaddress.ip_address(self.listen).is_unspecified

    def encode(self) -> dict[str, Any]:
        return asdict(self)


def decode(encoded: Mapping[str, Any]) -> MemberOptions:
    """Return what `encode` was called on. Raises KeyError or TypeError for anything else."""
    flash: Mapping[str, Any] | None = encoded["flash"]
    options = MemberOptions(**encoded)
    return options if flash is None else replace(options, flash=Flash(**flash))


def parse_options(
    *, memory: str, flash: str | None, listen: str, port: int, threads: int | None
) -> MemberOptions:
    """Return the options that these texts of the command line mean, or raise OptionError."""
    memory_bytes = parse_size(memory, what="--memory")
    wanted_flash = None if flash is None else parse_flash(flash)
    check_sizes(memory_bytes, wanted_flash)
    try:
        ipaddress.ip_address(listen)
    except ValueError:
        raise OptionError(
            f"--listen {listen}: not an IP address",
            hint="give an address of this machine, as `ip address` shows it, or 0.0.0.0 for all",
        ) from None
    return MemberOptions(memory_bytes, wanted_flash, listen, port, threads)


def check_sizes(memory_bytes: int, flash: Flash | None) -> None:
    """Raise OptionError for sizes that memcached cannot work with."""
    if memory_bytes < _LEAST_MEMORY_BYTES:
        raise OptionError(
            f"{format_size(memory_bytes)} of memory: a member needs at least "
            f"{format_size(_LEAST_MEMORY_BYTES)}",
            hint="write it like 8GiB",
        )
    if flash is not None and flash.size_bytes < _LEAST_FLASH_BYTES:
        raise OptionError(
            f"{format_size(flash.size_bytes)} of flash: a member needs at least "
            f"{format_size(_LEAST_FLASH_BYTES)}",
            hint="write it like 200GiB, or use memory alone",
        )


def parse_flash(text: str) -> Flash:
    """Return the folder and the size in `/nvme:200GiB`."""
    folder, separator, size = text.rpartition(":")
    hint = "write it like /nvme:200GiB"
    if not separator or not folder:
        raise OptionError(f"--flash {text}: a folder and a size are needed", hint=hint)
    if not Path(folder).is_absolute():
        raise OptionError(f"--flash {text}: the folder must be an absolute path", hint=hint)
    return Flash(folder, parse_size(size, what="--flash"))


def command_line(
    program: str, options: MemberOptions, *, cores: int, most_files: int, flash_file: str = ""
) -> list[str]:
    """Return memcached's command line.

    `most_files` is the limit of open files that it may raise its own to; `flash_file` the file
    that it keeps values in, if `options` has flash.
    """
    threads = options.threads or max(2, min(_MOST_THREADS, cores))
    address = f"[{options.listen}]" if ":" in options.listen else options.listen
    words = {
        "-l": address,
        "-p": str(options.port),
        "-U": "0",
        "-m": str(options.memory_bytes // MIB),
        "-I": _ITEM_LIMIT,
        "-t": str(threads),
        "-c": str(max(_OWN_FILES, min(_CONNECTIONS, most_files - _OWN_FILES))),
        "-B": "ascii",
    }
    command = [program, *(word for pair in words.items() for word in pair)]
    # Whoever reaches the port can read and change what is stored. At least nobody can list the
    # keys, watch the traffic, or empty the member with one command.
    command += ["-F", "-X", "-W"]
    if options.flash is not None:
        command += ["-o", ",".join(_flash_options(options.flash, flash_file))]
    return command


def _flash_options(flash: Flash, file: str) -> list[str]:
    """Return what makes flash really fill, instead of memcached evicting what arrives quickly.

    By default memcached writes to flash only what memory has no room for any more, and evicts what
    arrives meanwhile; an evicted value is fetched from the bucket again. So everything is written
    at once, and memory is the buffer and the index of flash. Measured with memcached 1.6.18 on 2
    busy cores, 1 GiB of memory and 8 GiB of flash, 4,000 MiB of values of 30 to 512 KiB at 250
    MiB/s: 97% of them were held, by default 65%. At 80 MiB/s both hold all
    (tools/compare-flash-options).
    """
    size_mib = flash.size_bytes // MIB
    page_mib = max(_FLASH_PAGE_MIB, -(-size_mib // _MOST_FLASH_PAGES))
    return [
        f"ext_page_size={page_mib}",  # before the path, or memcached does not start
        f"ext_path={file}:{size_mib}m",
        "ext_threads=4",  # reads from flash at the same time; one by default
        "ext_item_age=0",  # write what is as old as this, in seconds
        "ext_max_sleep=10000",  # microseconds that the writing thread sleeps
    ]
