"""What a member of a shared tier, or whoever took its place, answers to `stats`.

An input is two answers, which `_NEXT` separates: to `stats` and to `stats settings`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from penstock.cache.member_stats import NotMemcached, from_json, member_stats, parse_stats
from penstock.doctor.rules.shared import Member, judge_members
from tests.fuzz.target import Check, Target

_NEXT = b"\n--\n"


@contextmanager
def _open(_folder: Path) -> Iterator[Check]:
    yield _check


def _check(data: bytes) -> None:
    first, _, second = data.partition(_NEXT)
    try:
        stats = member_stats(parse_stats(first), parse_stats(second))
    except NotMemcached:
        return
    numbers = {name: value for name, value in asdict(stats).items() if name != "version"}
    assert all(isinstance(value, int) and value >= 0 for value in numbers.values())
    assert len(stats.version) <= 256
    assert from_json(json.loads(json.dumps(asdict(stats)))) == stats
    for finding in judge_members([Member("10.0.0.5:11211", stats)], "data", data_bytes=1):
        assert "\n" not in finding.what + finding.why + finding.remedy


_STATS = (
    b"STAT pid 9\r\nSTAT version 1.6.18\r\nSTAT curr_items 5\r\nSTAT bytes 500\r\n"
    b"STAT limit_maxbytes 67108864\r\nSTAT evictions 0\r\nSTAT extstore_bytes_used 300\r\n"
    b"STAT max_connections 1024\r\nSTAT rejected_connections 0\r\nEND\r\n"
)
_SETTINGS = b"STAT item_size_max 1048576\r\nSTAT inter 127.0.0.1\r\nEND\r\n"
MEMBER_STATS_TARGET = Target(
    "member-stats",
    "an answer becomes numbers that rules can judge, or is none of memcached",
    _open,
    [_STATS + _NEXT + _SETTINGS, b"ERROR\r\n" + _NEXT + _SETTINGS],
    (b"STAT ", b"\r\n", b"END\r\n", b"-1", b"9" * 30, b"\xff", b"\x00", b"1.5", _NEXT),
)
