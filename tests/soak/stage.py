"""Where the soak plays: S3 server, faulty proxy, caches on small tmpfs, one mount of each mode.

Everything lies in one folder and is taken away whatever happens.
"""

import random
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.daemon.registry import MountNote, find_note
from tests.soak.contents import NAMES, Ledger, make
from tests.support.faulty_proxy import FaultyProxy
from tests.support.mounts import Mount, penstock
from tests.support.refusals import mounts_below, processes_that_name
from tests.support.s3 import KEYS, ObjectPath, serve_seaweedfs
from tests.support.shared_mounts import sharing
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
    mounts: list[Path] = field(default_factory=list[Path])
    # When the store was away for longer than the deadline.
    away: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def cache(self, mode: str) -> Path:
        return self.folder / f"{mode}-disk" / "cache"

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
        mounter = stack.enter_context(sharing(folder, KEYS))
        server = stack.enter_context(serve_seaweedfs(folder / "s3"))
        bucket = server.bucket("soak")
        write_tree(bucket, {name: make(name, 0) for name in NAMES})
        proxy = stack.enter_context(FaultyProxy(server.endpoint, seed=seed))
        made = Stage(seed, minutes, folder, bucket, proxy, Ledger(len(MODES)))
        for mode in MODES:
            disk = made.cache(mode).parent
            disk.mkdir()
            subprocess.run(["mount", "-ttmpfs", f"-osize={_TMPFS}", "soak", disk], check=True)
            # Lazily: what a killed server left open must not keep the soak from ending.
            stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
            mount = mounter(
                "s3://soak", "--mode", mode, "--endpoint", proxy.endpoint,
                "--cache-dir", made.cache(mode), "--cache-size", _CACHE, "--block-size", "512KiB",
                "--policy", "lru", "--refresh", "never", "--deadline", f"{DEADLINE_S:g}s",
            )  # fmt: skip
            stack.callback(_unmount, mount)
            made.mounts.append(mount.path)
        yield made


def _unmount(mount: Mount) -> None:
    try:
        mount.umount()
    except AssertionError as busy:
        print(f"umount {mount.path}: {busy}")
        penstock("umount", "--lazy", mount.path).check_returncode()
        mount._mounted = False


def leftovers(place: Stage) -> list[str]:
    """Mounts and processes that the soak should have taken with it."""
    found = [f"mount {path}" for path in mounts_below(place.folder)]
    for path in (place.folder, *place.mounts):
        found += [f"process {process}" for process in processes_that_name(path)]
    return found + ([f"folder {place.folder}"] if place.folder.exists() else [])
