"""Parses and prints sizes, durations and rates. Pure."""

import re

from penstock.errors import OptionError

_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DURATION = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?\s*$", re.IGNORECASE)
_PARTS = re.compile(r"^\s*(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd])){2,}\s*$", re.IGNORECASE)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])", re.IGNORECASE)
_BIT_RATE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:bit(?:/s|ps)?|bps)\s*$", re.I)
_PER_SECOND = re.compile(r"\s*/s(?:ec)?\s*$", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S = 100 * 366 * 86400

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def parse_size(text: str, *, what: str = "size", bare_unit: int = 1) -> int:
    """Return bytes. `100GiB`, `100Gi` and `100G` all mean 2**30, as in JuiceFS and Kubernetes' Gi.

    `bare_unit` is the unit of a number without one: JuiceFS's --cache-size counts MiB.
    """
    match = _SIZE.match(text)
    if match is None:
        raise OptionError(
            f"{what}: {text!r} is not a size", hint="write it like 512MiB, 100GiB or 1.5TiB"
        )
    number, unit, _ = match.groups()
    bare = not unit and not text.strip().lower().endswith("b")
    size = float(number) * (bare_unit if bare else 1024 ** _POWERS[unit.lower()])
    if size >= 2**63:
        raise OptionError(f"{what}: larger than any disk", hint="write it like 512MiB")
    return int(size)


def counted(number: int, noun: str) -> str:
    """Return `1 file` or `1,234 files`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_size(size_bytes: float) -> str:
    """Return a size such as `110.0 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} PiB"


def parse_duration(text: str, *, what: str = "duration") -> float:
    """Return seconds. A number without a unit counts seconds; `2h22m` is the sum of its parts."""
    match = _DURATION.match(text)
    if match is not None:
        parts = [(match[1], match[2] or "s")]
    elif _PARTS.match(text):
        parts = _PART.findall(text)
    else:
        raise OptionError(
            f"{what}: {text!r} is not a duration", hint="write it like 30s, 10m, 2h or 1d"
        )
    seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
    if seconds > _LONGEST_S:
        raise OptionError(f"{what}: longer than a century", hint="write it like 30s, 10m, 2h or 1d")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration such as `2h05m`, `3m20s` or `12s`."""
    whole = int(seconds)
    if whole >= 86400:
        return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    if whole >= 60:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole}s"


def parse_rate(text: str, *, what: str = "rate") -> float:
    """Return bytes per second.

    `10Gbit`, `10Gbit/s` and `10Gbps` are 10**10 bits, as for networks; `200MiB/s` and `200M` are
    bytes, as for sizes.
    """
    if match := _BIT_RATE.match(text):
        number, unit = match.groups()
        return float(number) * 1000 ** _POWERS[unit.lower()] / 8
    size = _PER_SECOND.sub("", text)
    hint = "write it like 10Gbit, 200Mbit or 200MiB/s"
    # 10Gb/s often means bits. Read as bytes it would be wrong by a factor of eight.
    if re.search(r"[kmgtpKMGTP]b\s*$", size):
        raise OptionError(f"{what}: {text!r} may mean bits or bytes", hint=hint)
    try:
        return float(parse_size(size))
    except OptionError as error:
        raise OptionError(f"{what}: {text!r} is not a rate", hint=hint) from error


def format_bit_rate(bytes_per_s: float) -> str:
    """Return a rate such as `1.53 Gbit/s`."""
    bits = bytes_per_s * 8
    for unit in ("", "k", "M", "G"):
        if bits < 1000:
            return f"{bits:.3g} {unit}bit/s"
        bits /= 1000
    return f"{bits:.3g} Tbit/s"
