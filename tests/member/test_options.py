"""The options of a member, and memcached's command line for them."""

import pytest

from penstock.errors import OptionError
from penstock.member.options import (
    Flash,
    MemberOptions,
    command_line,
    decode,
    parse_flash,
    parse_options,
)
from penstock.units import GIB, MIB


def options(**changes: object) -> MemberOptions:
    texts = {"memory": "8GiB", "flash": None, "listen": "127.0.0.1", "port": 11211, "threads": None}
    return parse_options(**{**texts, **changes})  # type: ignore[arg-type]


def line(wanted: MemberOptions, *, cores: int = 4, most_files: int = 1 << 20) -> str:
    words = command_line("m", wanted, cores=cores, most_files=most_files, flash_file="/f")
    return " ".join(words)


def test_memcached_gets_room_for_blocks_and_connections_and_no_udp() -> None:
    assert line(options()) == (
        "m -l 127.0.0.1 -p 11211 -U 0 -m 8192 -I 2m -t 4 -c 8192 -B ascii -F -X -W"
    )


def test_threads_follow_the_cores_within_bounds() -> None:
    assert "-t 2 " in line(options(), cores=1)
    assert "-t 16 " in line(options(), cores=96)
    assert "-t 32 " in line(options(threads=32), cores=1)


def test_connections_stay_below_the_limit_of_open_files() -> None:
    assert "-c 960 " in line(options(), most_files=1024)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert "-l [::1] " in line(options(listen="::1"))


def test_flash_is_a_file_of_that_size_that_everything_is_written_to_at_once() -> None:
    assert line(options(flash="/nvme:200GiB")).endswith(
        "-o ext_page_size=64,ext_path=/f:204800m,ext_threads=4,ext_item_age=0,ext_max_sleep=10000"
    )


def test_pages_of_large_flash_are_larger_because_they_are_counted_in_16_bits() -> None:
    text = line(options(flash="/nvme:30TiB"))
    size_mib = 30 * GIB * 1024 // MIB
    page_mib = int(text.partition("ext_page_size=")[2].partition(",")[0])
    assert size_mib / page_mib <= 60_000
    assert page_mib > 64


def test_flash_is_a_folder_and_a_size() -> None:
    assert parse_flash("/with:colon:1.5TiB") == Flash("/with:colon", 1536 * GIB)


@pytest.mark.parametrize(
    ("words", "says"),
    [({"memory": "8 apples"}, "is not a size"),
     ({"memory": "63MiB"}, "at least 64.0 MiB"),
     ({"flash": "/nvme"}, "a folder and a size"),
     ({"flash": "nvme:2GiB"}, "absolute path"),
     ({"flash": "/nvme:1MiB"}, "1.0 MiB of flash: a member needs at least 1.0 GiB"),
     ({"listen": "nowhere.example"}, "not an IP address")],
)  # fmt: skip
def test_a_bad_value_is_refused_with_a_hint(words: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        options(**words)
    assert caught.value.hint


def test_which_addresses_others_reach() -> None:
    assert [options(listen=one).is_local for one in ("127.0.0.1", "::1", "10.0.0.5", "0.0.0.0")] \
        == [True, True, False, False]  # fmt: skip
    assert [options(listen=one).listens_everywhere for one in ("::", "0.0.0.0", "10.0.0.5")] \
        == [True, True, False]  # fmt: skip


def test_options_survive_being_written_down() -> None:
    for wanted in (options(), options(flash="/nvme:2GiB", threads=3)):
        assert decode(wanted.encode()) == wanted
