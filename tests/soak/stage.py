"""Where the soak plays: S3 server, faulty proxy, caches on small tmpfs, one mount of each mode.

Everything lies in one folder and is taken away whatever happens.
"""

import errno
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import MountNote, find_note
from tests.soak.contents import NAMES, STILL, Ledger, make
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
    elsewhere: "Elsewhere"
    ledger: Ledger
    mounts: list[Path] = field(default_factory=list[Path])
    # When the store was away for longer than the deadline.
    away: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    # When each catalog was damaged. Both mounts are of one source, and so share one catalog.
    damaged: list[float] = field(default_factory=list[float])

    def cache(self, mode: str) -> Path:
        return self.folder / f"{mode}-disk" / "cache"

    @property
    def catalogs(self) -> Path:
        return self.folder / "state/catalogs"

    def note(self, mount: int) -> MountNote:
        """What is noted of it: known also while its server is dead."""
        return find_note(self.mounts[mount])


class Elsewhere:
    """A host that nobody asked for, to which redirects lead. It counts who comes."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed: it is over
            while True:
                self._listener.accept()[0].close()
                self.connections += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


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
        write_tree(bucket, {name: make(name, 0) for name in NAMES} | dict.fromkeys(STILL, b"still"))
        elsewhere = stack.enter_context(closing(Elsewhere()))
        proxy = FaultyProxy(server.endpoint, seed=seed, elsewhere=elsewhere.address)
        stack.enter_context(proxy)
        made = Stage(seed, minutes, folder, bucket, proxy, elsewhere, Ledger(len(MODES)))
        for mode in MODES:
            disk = made.cache(mode).parent
            disk.mkdir()
            subprocess.run(["mount", "-ttmpfs", f"-osize={_TMPFS}", "soak", disk], check=True)
            # Lazily: what a killed server left open must not keep the soak from ending.
            stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
            mount = mounter(
                "s3://soak",
                "--mode",
                mode,
                "--endpoint",
                proxy.endpoint,
                "--cache-dir",
                made.cache(mode),
                "--cache-size",
                _CACHE,
                "--block-size",
                "512KiB",
                "--policy",
                "lru",
                "--refresh",
                "never",
                "--deadline",
                f"{DEADLINE_S:g}s",
            )
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


def unused_caches(place: Stage) -> list[str]:
    """Caches that trouble has put out of use for good: what is read now must come to lie there."""
    return [
        f"the cache of {mode} is not in use"
        for number, mode in enumerate(MODES)
        if not _is_used_within(90, place, number)  # a directory is probed at least each 60 s
    ]


def _is_used_within(seconds: float, place: Stage, number: int) -> bool:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for name in os.listdir(place.mounts[number] / "large"):
            with suppress(OSError):  # rewritten since the last refresh
                (place.mounts[number] / "large" / name).read_bytes()
        (tier,) = ask(place.note(number).socket_path, "stats", timeout_s=10)["tiers"]
        if tier["state"] == "ok" and tier["used_bytes"]:
            return True
        time.sleep(0.5)
    return False


def wrong_at_the_end(place: Stage) -> list[str]:
    """Once all is calm, a refresh makes each mount list exactly what the bucket holds."""
    there = {path.key for path in place.bucket.rglob()}
    wrong: list[str] = []
    for number, mode in enumerate(MODES):
        ask(place.note(number).socket_path, "refresh", timeout_s=60)
        found = find(place.mounts[number])
        wrong += [f"{mode}, at the end: {name}: missing" for name in sorted(there - found)[:5]]
        wrong += [f"{mode}, at the end: {name}: listed" for name in sorted(found - there)[:5]]
    return wrong


def find(folder: Path) -> set[str]:
    """The files below it, as find(1) tells them. Raises OSError for what find could not read."""
    result = subprocess.run(
        ["find", folder, "-type", "f", "-printf", "%P\\n"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
    if result.returncode:
        first = result.stderr.partition("\n")[0]
        name = first.removeprefix(f"find: '{folder}/").partition("'")[0]
        number = next((n for n in errno.errorcode if first.endswith(os.strerror(n))), errno.EPROTO)
        raise OSError(number, first, name)
    return set(result.stdout.splitlines())


def leftovers(place: Stage) -> list[str]:
    """Mounts and processes that the soak should have taken with it."""
    found = [f"mount {path}" for path in mounts_below(place.folder)]
    for path in (place.folder, *place.mounts):
        found += [f"process {process}" for process in processes_that_name(path)]
    return found + ([f"folder {place.folder}"] if place.folder.exists() else [])
