"""The members of shared tiers that data sets have on this machine: started and stopped with them.

A data set names all its members; this machine runs those whose address it has.
"""

import contextlib
import socket

from penstock.cache.members import Address
from penstock.errors import UsageError
from penstock.fluid.members import MemberPlan
from penstock.member.lifecycle import members_here, start_member, stop_member
from penstock.member.options import MemberOptions
from penstock.specs.kinds import ResourceKey


def run_members(plan: MemberPlan | None, key: ResourceKey) -> list[str]:
    """Bring the members of a data set on this machine to its plan; return those just started.

    Raises PenstockError if one cannot be started.
    """
    wanted = {} if plan is None else _own(plan)
    stop_members(key, but=wanted)
    started: list[str] = []
    for options in wanted.values():
        found = start_member(options, owner=str(key))
        if found.fresh:
            started.append(found.note.address)
    return started


def stop_members(key: ResourceKey, *, but: dict[int, MemberOptions] | None = None) -> None:
    """Stop the members that were started for the data set, except those with these options."""
    for note in members_here():
        if note.owner == str(key) and (but or {}).get(note.port) != note.options:
            stop_member(note)


def _own(plan: MemberPlan) -> dict[int, MemberOptions]:
    """Return the options of the members that this machine runs, by port."""
    found: dict[int, MemberOptions] = {}
    for address in plan.addresses:
        host = _own_address(address)
        if host is not None:
            options = MemberOptions(plan.memory_bytes, plan.flash, host, address.port)
            if address.port in found:
                raise UsageError(
                    f"{address} and {found[address.port].listen}:{address.port} are one machine",
                    hint="name each machine once, or give its members ports of their own",
                )
            found[address.port] = options
    return found


def _own_address(address: Address) -> str | None:
    """Return the IP address of this machine that a member's name stands for; None if it is of
    another machine, or cannot be resolved."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, where in socket.getaddrinfo(
            address.host, 0, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(where)  # the kernel refuses an address of another machine
                return str(where[0])
    return None
