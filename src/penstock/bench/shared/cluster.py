"""The nodes of a run: machines, a store behind its latency, members, and mounts on machines.

The first machines have a member of the shared tier each. A mount has a cache and a state folder of
its own, as on a machine of its own, and all of its processes run in its machine's namespace.

Mounts may be started and read from several threads; all else from the main thread.
"""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.bench.arms import Penstock, Site
from penstock.bench.datasets import Dataset, make_large, make_small
from penstock.bench.plans.model import ArmPlan
from penstock.bench.readers import Epoch, list_files, read_epoch
from penstock.bench.s3server import FarServer, S3Server, create_bucket, far_s3, serve_s3, upload
from penstock.bench.shared.network import HUB, Machine, add_machine
from penstock.bench.shared.servers import Member
from penstock.bench.workspace import BenchError, Workspace, wait_until
from penstock.errors import UsageError
from penstock.units import MIB

FIRST = 0  # the machine of the first node, which loads what a second one reads
SECOND = 2  # the machine of the second node: with neither a member nor the first node on it

_MOST_LOADS = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """What `--set NAME=VALUE` changes."""

    nodes: int = 4
    members: int = 2
    small_files: int = 1000  # of 110 KiB
    large_files: int = 4
    large_mib: int = 128
    readers: int = 8  # of the second node, and of the bare client
    readers_each: int = 2  # of each node, where all read at once
    rounds: int = 3  # of the second node, each beside the bare client
    latency_ms: float = 30.0  # of the store
    link_gbit: float = 25.0  # of each node; 0: as fast as the processors
    demand: float = 0.0  # samples/s of each accelerator; 0: 50 for each processor
    epoch_s: float = 20.0  # of an accelerator that never waits: its data set is as large
    failure_s: float = 3.0  # how long a member is harmed, and how long it is watched afterwards
    failures: int = 1  # 0: leave them out
    epochs: int = 1  # 0: leave them out
    seed: int = 1

    def check(self) -> None:
        for name in ("nodes", "members", "small_files", "large_files", "readers", "rounds"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: must be 1 or more", hint=f"--set {name}=1")
        if not self.members < self.nodes <= 99 or self.nodes <= SECOND:
            raise UsageError(
                f"{self.nodes} nodes with {self.members} members: the second node has no member, "
                "and the first one is another",
                hint="give 3 to 99 nodes, and fewer members than nodes",
            )


class Node(Penstock):
    """A mount on one of the machines."""

    def __init__(self, site: Site, machine: Machine, plan: ArmPlan) -> None:
        super().__init__(site, plan)
        self.name = machine.name
        self.machine = machine
        self.place = site.workspace.folder / self.name
        self.cache = self.place / "cache"
        self.mountpoint = self.place / "mnt"

    def load(self) -> dict[str, Any]:
        """Load the whole data set; return what `penstock warm` says about it."""
        return json.loads(self._command("warm", str(self.mountpoint), "-o", "json"))

    def wait_until_filled(self) -> None:
        """Wait until it has sent to the members what it has to send: that goes on behind reads."""
        wait_until(
            lambda: not self.statistics()["shared"]["queued_bytes"],
            timeout_s=60,
            what=f"{self.name} has filled the shared tier",
        )

    def _command(self, *words: str) -> str:
        command = self.machine.enter([sys.executable, "-m", "penstock", *words])
        return self.site.workspace.run(self.name, command, self.environment()).decode()


@dataclass
class Cluster:
    workspace: Workspace
    settings: Settings
    near: S3Server
    far: FarServer
    small: Dataset
    large: Dataset
    machines: list[Machine]
    members: list[Member] = field(default_factory=list[Member])

    @property
    def everyone(self) -> range:
        return range(self.settings.nodes)

    def node(
        self, number: int, dataset: Dataset, *, cached: bool = True, shared: bool = True
    ) -> Node:
        """A mount of the data set on a machine, not started yet."""
        addresses = ",".join(member.address for member in self.members)
        plan = ArmPlan(
            name=f"node-{number}",
            system="penstock",
            cache_share=1.0 if cached else 0.0,
            options={"shared": f"memcached://{addresses}"} if shared else {},
        )
        server = replace(self.far.server, endpoint=f"http://{HUB}:{self.far.port}")
        return Node(
            Site(self.workspace, server, dataset.name, dataset), self.machines[number], plan
        )

    @contextlib.contextmanager
    def mounted(self, *nodes: Node) -> Iterator[None]:
        """Start mounts, all at once, and list their files once, as a training job does."""
        try:
            with self.far.unshaped():
                at_once(Node.start, nodes)
                for node in nodes:
                    found, wanted = len(list_files(node.root)), len(node.site.dataset.entries)
                    if found != wanted:
                        raise BenchError(f"{node.name}: {found} files of {wanted}")
            yield
        finally:
            at_once(Node.stop, nodes)

    def empty_members(self, dataset: Dataset) -> None:
        """Start the members anew, with room for the data set."""
        for member in self.members:
            member.stop()
            member.start(self.room_mib(dataset))

    def room_mib(self, dataset: Dataset) -> int:
        """Return the memory that a member needs for its share of a data set."""
        # A value takes up to a quarter more than its length, and a share is never quite even.
        return 64 + math.ceil(1.5 * dataset.size_bytes / len(self.members) / MIB)

    def fill_members(self, dataset: Dataset) -> None:
        """Let the first node load the data set, until the members have all of it.

        A member that a busy machine keeps from answering for a second is left out for a while, and
        so is what should have gone there: then a node with an empty cache loads it again.
        """
        self.empty_members(dataset)
        held = 0
        for _ in range(_MOST_LOADS):
            node = self.node(FIRST, dataset)
            with self.mounted(node), self.far.unshaped():
                node.load()
                node.wait_until_filled()
            held = sum(length for member in self.members for _, length in member.values())
            if held >= dataset.size_bytes:
                return
        raise BenchError(f"the members hold only {held:,} bytes of {dataset.size_bytes:,}")

    def read_all(self, node: Node, *, readers: int, seed: int) -> Epoch:
        """Read every file of a mount once, in an order of the seed."""
        entries = node.site.dataset.entries
        return read_epoch(self.workspace, node.root, entries, readers=readers, seed=seed)


@contextlib.contextmanager
def build(workspace: Workspace, settings: Settings) -> Iterator[Cluster]:
    """Make data sets, machines, a store and members. `network.enter_hub` comes before."""
    folder = workspace.folder_for("data")
    small = make_small(folder / "small", settings.small_files, seed=settings.seed)
    large_bytes = settings.large_mib * MIB
    large = make_large(
        folder / "large", settings.large_files, size_bytes=large_bytes, seed=settings.seed
    )
    machines = [add_machine(workspace, number) for number in range(settings.nodes)]
    for machine in machines:
        machine.shape(settings.link_gbit * 1e9 or None)
    with (
        serve_s3(workspace) as near,
        far_s3(
            workspace,
            near,
            latency_s=settings.latency_ms / 1000,
            bytes_per_s=math.inf,  # what a node gets is bounded by its link
            processes=max(1, len(os.sched_getaffinity(0)) // 4),
            host="0.0.0.0",
        ) as far,
        contextlib.ExitStack() as exits,
    ):
        cluster = Cluster(workspace, settings, near, far, small, large, machines)
        for dataset in (small, large):
            put_into_bucket(near, dataset)
        for machine in machines[: settings.members]:
            cluster.members.append(member := Member(workspace, machine))
            exits.callback(member.stop)
        yield cluster


def put_into_bucket(near: S3Server, dataset: Dataset) -> None:
    """Put a data set into a bucket of its name."""
    create_bucket(near, dataset.name)
    upload(near, dataset.name, dataset.root)


def at_once(act: Callable[[Node], object], nodes: Sequence[Node]) -> None:
    """Let all nodes act at the same time."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        for done in [pool.submit(act, node) for node in nodes]:
            done.result()
