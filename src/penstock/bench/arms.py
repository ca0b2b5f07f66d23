"""The systems that are compared, one small class each, all used in the same way.

    start       mounts with an empty cache
    fill_cache  makes sure that what was read is in the local cache
    stop        unmounts, ends every process, forgets the cache

Each peer runs with the options that show it at its best for reading training data; the reason
stands beside the option. The systems are driven by their own command lines: nothing here knows
how any of them works inside, Penstock included. How long things take is not known here either.
"""

import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.bench import measure
from penstock.bench.datasets import Dataset
from penstock.bench.plans.known_arms import ArmPlan
from penstock.bench.s3server import S3Server
from penstock.bench.workspace import (
    BenchError,
    Process,
    Workspace,
    tail,
    unmount,
    wait_until,
)
from penstock.units import GIB

TRUSTED_S = 7200  # how long names and attributes may be trusted; the data does not change


@dataclass(frozen=True, slots=True)
class Site:
    """What an arm works with: a data set in a bucket, and a place for caches."""

    workspace: Workspace
    server: S3Server
    bucket: str  # with the data set's prefix, if it has one: BUCKET/a/b
    dataset: Dataset
    # Where a system keeps objects of its own, and under which name.
    scratch_bucket: str = ""
    scratch_name: str = "bench"


class Arm(ABC):
    """One system on one data set. `root` is where its files are, once it has started."""

    name: str

    def __init__(self, site: Site, plan: ArmPlan) -> None:
        self.site, self.plan = site, plan
        self.root = Path()
        self.command: list[str] = []  # what it was started with, once it has started

    @classmethod
    def require(cls) -> None:
        """Raise BenchError, with a hint, where this machine lacks what the system needs."""
        return

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    def prepare(self) -> None:
        """Once, before the first start."""
        return

    def fill_cache(self) -> None:
        return None

    def version(self) -> str:
        """The release, and after a space what else is to be known of it."""
        return ""

    def finish(self) -> None:
        """Once, after the last stop: forgets what `prepare` made."""
        return

    def parts(self) -> tuple[str, ...]:
        """The parts of the workspace that its processes belong to."""
        return (self.name,)

    def usage(self) -> measure.Usage:
        """Of every process of the system, whichever of them started it."""
        workspace = self.site.workspace
        marked = [pid for part in self.parts() for pid in workspace.processes(part)]
        return measure.usage(measure.with_descendants(marked))

    def reader_environment(self) -> dict[str, str]:
        """Return the environment variables by which a reader finds the system, besides `root`."""
        return {}

    def messages(self) -> int | None:
        """Return how many messages the daemon counted; None if it does not count them."""
        return None

    def mode(self) -> str | None:
        """The way it works at present, for a system that has several."""
        return None


class Ceiling(Arm):
    """Reads nothing: samples are made in memory."""

    name = "ceiling"


class Native(Arm):
    """The same files read straight from the cache medium."""

    name = "native"

    def start(self) -> None:
        self.root = self.site.dataset.root


