"""Sizes and durations as people write them."""

from collections.abc import Callable

import pytest

from penstock.errors import OptionError
from penstock.units import (
    format_bit_rate,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)


def test_sizes_are_parsed_with_any_common_unit() -> None:
    texts = ("512", "1k", "8MiB", "100Gi", "1.5T")
    assert [parse_size(text) for text in texts] == [512, 1024, 8 << 20, 100 << 30, 3 << 39]
    assert parse_size("65536", bare_unit=1 << 20) == 64 << 30, "as its option counts"
    assert parse_size("65536B", bare_unit=1 << 20) == 65536


def test_durations_are_parsed() -> None:
    assert [parse_duration(text) for text in ("7200", "500ms", "60s", "10m", "2h", "1d")] == [
        7200,
        0.5,
        60,
        600,
        7200,
        86400,
    ]
    assert [parse_duration(text) for text in ("2h22m", "1m0.5s")] == [8520, 60.5]
    for text in ("soon", "2h22", "2h 22m", "h"):
        with pytest.raises(OptionError):
            parse_duration(text)


def test_printed_sizes_and_durations_are_readable() -> None:
    assert format_size(112640) == "110.0 KiB"
    assert format_size(999) == "999 B"
    assert [format_duration(s) for s in (5, 200, 7500, 90000)] == ["5s", "3m20s", "2h05m", "1d01h"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10Gbit", 1.25e9), ("10 Gbit/s", 1.25e9), ("800Mbps", 1e8), ("8kbit", 1e3), ("16bps", 2),
     ("200MiB/s", 200 << 20), ("200M", 200 << 20), ("1GB/s", 1 << 30), ("64KiB/sec", 65536)],
)  # fmt: skip
def test_network_rates_use_decimal_bits_and_byte_rates_use_sizes(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        *((parse_size, text, "not a size") for text in ("", "x", "1XB", "-1", "1 2")),
        *((parse_rate, text, "not a rate") for text in ("", "fast", "10Gbit/h", "-1Gbit")),
        *((parse_rate, text, "bits or bytes") for text in ("10Gb", "10Gb/s", "100mb/s")),
    ],
)
def test_an_unreadable_value_is_rejected_with_a_hint(
    parse: Callable[..., object], text: str, says: str
) -> None:
    with pytest.raises(OptionError, match=f"--option.*{says}") as caught:
        parse(text, what="--option")
    assert caught.value.hint


def test_a_rate_is_printed_in_bits_per_second() -> None:
    assert [format_bit_rate(rate) for rate in (1, 191.6e6, 1.25e9, 1.25e13)] == [
        "8 bit/s",
        "1.53 Gbit/s",
        "10 Gbit/s",
        "100 Tbit/s",
    ]
