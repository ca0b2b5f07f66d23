"""Where the soak plays: S3 server, faulty proxy, caches on small tmpfs, one mount of each mode.

Everything lies in one folder and is taken away whatever happens.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, find_note
from tests.soak.contents import NAMES, Ledger, make
from tests.support.faulty_proxy import FaultyProxy
from tests.support.mounts import penstock_process
from tests.support.refusals import mounts_below, processes_that_name
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, ObjectPath, serve_seaweedfs
from tests.support.trees import write_tree

MODES = ("pagecache", "passthrough")
# What may come together within it: an outage of a fifth of it, two faults in a row before and
# after, a kill. With 4 s, two busy cores were too slow for that in one run of four.
DEADLINE_S = 6.0
# Less than the data, so that the store goes on being asked; the tmpfs has a little more.
_CACHE, _TMPFS = "12MiB", "16m"


@dataclass(frozen=True)
class Stage:
    seed: int
    minutes: float
    folder: Path
    bucket: ObjectPath
    proxy: FaultyProxy
    ledger: Ledger
    # When the store was away for longer than the deadline.
    away: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    @property
    def mounts(self) -> list[Path]:
        return [self.folder / mode for mode in MODES]

    def cache(self, mode: str) -> Path:
        return self.folder / f"{mode}-disk" / "cache"

    def ask(self, mount: int, verb: str, timeout_s: float = 60) -> dict[str, Any]:
        return ask(self.note(mount).socket_path, verb, timeout_s=timeout_s)

    def note(self, mount: int) -> MountNote:
        """What is noted of it: known also while its server is dead."""
        return find_note(self.mounts[mount])


class Actor(threading.Thread):
    """A thread of the soak, with random numbers of its own. It ends when `stop` is set; what it
    raises is kept for the end of the soak."""

    def __init__(self, stage: Stage, stop: threading.Event, name: str = "") -> None:
        super().__init__(name=name or type(self).__name__, daemon=True)
        self.stage, self.stop = stage, stop
        self.chance = random.Random(f"{stage.seed} {self.name}")
        self.counts: Counter[str] = Counter()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 — told in the summary, which fails
            self.error = error

    def work(self) -> None:
        raise NotImplementedError

    def pause(self, least_s: float, most_s: float) -> bool:
        """False when the soak is over."""
        return not self.stop.wait(self.chance.uniform(least_s, most_s))


@contextmanager
def stage(minutes: float, seed: int) -> Iterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-", dir="/dev/shm"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in list(os.environ):
            if name.startswith(("AWS_", "PENSTOCK_")):
                del os.environ[name]
        os.environ.update(
            PENSTOCK_STATE_DIR=str(folder / "state"), HOME=str(folder),
            AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY,
            AWS_EC2_METADATA_DISABLED="true",
        )  # fmt: skip
        server = stack.enter_context(serve_seaweedfs(folder / "s3"))
        bucket = server.bucket("soak")
        write_tree(bucket, {name: make(name, 0) for name in NAMES})
        proxy = stack.enter_context(FaultyProxy(server.endpoint, seed=seed))
        made = Stage(seed, minutes, folder, bucket, proxy, Ledger(len(MODES)))
        for mode in MODES:
            stack.enter_context(_small_disk(made.cache(mode).parent))
            stack.enter_context(_mounted(made, mode))
        yield made


@contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_TMPFS}", "soak", path], check=True)
    try:
        yield
    finally:
        # Lazily: what a killed server left open must not keep the soak from ending.
        subprocess.run(["umount", "--lazy", path], check=True)


@contextmanager
def _mounted(made: Stage, mode: str) -> Iterator[None]:
    path = made.folder / mode
    path.mkdir()
    penstock_process(
        "mount", "s3://soak", path, "-b", "--mode", mode, "--endpoint", made.proxy.endpoint,
        "--cache-dir", made.cache(mode), "--cache-size", _CACHE, "--block-size", "512KiB",
        "--policy", "lru", "--refresh", "never", "--deadline", f"{DEADLINE_S:g}s",
    ).check_returncode()  # fmt: skip
    try:
        yield
    finally:
        if (result := penstock_process("umount", path)).returncode:
            print(f"umount {path}: {result.stderr}", file=sys.stderr)
            penstock_process("umount", "--lazy", path).check_returncode()


def leftovers(folder: Path) -> list[str]:
    """Mounts and processes that the soak should have taken with it."""
    found = [f"mount {path}" for path in mounts_below(folder)]
    for path in folder, *(folder / mode for mode in MODES):
        found += [f"process {process}" for process in processes_that_name(path)]
    return found + ([f"folder {folder}"] if folder.exists() else [])