class Mount(Arm):
    """What the FUSE systems have in common: a folder, a cache, a daemon in the foreground."""

    ready_s = 60.0  # how long its start may take
    dashes = "--"  # before the name of an option

    def __init__(self, site: Site, plan: ArmPlan) -> None:
        super().__init__(site, plan)
        self._daemon: Process | None = None
        # Short: a control socket's path has 108 bytes.
        self.place = site.workspace.folder / "m"
        self.cache = self.place / "cache"
        self.mountpoint = self.place / "mnt"

    @property
    def quota_bytes(self) -> int:
        """Return what its cache may hold."""
        return int(self.site.dataset.size_bytes * self.plan.cache_share)

    def extra_options(self) -> list[str]:
        """Return the options of the plan: last on the command line, so that they win."""
        return [
            f"{self.dashes}{name}={value}" if value else f"{self.dashes}{name}"
            for name, value in self.plan.options.items()
        ]

    @abstractmethod
    def launch(self) -> Process | None:
        """Starts the daemon; None when it runs in the background."""

    def start(self) -> None:
        self.cache.mkdir(parents=True)
        self.mountpoint.mkdir()
        daemon = self._daemon = self.launch()
        if daemon is not None:
            self.command = [str(word) for word in cast("list[str]", daemon.popen.args)]
        wait_until(
            lambda: self._ready(daemon),
            timeout_s=self.ready_s,
            what=f"{self.name} on {self.mountpoint}",
        )
        self.root = self.mountpoint

    def stop(self) -> None:
        if measure.mounted(self.mountpoint):
            self.unmount()
        if self._daemon is not None:
            self._daemon.finish()
            self._daemon = None
        self.site.workspace.end_processes(self.name)
        if self.place.exists():
            shutil.rmtree(self.place)

    def unmount(self) -> None:
        # Busy for a moment after the last close, while the kernel gives files back.
        wait_until(lambda: unmount(self.mountpoint), timeout_s=10, what=f"umount {self.mountpoint}")

    def environment(self) -> dict[str, str]:
        # A home of its own: some keep caches and logs there, whatever their options are.
        extra = self.site.server.aws_environment() | {"HOME": str(self.place)}
        return self.site.workspace.environment(self.name, extra)

    def _ready(self, daemon: Process | None) -> bool:
        if daemon is not None:
            daemon.require_alive()
        # In the mount table, and answering: a mount is in the table before it is served.
        if not measure.mounted(self.mountpoint):
            return False
        try:
            os.listdir(self.mountpoint)
        except OSError:
            return False  # it may be about to die; the next poll raises with its log
        return True


class Penstock(Mount):
    name = "penstock"

    def launch(self) -> None:
        self._mount(
            f"s3://{self.site.bucket}",
            str(self.mountpoint),
            "-b",
            f"--endpoint={self.site.server.endpoint}",
            *self.cache_options(),
            "--mode=auto",
            "--refresh=never",
            # Neither the bare client nor the peers compare a body with its MD5.
            "--verify-store=never",
            *self.extra_options(),
        )

    def cache_options(self) -> list[str]:
        if self.plan.cache_share == 0:
            return ["--no-cache"]
        if self.plan.cache_share < 1:
            # Marks that let it be filled to the brim: the plan names what it holds.
            return [f"--tier=MEM:{self.cache}:{self.quota_bytes}B:high=1,low=0.99"]
        # Room for everything, and no more than the data set needs: a quota larger than the
        # file system is refused.
        room_bytes = self.site.dataset.size_bytes * 5 // 4 + GIB // 4
        return [f"--cache-dir={self.cache}", f"--cache-size={room_bytes}B"]

    def unmount(self) -> None:
        self._command("umount", str(self.mountpoint))

    def warm(self) -> None:
        """Load the whole data set into the local cache."""
        self._command("warm", str(self.mountpoint))

    def reader_environment(self) -> dict[str, str]:
        return {"PENSTOCK_STATE_DIR": str(self._state)}

    def version(self) -> str:
        return self._command("--version").split()[-1]

    def messages(self) -> int:
        return sum(self.statistics()["requests"].values())

    def mode(self) -> str:
        return self.statistics()["mode"]

    def statistics(self) -> dict[str, Any]:
        return json.loads(self._command("stats", str(self.mountpoint), "-o", "json"))

    @property
    def _state(self) -> Path:
        return self.place / "state"

    def environment(self) -> dict[str, str]:
        # The user's own home, because Python finds packages there.
        extra = self.site.server.aws_environment()
        extra["PENSTOCK_STATE_DIR"] = str(self._state)
        return self.site.workspace.environment(self.name, extra)

    def _mount(self, *words: str) -> None:
        self.command = ["penstock", "mount", *words]
        try:
            self._command("mount", *words)
        except BenchError as error:
            # Its log goes with the workspace, so the error has its end.
            logs = sorted((self._state / "logs").glob("*.log"))
            raise BenchError(" | ".join([str(error), *map(tail, logs)])) from error

    def _command(self, *words: str) -> str:
        command = [sys.executable, "-m", "penstock", *words]
        return self.site.workspace.run(self.name, command, self.environment()).decode()
