"""Findings about the shared tier of a mount: its members, as the mount's server reaches them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cache.member_stats import MemberStats, from_json
from penstock.doctor.findings import Finding, bad, note, ok, slow
from penstock.units import KIB, counted, format_size

Json = Mapping[str, Any]

# A block is cut into values of 512 KiB; this leaves room for what memcached adds.
_LEAST_ITEM_BYTES = 768 * KIB
_LEAST_VERSION = (1, 6)  # the meta protocol, and leases
# Of what a member may use, as much is values: it rounds each up to one of its sizes. Measured with
# 1.6.18 and values of 30 to 512 KiB: 0.85 of memory, 0.8 of flash that is written again and again.
_USABLE = 0.8
_OFTEN = 0.01  # of the values that a member holds
_NEAR = 0.9
_TOO_MANY = "Too many open connections"
_START = "penstock shared start"
_LOOPBACK = ("127.", "[::1]", "localhost")


@dataclass(frozen=True, slots=True)
class Member:
    address: str  # host:port
    stats: MemberStats | None = None  # None: it did not answer
    error: str | None = None  # why it did not


def members_of(doctor_answer: Json | None) -> list[Member]:
    """Return the facts in the answer of a mount's server. One of an older release has none."""
    facts: Sequence[Json] = (doctor_answer or {}).get("shared") or ()
    return [
        Member(
            str(one["member"]),
            from_json(one["stats"]) if one.get("reachable") and one.get("stats") else None,
            one.get("error"),
        )
        for one in facts
    ]


def judge_members(
    members: Sequence[Member],
    subject: str,
    *,
    data_bytes: int | None = None,
    sealed: bool = False,
    problem: str | None = None,
) -> list[Finding]:
    """`sealed`: the mount has a --shared-key. `problem`: why the list of members cannot be read."""
    findings: list[Finding] = []
    if problem is not None:
        what = "the list of members of its shared tier cannot be read; the last one is in use"
        remedy = "mend the file or the name that --shared gives"
        findings.append(slow(subject, what, problem, remedy))
    answering = [(one.address, one.stats) for one in members if one.stats is not None]
    for one in members:
        if one.stats is None:
            findings.append(_unreachable(one, subject))
    for address, stats in answering:
        findings += _member(address, stats, subject)
    if answering:
        findings += _too_small(answering, subject, data_bytes)
        findings += _evicting(answering, subject)
        if not sealed and (open_ones := [one for one, _ in answering if not _is_local(one)]):
            what = "its shared tier is not sealed: who reaches a member can read and change values"
            why = f"memcached has no access control; {', '.join(open_ones[:3])}"
            remedy = "mount with --shared-key FILE, the same on all machines"
            findings.append(note(subject, what, why, remedy))
    if members and not any(one.severity in ("bad", "slow") for one in findings):
        held = sum(stats.bytes for _, stats in answering)
        capacity = sum(stats.capacity_bytes for _, stats in answering)
        why = f"{counted(len(members), 'member')}, {format_size(held)} of {format_size(capacity)}"
        findings.append(ok(subject, "its shared tier works", why))
    return findings


def _unreachable(member: Member, subject: str) -> Finding:
    what = f"the member {member.address} of its shared tier does not answer"
    remedy = f"start it there ({_START}), or take it out of --shared; until then it is a miss"
    if _TOO_MANY in (member.error or ""):
        what = f"the member {member.address} of its shared tier has no connection left"
        remedy = f"restart it with more: {_START} allows 8,192, or memcached -c"
    return slow(subject, what, member.error or "", remedy)


def _member(address: str, stats: MemberStats, subject: str) -> Iterator[Finding]:
    here = f"the member {address} of its shared tier"
    if 0 < stats.item_limit_bytes < _LEAST_ITEM_BYTES:
        what = f"{here} refuses large values"
        why = f"its item limit is {format_size(stats.item_limit_bytes)}"
        yield slow(subject, what, why, f"restart it with -I 2m, as {_START} does")
    if (version := _version(stats.version)) is not None and version < _LEAST_VERSION:
        what = f"{here} is too old to hold anything"
        why = f"memcached {stats.version}; the meta protocol came with 1.6"
        yield bad(subject, what, why, "install memcached 1.6 or later there")
    most = stats.connection_limit
    why = f"{stats.connections:,} of {most:,}, {stats.connections_refused:,} refused so far"
    if stats.connections_refused or (most and stats.connections > _NEAR * most):
        remedy = f"restart it with more: {_START} allows 8,192, or memcached -c"
        yield slow(subject, f"{here} has too few connections", why, remedy)


def _too_small(
    members: Sequence[tuple[str, MemberStats]], subject: str, data_bytes: int | None
) -> Iterator[Finding]:
    capacity = sum(stats.capacity_bytes for _, stats in members)
    if data_bytes is None or data_bytes <= _USABLE * capacity:
        return
    why = (
        f"{format_size(capacity)} in {counted(len(members), 'member')}, of which values can use "
        f"{_USABLE:.0%}; the data set has {format_size(data_bytes)}"
    )
    remedy = (
        f"for all of it {format_size(data_bytes / _USABLE)} are needed: more members, or a larger "
        "--memory or --flash of penstock shared start"
    )
    yield slow(subject, "its shared tier is too small for the data set", why, remedy)


def _evicting(members: Sequence[tuple[str, MemberStats]], subject: str) -> Iterator[Finding]:
    evicting = [
        (address, stats.evictions + stats.flash_evictions)
        for address, stats in members
        if stats.evictions + stats.flash_evictions > _OFTEN * stats.items
    ]
    if evicting:
        what = "members of its shared tier evict values to make room for others"
        why = ", ".join(f"{address}: {count:,} so far" for address, count in evicting[:3])
        remedy = "more members, or a larger --memory or --flash; or fewer data sets on them"
        yield slow(subject, what, why, remedy)


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def _is_local(address: str) -> bool:
    return address.startswith(_LOOPBACK)
