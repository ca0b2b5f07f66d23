"""The members of a shared tier: which memcached servers there are, and which one has a block.

A member list is written in one of three ways:

    memcached://host1:11211,host2        these
    memcached:///etc/penstock/members    a file, one HOST[:PORT] a line, # for comments
    memcached+dns://workers.ns:11211     all addresses of a name, such as a headless Service

A file and a name are read again every few seconds. What cannot be read keeps the last list: a
broken name server must not empty the tier.

Rendezvous hashing: each member gets a score for each block, and the highest one has the block. So
a member that leaves moves only its own blocks, and one that joins takes an equal share from each.

Threading: `MemberList.read` from one thread; `member_of` is pure.
"""

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from penstock.errors import OptionError

DEFAULT_PORT = 11211
_HINT = (
    "write it like memcached://host1:11211,host2:11211, memcached:///path/to/members "
    "or memcached+dns://name:11211"
)
# A host name, an IPv4 address, or an IPv6 address in brackets; perhaps a port.
# The resolver of Python raises a UnicodeError for a part of a name that is empty or too long.
_PART = r"[A-Za-z0-9_-]{1,63}"
_MEMBER = re.compile(
    rf"(?P<host>{_PART}(\.{_PART})*\.?|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{{1,5}}))?"
)
_MAX_FILE_BYTES = 1024 * 1024
_MAX_MEMBERS = 1024


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MemberSource:
    """Where the list of members comes from: exactly one of the three."""

    addresses: tuple[Address, ...] = ()
    file: Path | None = None
    name: Address | None = None

    @property
    def may_change(self) -> bool:
        return not self.addresses


def parse_members(text: str, what: str = "--shared") -> MemberSource:
    """Return what an address of a shared tier stands for; raise OptionError."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("memcached", "memcached+dns"):
        raise OptionError(f"{what} {text}: not the address of a shared tier", hint=_HINT)
    if scheme == "memcached+dns":
        return MemberSource(name=_parse_address(rest, f"{what} {text}"))
    if rest.startswith("/"):
        return MemberSource(file=Path(rest))
    names = [name.strip() for name in rest.split(",")]
    addresses = tuple(_parse_address(name, f"{what} {text}") for name in names if name)
    if not addresses:
        raise OptionError(f"{what} {text}: names no member", hint=_HINT)
    if len(set(addresses)) < len(addresses):
        raise OptionError(f"{what} {text}: names a member twice", hint="name each member once")
    return MemberSource(addresses)


def _parse_address(text: str, what: str) -> Address:
    found = _MEMBER.fullmatch(text)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise OptionError(f"{what}: {text!r} is not HOST or HOST:PORT", hint=_HINT)
    return Address(found["host"].strip("[]"), port)


def parse_member_file(text: str) -> tuple[Address, ...]:
    """Return the members that a file names, in a fixed order; raise OptionError."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    found = {_parse_address(line, "the member list") for line in lines if line}
    if len(found) > _MAX_MEMBERS:
        raise OptionError(f"the member list names {len(found)} members", hint="give a shorter one")
    return _in_order(found)


class MemberList:
    """Reads the list of members, and keeps the last one where it cannot be read."""

    def __init__(
        self,
        source: MemberSource,
        resolve: "Callable[[Address], set[Address]] | None" = None,
    ) -> None:
        self._source = source
        self._resolve = resolve or _resolve
        self.addresses: tuple[Address, ...] = source.addresses
        self.problem: str | None = None  # why the last list is still in use

    def read(self) -> bool:
        """Read the list again; True if it has changed."""
        if not self._source.may_change:
            return False
        try:
            found = self._read()
        except (OSError, ValueError, OptionError) as error:
            self.problem = str(error)
            return False
        self.problem = None
        changed, self.addresses = found != self.addresses, found
        return changed

    def _read(self) -> tuple[Address, ...]:
        if self._source.file is not None:
            with self._source.file.open(encoding="utf-8") as file:
                return parse_member_file(file.read(_MAX_FILE_BYTES))
        assert self._source.name is not None
        return _in_order(self._resolve(self._source.name))


def _resolve(name: Address) -> set[Address]:
    found = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    return {Address(str(one[4][0]), name.port) for one in found}


def _in_order(addresses: set[Address]) -> tuple[Address, ...]:
    return tuple(sorted(addresses, key=str))


def member_of(names: Sequence[bytes], key: bytes) -> int:
    """Return the number of the member that has the key."""
    if len(names) == 1:
        return 0
    scores = [xxhash.xxh3_64_intdigest(name + key) for name in names]
    return scores.index(max(scores))
