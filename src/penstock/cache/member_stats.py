"""What a member of the shared tier, a memcached, reports about itself.

`ask_member` asks one over a connection of its own, within a deadline and with a bounded answer: a
member may be dead, stopped, or no memcached at all. Everything else is pure. It knows nothing of
the tier: `penstock shared status` and the doctor use it too. May be called from any thread.
"""

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from penstock.cache.members import Address

Json = dict[str, Any]

DEADLINE_S = 1.0  # for the connection and both answers together
_MOST_BYTES = 64 << 10  # `stats` of 1.6 is 3 KB, `stats settings` 2 KB
_AT_ONCE = 64
_LINE = re.compile(rb"STAT ([a-z0-9_]{1,64}) ([^\r\n]{0,256})")


class NotMemcached(Exception):
    """The answer is not one of memcached."""


@dataclass(frozen=True, slots=True)
class MemberStats:
    """The numbers that matter to the tier. One that a release does not report is 0."""

    version: str = ""
    uptime_s: int = 0
    threads: int = 0
    items: int = 0
    bytes: int = 0  # of all items, those on flash included
    limit_bytes: int = 0  # of memory
    evictions: int = 0  # items that made room for others
    flash_bytes: int = 0
    flash_limit_bytes: int = 0  # 0: without flash
    flash_evictions: int = 0
    item_limit_bytes: int = 0
    connections: int = 0
    connection_limit: int = 0
    connections_refused: int = 0  # because of the limit
    hits: int = 0
    misses: int = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of the items in memory. A value on flash leaves only its key there."""
        return max(0, self.bytes - self.flash_bytes)

    @property
    def capacity_bytes(self) -> int:
        return self.limit_bytes + self.flash_limit_bytes


# Fields, and what memcached calls them.
_NAMES: Mapping[str, str] = {
    "uptime_s": "uptime",
    "threads": "threads",
    "items": "curr_items",
    "bytes": "bytes",
    "limit_bytes": "limit_maxbytes",
    "evictions": "evictions",
    "flash_bytes": "extstore_bytes_used",
    "flash_limit_bytes": "extstore_limit_maxbytes",
    "flash_evictions": "extstore_objects_evicted",
    "item_limit_bytes": "item_size_max",
    "connections": "curr_connections",
    "connection_limit": "max_connections",
    "hits": "get_hits",
    "misses": "get_misses",
}

_REFUSED = ("rejected_connections", "listen_disabled_num")


def parse_stats(answer: bytes) -> dict[str, str]:
    """Return the pairs of one answer to `stats`. Raises NotMemcached for anything else."""
    lines = answer.split(b"\r\n")
    if lines[-2:] != [b"END", b""]:
        raise NotMemcached(f"it answered {answer[:40]!r} to stats")
    found: dict[str, str] = {}
    for line in lines[:-2]:
        match = _LINE.fullmatch(line)
        if match is not None:
            found[match[1].decode()] = match[2].decode("latin-1")
        elif not line.startswith(b"STAT "):  # a name that no release of ours reads is no mistake
            raise NotMemcached(f"it answered {line[:40]!r} to stats")
    return found


def member_stats(stats: Mapping[str, str], settings: Mapping[str, str]) -> MemberStats:
    """Return the numbers in the answers to `stats` and `stats settings`."""
    both = {**settings, **stats}
    numbers = {field: _number(both.get(name, "")) for field, name in _NAMES.items()}
    # One that does not refuse connections at its limit (no_maxconns_fast) stops accepting them.
    refused = sum(_number(both.get(name, "")) for name in _REFUSED)
    return MemberStats(version=both.get("version", ""), connections_refused=refused, **numbers)


def from_json(stats: Mapping[str, Any]) -> MemberStats:
    """Return what `asdict` made of one, by this release or another."""
    known = {field.name for field in fields(MemberStats)}
    return MemberStats(**{name: value for name, value in stats.items() if name in known})


def ask_member(host: str, port: int, *, deadline_s: float = DEADLINE_S) -> MemberStats:
    """Return what the member reports. Raises OSError if it does not answer in time, and
    NotMemcached if something else does."""
    ends_s = time.monotonic() + deadline_s
    with socket.create_connection((host, port), timeout=deadline_s) as connection:
        stats, settings = (
            parse_stats(_ask(connection, command, ends_s))
            for command in (b"stats\r\n", b"stats settings\r\n")
        )
    return member_stats(stats, settings)


def ask_members(
    addresses: Sequence[tuple[str, int]],
    ask: Callable[[str, int], MemberStats] = ask_member,
    *,
    patience_s: float = 2 * DEADLINE_S,
) -> list[Json]:
    """Return {"member": "host:port", "reachable": bool, "stats": {…} or null, "error": …} of each.

    They are asked at the same time, so that several dead ones cost one deadline. The resolver has
    no deadline: after `patience_s` a member counts as one that does not answer.
    """
    answers: list[Json] = [
        {
            "member": str(Address(*address)),
            "reachable": False,
            "stats": None,
            "error": "no answer in time",
        }
        for address in addresses
    ]

    def look(number: int) -> None:
        try:
            stats = asdict(ask(*addresses[number]))
            answers[number] |= {"reachable": True, "stats": stats, "error": None}
        except (OSError, NotMemcached) as error:
            answers[number] |= {"error": str(error) or type(error).__name__}

    for first in range(0, len(addresses), _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, len(addresses)))
        looks = [threading.Thread(target=look, args=(one,), daemon=True) for one in numbers]
        for thread in looks:
            thread.start()
        ends_s = time.monotonic() + patience_s
        for thread in looks:
            thread.join(max(0.0, ends_s - time.monotonic()))
    return [dict(one) for one in answers]


def _ask(connection: socket.socket, command: bytes, ends_s: float) -> bytes:
    connection.settimeout(max(0.001, ends_s - time.monotonic()))
    connection.sendall(command)
    answer = b""
    while not _is_whole(answer):
        if len(answer) > _MOST_BYTES:
            raise NotMemcached("its answer to stats has no end")
        if (left_s := ends_s - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left_s)
        piece = connection.recv(_MOST_BYTES)
        if not piece:
            raise NotMemcached("it closed the connection in the middle of an answer")
        answer += piece
    return answer


def _is_whole(answer: bytes) -> bool:
    """Whether nothing more follows: an answer ends in END, and anything else is one line."""
    if answer.startswith(b"STAT "):
        return answer.endswith(b"\r\nEND\r\n")
    return answer.endswith(b"\n")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
