"""Members that fail under readers: what a reader sees of it, and how long it waits.

The mounts have no cache of their own, and readers make the kernel forget each file, so each read
asks the members. Something is done to a member while they read; after `failure_s` it is mended, and
they read as long again. The member that fails is the first one, and no reader is on its machine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from penstock.bench.shared.cluster import Cluster, Node
from penstock.bench.shared.report import Row
from penstock.bench.shared.servers import Member
from penstock.bench.shared.watching import checksums, watched
from penstock.cache.memcached import ANSWER_S, LEASE_S

# As documented: a member that does not answer, and then the lease of a client that will not fetch.
_LONGEST_PAUSE_S = ANSWER_S + LEASE_S + 1.0

Act = Callable[[Member], object]


def failures(cluster: Cluster) -> list[Row]:
    """Return a row for each failure, and the longest pause of all."""
    settings, small = cluster.settings, cluster.small
    expected = checksums(small)
    rows: list[Row] = []
    for number, (what, harm, mend) in enumerate(_events(cluster)):
        # Each from the same state: a mount asks a member that has failed less and less often.
        cluster.empty_members(small)
        nodes = [
            cluster.node(one, small, cached=False)
            for one in range(settings.members, settings.nodes)
        ]
        with cluster.mounted(*nodes):
            with cluster.far.unshaped():
                nodes[0].load()
                nodes[0].wait_until_filled()
            rows.append(_failure(cluster, nodes, expected, number, what, harm, mend))
    longest = max(row.detail["longest_s"] for row in rows)
    return [
        *rows,
        Row("longest pause of a reader in all of these", longest, "s", at_most=_LONGEST_PAUSE_S),
    ]


def _events(cluster: Cluster) -> list[tuple[str, Act, Act]]:
    """Return what happens, what is done to the member, and what mends it."""
    enough_mib = cluster.room_mib(cluster.small)
    share = cluster.small.size_bytes // len(cluster.members)
    few_mib = max(2, share // 4 >> 20)

    def restart(member: Member) -> None:
        member.stop()
        member.start(enough_mib)

    def fill_up(member: Member) -> None:
        member.stop()
        member.start(few_mib)

    def refuse(member: Member) -> None:
        member.stop()
        member.start(few_mib, "-M")

    def spoil(_: Member) -> None:
        for member in cluster.members:
            member.spoil(cluster.settings.seed)

    def nothing(_: Member) -> None:
        return None

    return [
        ("nothing happens", nothing, nothing),
        ("a member is killed, and started again, empty", Member.stop, restart),
        ("a member is stopped (SIGSTOP), and continued", Member.halt, Member.go_on),
        ("a member is cut off, and reconnected", _cut_off, _reconnect),
        ("a member is restarted, empty", restart, nothing),
        ("a member has room for a quarter of its share", fill_up, restart),
        ("a member is full, and refuses values (-M)", refuse, restart),
        ("every value of all members is replaced by garbage", spoil, spoil),
    ]


def _cut_off(member: Member) -> None:
    member.machine.cut_off()


def _reconnect(member: Member) -> None:
    member.machine.reconnect()


def _failure(
    cluster: Cluster,
    nodes: Sequence[Node],
    expected: dict[str, int],
    number: int,
    what: str,
    harm: Act,
    mend: Act,
) -> Row:
    member, hold_s = cluster.members[0], cluster.settings.failure_s
    before = _shared_counts(nodes)
    with watched(
        cluster.workspace,
        [node.root for node in nodes],
        expected,
        readers=cluster.settings.readers_each,
        seed=number,
    ) as seen:
        harm(member)
        try:
            time.sleep(hold_s)
        finally:
            mend(member)
        time.sleep(hold_s)
    after = _shared_counts(nodes)
    counts = {name: after[name] - before[name] for name in after}
    detail: dict[str, Any] = asdict(seen) | counts
    return Row(
        f"errors and wrong bytes while {what}",
        seen.errors + seen.wrong,
        at_most=0,
        note=f"{seen.reads:,} reads; longest pause {seen.longest_s:.2f} s",
        detail=detail,
    )


def _shared_counts(nodes: Sequence[Node]) -> dict[str, int]:
    members = [one for node in nodes for one in node.statistics()["shared"]["members"]]
    names = ("hits", "misses", "waits", "damaged", "failures")
    return {name: sum(member[name] for member in members) for name in names}
